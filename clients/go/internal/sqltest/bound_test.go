package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/mysql"
	"palisade.example/palisade/fence/postgres"
	"palisade.example/palisade/internal/testserver"
)

func leased(token uint64, left time.Duration) fence.Holder {
	return lasting{fence.NewPass(token, "", ""), left}
}

// idleBound is how many seconds MariaDB lets a transaction of this connection be idle.
func idleBound(t *testing.T, db queryer) (seconds int) {
	t.Helper()
	if err := db.QueryRow("SELECT @@SESSION.idle_write_transaction_timeout").Scan(&seconds); err != nil {
		t.Fatal(err)
	}
	return seconds
}

// Else a later transaction of the connection, perhaps without a claim, would be ended by the bound of this one.
func TestTransactLeavesTheConnectionItsOwnBound(t *testing.T) {
	e := onMaria(t)
	e.db.SetMaxOpenConns(1)
	resource := unique("bound")
	for _, own := range []int{0, 300} {
		execute(t, e.db, fmt.Sprintf("SET SESSION idle_write_transaction_timeout = %d", own))
		var session int64
		if err := e.db.QueryRow("SELECT CONNECTION_ID()").Scan(&session); err != nil {
			t.Fatal(err)
		}
		failure, stopped := errors.New("no"), errors.New("panic")
		for name, one := range map[string]struct {
			holder fence.Holder
			work   func(context.CancelFunc) error
			wanted error
		}{
			"commit":   {leased(2, 6500*time.Millisecond), func(context.CancelFunc) error { return nil }, nil},
			"failure":  {leased(2, 6500*time.Millisecond), func(context.CancelFunc) error { return failure }, failure},
			"panic":    {leased(2, 6500*time.Millisecond), func(context.CancelFunc) error { panic(stopped) }, stopped},
			"stale":    {fence.Token(1), nil, fence.ErrStale},
			"canceled": {leased(2, 6500*time.Millisecond), func(cancel context.CancelFunc) error { cancel(); return nil }, context.Canceled},
		} {
			if name == "stale" {
				e.mustTransact(t, resource, 2)
			}
			within, cancel := context.WithCancel(ctx)
			err := recovered(func() error {
				return mysql.Transact(within, e.db, resource, one.holder, func(tx *sql.Tx) error {
					if bound := idleBound(t, tx); bound != 7 {
						t.Errorf("%s: %d s of a lease of 7 s", name, bound)
					}
					return one.work(cancel)
				})
			})
			cancel()
			if !errors.Is(err, one.wanted) {
				t.Errorf("%s: %v", name, err)
			}
			if bound := idleBound(t, e.db); bound != own {
				t.Errorf("%s: the connection has %d s, and had %d s", name, bound, own)
			}
		}
		var now int64
		if err := e.db.QueryRow("SELECT CONNECTION_ID()").Scan(&now); err != nil || now != session {
			t.Errorf("the connection is another one: %v", err)
		}
		// The control: a claim and a bare COMMIT.
		e.mustClaim(t, resource, 2)
		if bound := idleBound(t, e.db); bound != 10 {
			t.Errorf("%d s after a bare COMMIT", bound)
		}
		execute(t, e.db, "CALL palisade_end(TRUE)")
	}
}

func (e *engine) mustTransact(t *testing.T, resource string, token fence.Token) {
	t.Helper()
	if err := e.transact(ctx, e.db, map[string]fence.Holder{resource: token}, nothing); err != nil {
		t.Fatal(err)
	}
}

func recovered(call func() error) (err error) {
	defer func() {
		if said, ok := recover().(error); ok {
			err = said
		}
	}()
	return call()
}

// Of several leases the shortest bounds the transaction, and a claim by Do is a claim.
func TestAClaimTellsWhatIsLeftOfItsLease(t *testing.T) {
	bounds := map[string]func(*sql.Tx) (left int){
		"postgres": func(tx *sql.Tx) (left int) {
			if err := tx.QueryRow("SELECT current_setting('palisade.lease_left_ms')").Scan(&left); err != nil {
				t.Error(err)
			}
			return left / 1000
		},
		"mariadb": func(tx *sql.Tx) int { return idleBound(t, tx) },
	}
	onEach(t, func(t *testing.T, e *engine) {
		e.db.SetMaxOpenConns(1)
		one, other := unique("left"), unique("left")
		bound := bounds[t.Name()[strings.LastIndexByte(t.Name(), '/')+1:]]
		claims := map[string]func(*sql.Tx) error{
			"claim": func(tx *sql.Tx) error {
				both := map[string]fence.Holder{one: leased(7, 6*time.Second), other: leased(7, 5*time.Second)}
				return e.claimAll(ctx, tx, both)
			},
			"do": func(tx *sql.Tx) error {
				_, err := e.do(fence.Claim, tx, one, leased(7, 5*time.Second), fence.Operation{Kind: fence.KindClaim})
				return err
			},
		}
		for name, claim := range claims {
			err := transact(t, e.db, func(tx *sql.Tx) error {
				if err := claim(tx); err != nil {
					return err
				}
				// MariaDB has whole seconds.
				if left := bound(tx); left < 5 || left > 6 {
					t.Errorf("%s: %d s", name, left)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A claim that commits by itself guards nothing.
func TestAClaimOutsideOfATransactionIsRefused(t *testing.T) {
	db := open(t, "pgx", postgresURL(t, "postgres"))
	defer db.Close()
	connection, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	for _, tx := range []postgres.Tx{db, connection} {
		if err := postgres.Claim(ctx, tx, "orders", fence.Token(7)); err == nil || !strings.Contains(err.Error(), "claim in it") {
			t.Errorf("%T: %v", tx, err)
		}
	}
}

// A guard with another rule claims first by construction, too.
func TestAGuardTransactsUnderItsRule(t *testing.T) {
	onEach(t, func(t *testing.T, e *engine) {
		resource := unique("rule")
		holder := fence.Token(100)
		if err := e.transactUnder(fence.Rule{MaxJump: 5}, resource, holder, nothing); err == nil {
			t.Error("a token too far above the highest was admitted")
		} else if rejection, ok := errors.AsType[*fence.Rejection](err); !ok || rejection.Code != "jump" {
			t.Error(err)
		}
		if err := e.transactUnder(fence.Rule{MaxJump: 500}, resource, holder, nothing); err != nil {
			t.Error(err)
		}
	})
}

// A role without EXECUTE on the procedure that commits, or files of the fence from before it: nothing is written, and the
// error gives the reason and the command to type.
func TestWithoutTheProcedureThatCommitsNothingIsWritten(t *testing.T) {
	e := onMaria(t)
	database := unique("older")
	execute(t, e.db, "CREATE DATABASE "+database)
	root := e.other(database)
	defer root.Close()
	files, err := filepath.Glob(filepath.Join(testserver.Root(), "crates/palisade-fence/sql/mysql/0*.sql"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		execute(t, root, string(text))
	}
	user := unique("u")
	execute(t, root, "CREATE TABLE things (n INT)",
		fmt.Sprintf("CREATE USER %s", user),
		fmt.Sprintf("GRANT SELECT, INSERT ON %s.things TO %s", database, user),
		fmt.Sprintf("GRANT EXECUTE ON PROCEDURE %s.palisade_judge TO %s", database, user))
	role := open(t, "mysql", strings.Replace(mariaSource(t, database), "palisade@", user+"@", 1))
	defer role.Close()
	insert := func(tx *sql.Tx) error {
		_, err := tx.Exec("INSERT INTO things VALUES (1)")
		return err
	}
	refused := func(db *sql.DB, says ...string) {
		t.Helper()
		err := mysql.Transact(ctx, db, "orders", fence.Token(7), insert)
		for _, words := range append(says, "palisade_end") {
			if err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%v, and not %q", err, words)
			}
		}
		var things, marks int
		err = root.QueryRow("SELECT (SELECT COUNT(*) FROM things), (SELECT COUNT(*) FROM palisade_fence)").Scan(&things, &marks)
		if err != nil || things != 0 || marks != 0 {
			t.Errorf("%d things and %d marks, %v", things, marks, err)
		}
	}
	refused(role, "denied", "GRANT EXECUTE ON")
	execute(t, root, "DROP PROCEDURE palisade_end")
	refused(root, "an older version", "palisade fence install mysql")
}
