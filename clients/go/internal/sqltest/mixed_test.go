package sqltest

import (
	"bufio"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"palisade.example/palisade"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/postgres"
	"palisade.example/palisade/internal/testserver"
)

const rounds = 20

// An adder reads and writes one number in two steps, as a holder that may be paused in between.
type adder interface {
	read(t *testing.T, token uint64) int
	// write returns false if the fence refuses it.
	write(t *testing.T, token uint64, number int) bool
}

type goAdder struct {
	db     *sql.DB
	name   string
	fenced bool
}

func (a *goAdder) transact(token uint64, work func(*sql.Tx) error) error {
	if a.fenced {
		return postgres.Transact(ctx, a.db, a.name, fence.Token(token), work)
	}
	tx, err := a.db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (a *goAdder) read(t *testing.T, token uint64) (total int) {
	t.Helper()
	err := a.transact(token, func(tx *sql.Tx) error {
		return tx.QueryRow("SELECT total FROM totals WHERE name = $1", a.name).Scan(&total)
	})
	if err != nil {
		t.Fatal(err)
	}
	return total
}

func (a *goAdder) write(t *testing.T, token uint64, number int) bool {
	t.Helper()
	err := a.transact(token, func(tx *sql.Tx) error {
		_, err := tx.Exec("UPDATE totals SET total = $2 WHERE name = $1", a.name, number)
		return err
	})
	if err != nil && !errors.Is(err, fence.ErrStale) {
		t.Fatal(err)
	}
	return err == nil
}

// rustAdder is crates/palisade-fence/examples/adder.rs.
type rustAdder struct {
	in  io.Writer
	out *bufio.Scanner
}

func newRustAdder(t *testing.T, name string, fenced bool) *rustAdder {
	t.Helper()
	program := os.Getenv("PALISADE_ADDER")
	if program == "" {
		program = filepath.Join(testserver.Root(), "target/debug/examples/adder")
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%s is missing: run `cargo build -p palisade-fence --features postgres,redis --example adder`, "+
			"or set PALISADE_ADDER", program)
	}
	url := strings.TrimSuffix(postgresURL(t, "postgres"), "?sslmode=disable")
	command := exec.Command(program, "postgres", url, name, map[bool]string{true: "fenced", false: "unfenced"}[fenced])
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
	})
	return &rustAdder{in, bufio.NewScanner(out)}
}

func (a *rustAdder) ask(t *testing.T, line string) string {
	t.Helper()
	if _, err := fmt.Fprintln(a.in, line); err != nil {
		t.Fatal(err)
	}
	if !a.out.Scan() {
		t.Fatalf("the Rust holder ended: %v", a.out.Err())
	}
	return a.out.Text()
}

func (a *rustAdder) read(t *testing.T, token uint64) int {
	t.Helper()
	total, err := strconv.Atoi(a.ask(t, fmt.Sprintf("read %d", token)))
	if err != nil {
		t.Fatal(err)
	}
	return total
}

func (a *rustAdder) write(t *testing.T, token uint64, number int) bool {
	t.Helper()
	answer := a.ask(t, fmt.Sprintf("write %d %d", token, number))
	if answer != "written" && answer != "rejected stale" {
		t.Fatal(answer)
	}
	return answer == "written"
}

// lost is how many acknowledged adds are missing in the end: in each round the zombie reads, is paused past its lease, and
// writes between the next holder's read and write.
func lost(t *testing.T, zombie, holder adder) int {
	t.Helper()
	client, err := palisade.New(palisade.Endpoints(testserver.Serve(t).URL))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	lock := func() *palisade.Lease {
		lease, err := client.Lock(ctx, "total")
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	acknowledged := 0
	count := func(written bool) {
		if written {
			acknowledged++
		}
	}
	for range [rounds]int{} {
		first := lock()
		seen := zombie.read(t, first.Token())
		if err := client.Break(ctx, "total", first.Token(), "the zombie is paused"); err != nil {
			t.Fatal(err)
		}
		second := lock()
		current := holder.read(t, second.Token())
		count(zombie.write(t, first.Token(), seen+1))
		count(holder.write(t, second.Token(), current+1))
		if err := second.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return acknowledged - holder.read(t, lock().Token())
}

// pairs are a zombie and a holder, in both languages, over one number of this test.
func pairs(t *testing.T, test func(t *testing.T, make func(language string, fenced bool) adder, zombie, holder string)) {
	e := onPostgres(t)
	execute(t, e.db, "CREATE TABLE IF NOT EXISTS totals (name text PRIMARY KEY, total bigint)")
	for _, pair := range [][2]string{{"go", "go"}, {"go", "rust"}, {"rust", "go"}} {
		t.Run(pair[0]+" then "+pair[1], func(t *testing.T) {
			name := unique("total")
			execute(t, e.db, "INSERT INTO totals VALUES ('"+name+"', 0)")
			make := func(language string, fenced bool) adder {
				if language == "rust" {
					return newRustAdder(t, name, fenced)
				}
				return &goAdder{e.db, name, fenced}
			}
			test(t, make, pair[0], pair[1])
		})
	}
}

func TestNothingIsLostBehindASharedFence(t *testing.T) {
	pairs(t, func(t *testing.T, make func(string, bool) adder, zombie, holder string) {
		if n := lost(t, make(zombie, true), make(holder, true)); n != 0 {
			t.Errorf("%d adds are lost", n)
		}
	})
}

func TestWithoutAFenceAnAddIsLostInEveryRound(t *testing.T) {
	pairs(t, func(t *testing.T, make func(string, bool) adder, zombie, holder string) {
		if n := lost(t, make(zombie, false), make(holder, false)); n != rounds {
			t.Errorf("%d adds are lost in %d rounds", n, rounds)
		}
	})
}

func nothing(*sql.Tx) error { return nil }
