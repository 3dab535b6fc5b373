package sqltest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"time"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/mysql"
	"palisade.example/palisade/fence/postgres"
)

// An engine is a database with its fence.
type engine struct {
	db       *sql.DB
	database string
	// other opens another database of the same server.
	other    func(database string) *sql.DB
	transact func(context.Context, *sql.DB, map[string]fence.Holder, func(*sql.Tx) error) error
	claim    func(context.Context, *sql.Tx, string, fence.Holder) error
	claimAll func(context.Context, *sql.Tx, map[string]fence.Holder) error
	check    func(context.Context, *sql.Tx, string, fence.Holder) error
	write    func(context.Context, *sql.Tx, string, fence.Holder, fence.Number) (fence.Written, error)
	record   func(context.Context, *sql.Tx, string, fence.Holder, uint64, []byte) error
	do       func(fence.Rule, *sql.Tx, string, fence.Holder, fence.Operation) (fence.Written, error)
	// transactUnder is transact under a rule.
	transactUnder func(fence.Rule, string, fence.Holder, func(*sql.Tx) error) error
	rejected      func(error) (*fence.Rejection, bool)
	// sticky makes writes to a table without a claim fail.
	sticky func(table, resource string) []string
	// insert makes a guard row with these columns.
	insert string
	lock   string
}

var ctx = context.Background()

func onEach(t *testing.T, test func(*testing.T, *engine)) {
	t.Run("postgres", func(t *testing.T) { test(t, onPostgres(t)) })
	t.Run("mariadb", func(t *testing.T) { test(t, onMaria(t)) })
}

func onPostgres(t *testing.T) *engine {
	e := &engine{
		db:       open(t, "postgres", postgresURL(t, "postgres")),
		database: "postgres",
		other:    func(database string) *sql.DB { return open(t, "postgres", postgresURL(t, database)) },
		transact: postgres.TransactAll,
		claim: func(ctx context.Context, tx *sql.Tx, resource string, holder fence.Holder) error {
			return postgres.Claim(ctx, tx, resource, holder)
		},
		claimAll: func(ctx context.Context, tx *sql.Tx, holders map[string]fence.Holder) error {
			return postgres.ClaimAll(ctx, tx, holders)
		},
		check: postgres.Check,
		write: postgres.Write, record: postgres.Record, rejected: postgres.Rejected,
		do: func(
			rule fence.Rule, tx *sql.Tx, resource string, holder fence.Holder, operation fence.Operation,
		) (fence.Written, error) {
			return postgres.Guard{Rule: rule}.Do(ctx, tx, resource, holder, operation)
		},
		sticky: func(table, resource string) []string {
			return []string{fmt.Sprintf("SELECT palisade_sticky('%s', '%s')", table, resource)}
		},
		insert: "INSERT INTO palisade_fence (resource, authority, lock, token, written, sequence, digest, result)" +
			" VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
		lock: "lock",
	}
	e.transactUnder = func(rule fence.Rule, resource string, holder fence.Holder, work func(*sql.Tx) error) error {
		return postgres.Guard{Rule: rule}.Transact(ctx, e.db, resource, holder, work)
	}
	t.Cleanup(func() { e.db.Close() })
	return e
}

func onMaria(t *testing.T) *engine {
	e := &engine{
		db:       open(t, "mysql", mariaSource(t, "palisade")),
		database: "palisade",
		other:    func(database string) *sql.DB { return open(t, "mysql", mariaSource(t, database)) },
		transact: mysql.TransactAll,
		claim:    mysql.Claim, claimAll: mysql.ClaimAll, check: mysql.Check,
		write: mysql.Write, record: mysql.Record, rejected: mysql.Rejected,
		do: func(
			rule fence.Rule, tx *sql.Tx, resource string, holder fence.Holder, operation fence.Operation,
		) (fence.Written, error) {
			return mysql.Guard{Rule: rule}.Do(ctx, tx, resource, holder, operation)
		},
		sticky: func(table, resource string) []string {
			return []string{fmt.Sprintf("CREATE TRIGGER %s_insert BEFORE INSERT ON %s FOR EACH ROW CALL palisade_check_token('%s')",
				table, table, resource)}
		},
		insert: "INSERT INTO palisade_fence (resource, authority, `lock`, token, written, sequence, digest, result)" +
			" VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		lock: "`lock`",
	}
	e.transactUnder = func(rule fence.Rule, resource string, holder fence.Holder, work func(*sql.Tx) error) error {
		return mysql.Guard{Rule: rule}.Transact(ctx, e.db, resource, holder, work)
	}
	t.Cleanup(func() { e.db.Close() })
	return e
}

// transact commits the work, unless it fails.
func transact(t *testing.T, db *sql.DB, work func(*sql.Tx) error) error {
	t.Helper()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := work(tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

func (e *engine) mustClaim(t *testing.T, resource string, token fence.Token) {
	t.Helper()
	if err := e.tryClaim(t, resource, token); err != nil {
		t.Fatal(err)
	}
}

func (e *engine) tryClaim(t *testing.T, resource string, holder fence.Holder) error {
	t.Helper()
	return transact(t, e.db, func(tx *sql.Tx) error { return e.claim(ctx, tx, resource, holder) })
}

func unique(name string) string {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		panic(err)
	}
	return name + "_" + hex.EncodeToString(random[:])
}

func TestANewerHolderShutsTheOlderOneOut(t *testing.T) {
	onEach(t, func(t *testing.T, e *engine) {
		resource := unique(`o"r\d'ers`)
		e.mustClaim(t, resource, 7)
		e.mustClaim(t, resource, 8)
		err := e.tryClaim(t, resource, fence.Token(7))
		var rejection *fence.Rejection
		if !errors.Is(err, fence.ErrStale) || !errors.As(err, &rejection) || rejection.Highest != 8 {
			t.Errorf("%v", err)
		}
		err = transact(t, e.db, func(tx *sql.Tx) error { return e.check(ctx, tx, resource, fence.Token(7)) })
		if !errors.Is(err, fence.ErrStale) {
			t.Errorf("a read: %v", err)
		}
		e.mustClaim(t, resource, 8)
	})
}

func TestATokenOfAnotherAuthorityIsNoNumberToCompare(t *testing.T) {
	onEach(t, func(t *testing.T, e *engine) {
		resource := unique("orders")
		if err := e.tryClaim(t, resource, fence.NewPass(7, "one", "orders")); err != nil {
			t.Fatal(err)
		}
		var rejection *fence.Rejection
		err := e.tryClaim(t, resource, fence.NewPass(8, "another", "orders"))
		if !errors.As(err, &rejection) || rejection.Code != "wrong_authority" || rejection.Authority != "one" {
			t.Errorf("%v", err)
		}
	})
}

func TestANumberedWriteIsRecognisedAndAnswered(t *testing.T) {
	onEach(t, func(t *testing.T, e *engine) {
		resource, number := unique("seats"), fence.Number{Sequence: 1, Digest: 1<<64 - 1}
		for _, repeat := range []bool{false, true} {
			err := transact(t, e.db, func(tx *sql.Tx) error {
				written, err := e.write(ctx, tx, resource, fence.Token(7), number)
				if err != nil {
					return err
				}
				if written.Repeat != repeat {
					t.Errorf("repeat is %v", written.Repeat)
				}
				if repeat {
					if string(written.Result) != "seat 12A" {
						t.Errorf("the result is %q", written.Result)
					}
					return nil
				}
				return e.record(ctx, tx, resource, fence.Token(7), 1, []byte("seat 12A"))
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		err := transact(t, e.db, func(tx *sql.Tx) error {
			_, err := e.write(ctx, tx, resource, fence.Token(7), fence.Number{Sequence: 1, Digest: 5})
			return err
		})
		var rejection *fence.Rejection
		if !errors.As(err, &rejection) || rejection.Code != "sequence_reused" || rejection.Last != 1 {
			t.Errorf("%v", err)
		}
		err = transact(t, e.db, func(tx *sql.Tx) error { return e.record(ctx, tx, resource, fence.Token(7), 2, nil) })
		if err == nil {
			t.Error("a result was recorded for a write that was not carried out")
		}
		err = transact(t, e.db, func(tx *sql.Tx) error {
			return e.record(ctx, tx, resource, fence.Token(7), 1, make([]byte, 65_537))
		})
		if err == nil {
			t.Error("a result that is too long was recorded")
		}
	})
}

func TestAllResourcesAreClaimedOrNone(t *testing.T) {
	onEach(t, func(t *testing.T, e *engine) {
		first, second := unique("a"), unique("b")
		e.mustClaim(t, second, 10)
		// A caller that goes on all the same. PostgreSQL does not let it commit.
		_ = transact(t, e.db, func(tx *sql.Tx) error {
			err := e.claimAll(ctx, tx, map[string]fence.Holder{first: fence.Token(9), second: fence.Token(9)})
			if !errors.Is(err, fence.ErrStale) {
				t.Errorf("%v", err)
			}
			return nil
		})
		e.mustClaim(t, first, 1)
	})
}

func TestADatabaseWithoutTheFenceSaysWhatToRun(t *testing.T) {
	onEach(t, func(t *testing.T, e *engine) {
		name := unique("bare")
		execute(t, e.db, "CREATE DATABASE "+name)
		bare := e.other(name)
		defer bare.Close()
		err := transact(t, bare, func(tx *sql.Tx) error { return e.claim(ctx, tx, "orders", fence.Token(7)) })
		if !errors.Is(err, fence.ErrNotInstalled) {
			t.Errorf("%v", err)
		}
	})
}

// over is a holder that lost its lease.
type over struct{ fence.Pass }

func (over) Check() error { return errors.New("the lease is over") }

func TestBadArgumentsChangeNothing(t *testing.T) {
	onEach(t, func(t *testing.T, e *engine) {
		err := transact(t, e.db, func(tx *sql.Tx) error {
			for _, holder := range []fence.Holder{nil, fence.Token(0), fence.Token(fence.MaxToken + 1), over{fence.NewPass(1, "", "")}} {
				if e.claim(ctx, tx, "orders", holder) == nil {
					t.Errorf("claimed by %v", holder)
				}
			}
			if _, err := e.write(ctx, tx, "orders", over{fence.NewPass(1, "", "")}, fence.Number{Sequence: 1}); err == nil {
				t.Error("a holder that is over has written")
			}
			if e.claim(ctx, tx, "ä", fence.Token(1)) == nil || e.claimAll(ctx, tx, nil) == nil {
				t.Error("claimed nothing")
			}
			if _, err := e.write(ctx, tx, "orders", fence.Token(1), fence.Number{Sequence: 1 << 53}); err == nil {
				t.Error("a sequence number out of range")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestAStickyTableRefusesCodeThatForgotTheFence(t *testing.T) {
	onEach(t, func(t *testing.T, e *engine) {
		table, resource := unique("t"), unique("orders")
		execute(t, e.db, "CREATE TABLE "+table+" (n int)")
		execute(t, e.db, e.sticky(table, resource)...)
		insert := "INSERT INTO " + table + " VALUES (1)"
		err := transact(t, e.db, func(tx *sql.Tx) error {
			if err := e.claim(ctx, tx, resource, fence.Token(7)); err != nil {
				return err
			}
			_, err := tx.Exec(insert)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		forgetful := e.other(e.database)
		defer forgetful.Close()
		_, err = forgetful.Exec(insert)
		rejection, ok := e.rejected(err)
		if !ok || rejection.Code != "tokenless" || rejection.Highest != 7 {
			t.Errorf("%v", err)
		}
		if _, ok := e.rejected(errors.New("another")); ok {
			t.Error("another error became a rejection")
		}
	})
}

// In MySQL, the token that the triggers read outlives its transaction on the connection.
func TestATriggerRefusesAStaleToken(t *testing.T) {
	e := onMaria(t)
	table, resource := unique("t"), unique("orders")
	execute(t, e.db, "CREATE TABLE "+table+" (n int)")
	execute(t, e.db, e.sticky(table, resource)...)
	late, err := e.db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	tx, err := late.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.claim(ctx, tx, resource, fence.Token(7)); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	e.mustClaim(t, resource, 8)
	_, err = late.ExecContext(ctx, "INSERT INTO "+table+" VALUES (1)")
	if rejection, ok := e.rejected(err); !ok || rejection.Code != "stale" || rejection.Highest != 8 {
		t.Errorf("%v", err)
	}
	// A caller that goes on after its rejection.
	if tx, err = late.BeginTx(ctx, nil); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := e.claim(ctx, tx, resource, fence.Token(7)); !errors.Is(err, fence.ErrStale) {
		t.Errorf("%v", err)
	}
	_, err = tx.Exec("INSERT INTO " + table + " VALUES (1)")
	if rejection, ok := e.rejected(err); !ok || rejection.Code != "tokenless" || rejection.Highest != 8 {
		t.Errorf("%v", err)
	}
}

type lasting struct {
	fence.Pass
	left time.Duration
}

func (l lasting) Remaining() time.Duration { return l.left }

func TestAClaimSaysWhatIsLeftOfTheLease(t *testing.T) {
	e := onPostgres(t)
	for _, bound := range []struct {
		holder fence.Holder
		wanted string
	}{
		{lasting{fence.NewPass(7, "", ""), 24_999 * time.Millisecond}, "25s"},
		{lasting{fence.NewPass(7, "", ""), 100 * 24 * time.Hour}, "999999999ms"},
		// A control: of a bare token it is not known.
		{fence.Token(7), "10s"},
	} {
		var found string
		holders := map[string]fence.Holder{unique("orders"): bound.holder, unique("other"): fence.Token(7)}
		err := postgres.TransactAll(ctx, e.db, holders, func(tx *sql.Tx) error {
			return tx.QueryRow("SELECT current_setting('idle_in_transaction_session_timeout')").Scan(&found)
		})
		if err != nil || found != bound.wanted {
			t.Errorf("%v: %s, %v", bound.holder, found, err)
		}
	}
}

// At REPEATABLE READ a transaction computes from its first read, whatever it locks later.
func TestAReadBeforeTheClaimIsFound(t *testing.T) {
	e := onMaria(t)
	resource := unique("orders")
	e.mustClaim(t, resource, 7)
	err := transact(t, e.db, func(tx *sql.Tx) error {
		var n int
		if err := tx.QueryRow("SELECT count(*) FROM palisade_fence").Scan(&n); err != nil {
			return err
		}
		e.mustClaim(t, resource, 8)
		return e.claim(ctx, tx, resource, fence.Token(9))
	})
	if !errors.Is(err, mysql.ErrReadBeforeClaim) {
		t.Errorf("%v", err)
	}
}
