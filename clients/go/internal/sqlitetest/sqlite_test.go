// Package sqlitetest tests the fence in SQLite with a real driver: a module of its own, because the driver takes long to build.
package sqlitetest

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	_ "modernc.org/sqlite"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/sqlite"
	"palisade.example/palisade/internal/guardrow"
	"palisade.example/palisade/internal/testserver"
	"palisade.example/palisade/internal/vectors"
)

var ctx = context.Background()

func open(t *testing.T, file string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func execute(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// palisade runs a command of `palisade fence`, which is the fence in Rust.
func palisade(t *testing.T, arguments ...string) string {
	t.Helper()
	output, err := exec.Command(testserver.Binary(t), append([]string{"fence"}, arguments...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", arguments, err, output)
	}
	return string(output)
}

// fenced is a file with a total of 0, and the fence that the program installs.
func fenced(t *testing.T) (file string, db *sql.DB) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "data.sqlite")
	db = open(t, file)
	execute(t, db, "CREATE TABLE totals (total INTEGER NOT NULL)", "INSERT INTO totals VALUES (0)")
	palisade(t, "install", "sqlite", "--url", "sqlite://"+file)
	return file, db
}

func total(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRow("SELECT total FROM totals").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func set(n int) func(*sql.Tx) error {
	return func(tx *sql.Tx) error {
		_, err := tx.Exec("UPDATE totals SET total = ?", n)
		return err
	}
}

func TestTheGuardRowDecidesAsTheVectorsSay(t *testing.T) {
	_, db := fenced(t)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	for number, one := range vectors.All(t) {
		if one.Holder == nil {
			continue
		}
		name := fmt.Sprintf("vector-%d", number)
		if _, err := tx.Exec("INSERT INTO palisade_fence (resource, authority, lock, token, written, sequence, digest, result)"+
			" VALUES (?, ?, ?, ?, ?, ?, ?, ?)", append([]any{name}, guardrow.Values(one.Record)...)...); err != nil {
			t.Fatal(err)
		}
		written, err := sqlite.Guard{Rule: one.Rule}.Do(ctx, tx, name, one.Holder, one.Operation)
		verdict, told := "admit", fence.Rejection{}
		var rejection *fence.Rejection
		switch {
		case errors.As(err, &rejection):
			verdict, told = rejection.Code, *rejection
			told.Code = ""
		case err != nil:
			t.Fatalf("%s: %v", one.Text, err)
		case written.Repeat:
			verdict = "repeat"
		}
		var row guardrow.Row
		stored := "SELECT resource, authority, lock, token, written, sequence, digest, result FROM palisade_fence WHERE resource = ?"
		if err := tx.QueryRow(stored, name).Scan(row.Columns()...); err != nil {
			t.Fatal(err)
		}
		if verdict != one.Verdict || told != one.Told || !reflect.DeepEqual(row.Record(), one.Next) {
			t.Errorf("%s: %s, %+v, %+v", one.Text, verdict, told, row.Record())
		}
	}
}

func TestTransactWritesNothingForAnOlderHolderOrAfterAnError(t *testing.T) {
	_, db := fenced(t)
	failed := errors.New("the work failed")
	for _, one := range []struct {
		holders map[string]fence.Holder
		work    func(*sql.Tx) error
		wanted  error
		total   int
	}{
		{map[string]fence.Holder{"orders": fence.Token(8)}, set(8), nil, 8},
		{map[string]fence.Holder{"orders": fence.Token(7)}, set(7), fence.ErrStale, 8},
		{map[string]fence.Holder{"orders": fence.Token(9)}, func(tx *sql.Tx) error { return errors.Join(set(9)(tx), failed) }, failed, 8},
		// The failed work took its claim with it.
		{map[string]fence.Holder{"orders": fence.Token(8)}, set(10), nil, 10},
		{map[string]fence.Holder{"other": fence.Token(9)}, func(*sql.Tx) error { return nil }, nil, 10},
		{map[string]fence.Holder{"orders": fence.Token(9), "other": fence.Token(8)}, set(11), fence.ErrStale, 10},
		{map[string]fence.Holder{"orders": fence.Token(8), "other": fence.Token(9)}, set(12), nil, 12},
		{map[string]fence.Holder{"orders": fence.NewPass(9, "a", "orders")}, set(13), nil, 13},
		{map[string]fence.Holder{"orders": fence.NewPass(9, "b", "orders")}, set(14), fence.ErrRejected, 13},
	} {
		if err := sqlite.TransactAll(ctx, db, one.holders, one.work); !errors.Is(err, one.wanted) || total(t, db) != one.total {
			t.Errorf("%v: %v, and the total is %d", one.holders, err, total(t, db))
		}
	}
}

func TestARepeatHasItsResult(t *testing.T) {
	_, db := fenced(t)
	write := func(number fence.Number) (written fence.Written, err error) {
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		written, err = sqlite.Write(ctx, tx, "orders", fence.Token(7), number)
		if err == nil && !written.Repeat {
			if err := sqlite.Record(ctx, tx, "orders", fence.Token(7), number.Sequence, []byte("done")); err != nil {
				t.Fatal(err)
			}
			if err := sqlite.Record(ctx, tx, "orders", fence.Token(7), number.Sequence+1, nil); err == nil {
				t.Error("recorded with another number")
			}
		}
		if err == nil {
			err = tx.Commit()
		}
		return written, err
	}
	for _, before := range []bool{false, true} {
		written, err := write(fence.Number{Sequence: 1, Digest: 5})
		if err != nil || written.Repeat != before || before && string(written.Result) != "done" {
			t.Errorf("%+v, %v", written, err)
		}
	}
	var rejection *fence.Rejection
	if _, err := write(fence.Number{Sequence: 1, Digest: 6}); !errors.As(err, &rejection) || rejection.Code != "sequence_reused" {
		t.Errorf("%v", err)
	}
}

func TestWithoutTheTableTheCommandIsNamed(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "bare.sqlite"))
	err := sqlite.Transact(ctx, db, "orders", fence.Token(1), set(1))
	if !errors.Is(err, fence.ErrNotInstalled) || !strings.Contains(err.Error(), "palisade fence install sqlite") {
		t.Errorf("%v", err)
	}
}

// The fence in Rust reads and raises the mark of the same file.
func TestAFileIsSharedWithRust(t *testing.T) {
	file, db := fenced(t)
	if err := sqlite.Transact(ctx, db, "orders", fence.NewPass(7, "a", "orders"), set(7)); err != nil {
		t.Fatal(err)
	}
	var shown struct {
		Token     uint64 `json:"token"`
		Highest   uint64 `json:"highest"`
		Authority string `json:"authority"`
	}
	text := palisade(t, "show", "orders", "--json", "--url", "sqlite://"+file)
	if err := json.Unmarshal([]byte(text), &shown); err != nil || max(shown.Token, shown.Highest) != 7 || shown.Authority != "a" {
		t.Errorf("%s: %v", text, err)
	}
	palisade(t, "rearm", "orders", "--floor", "40", "--yes", "--url", "sqlite://"+file)
	if err := sqlite.Transact(ctx, db, "orders", fence.NewPass(8, "a", "orders"), set(8)); !errors.Is(err, fence.ErrStale) {
		t.Errorf("below the floor of the operator: %v", err)
	}
}

// TestHolder is the other process of the next test.
func TestHolder(t *testing.T) {
	file, does := os.Getenv("PALISADE_TEST_FILE"), os.Getenv("PALISADE_TEST_DOES")
	if file == "" {
		t.Skip("the other process of the test below")
	}
	db := open(t, file)
	read := 0
	look := func(tx *sql.Tx) error { return tx.QueryRow("SELECT total FROM totals").Scan(&read) }
	if err := sqlite.Transact(ctx, db, "orders", fence.Token(7), look); err != nil {
		t.Fatal(err)
	}
	fmt.Println("read", read)
	// The test stops this process here.
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	var err error
	if does == "unfenced" {
		_, err = db.Exec("UPDATE totals SET total = ?", read+1)
	} else {
		err = sqlite.Transact(ctx, db, "orders", fence.Token(7), set(read+1))
	}
	fmt.Println("wrote", err)
}

// A holder is stopped between its read and its write, past its lease.
func TestAStoppedHoldersWriteIsRefused(t *testing.T) {
	run := func(does string) (int, string) {
		file, db := fenced(t)
		command := exec.Command(os.Args[0], "-test.run=^TestHolder$", "-test.v")
		command.Env = append(os.Environ(), "PALISADE_TEST_FILE="+file, "PALISADE_TEST_DOES="+does)
		in, err := command.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = command.Process.Kill()
			_ = command.Wait()
		}()
		lines := bufio.NewScanner(out)
		says := func(begins string) string {
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), begins) {
					return lines.Text()
				}
			}
			t.Fatalf("it ended without %q", begins)
			return ""
		}
		says("read 0")
		if err := command.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if err := sqlite.Transact(ctx, db, "orders", fence.Token(8), set(70)); err != nil {
			t.Fatal(err)
		}
		if err := command.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(in)
		said := says("wrote")
		return total(t, db), said
	}
	if found, said := run("fenced"); found != 70 || !strings.Contains(said, "7 is stale: 7 < 8") {
		t.Errorf("the acknowledged write became %d: %s", found, said)
	}
	// A control: without the fence the acknowledged write is lost.
	if found, said := run("unfenced"); found != 1 {
		t.Errorf("nothing was lost: %d, %s", found, said)
	}
}

// A listener keeps what a lease would tell its authority.
type listener struct {
	fence.Pass
	told []fence.Late
}

func (l *listener) Refused(late fence.Late) { l.told = append(l.told, late) }

func TestAHolderIsToldOfItsLateWrites(t *testing.T) {
	_, db := fenced(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(sqlite.Transact(ctx, db, "b", fence.Token(8), set(8)))
	l := &listener{Pass: fence.NewPass(7, "one", "orders")}
	err := sqlite.TransactAll(ctx, db, map[string]fence.Holder{"a": l, "b": l}, set(7))
	if !errors.Is(err, fence.ErrStale) {
		t.Fatal(err)
	}
	must(sqlite.Transact(ctx, db, "a", l, set(7)))
	if want := (fence.Late{Lock: "orders", Resource: "b", Operation: "claim", Highest: 8}); len(l.told) != 1 || l.told[0] != want {
		t.Errorf("%+v", l.told)
	}
}
