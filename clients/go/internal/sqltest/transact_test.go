package sqltest

import (
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"palisade.example/palisade"
	"palisade.example/palisade/fence"
)

const racers, turns = 4, 50

// onEachDriver is as onEach, and with the other driver of PostgreSQL.
func onEachDriver(t *testing.T, test func(*testing.T, *engine)) {
	onEach(t, test)
	t.Run("pgx", func(t *testing.T) {
		e := onPostgres(t)
		e.db.Close()
		e.db = open(t, "pgx", postgresURL(t, "postgres"))
		test(t, e)
	})
}

func newTotal(t *testing.T, db *sql.DB) string {
	t.Helper()
	name := unique("race")
	execute(t, db, "CREATE TABLE IF NOT EXISTS race (name varchar(64) PRIMARY KEY, total int)",
		"INSERT INTO race VALUES ('"+name+"', 0)")
	return name
}

type queryer interface {
	QueryRow(query string, arguments ...any) *sql.Row
}

func readTotal(db queryer, name string) (total int, err error) {
	err = db.QueryRow("SELECT total FROM race WHERE name = '" + name + "'").Scan(&total)
	return total, err
}

// add reads, computes, and writes the result.
func add(tx *sql.Tx, name string) error {
	total, err := readTotal(tx, name)
	if err != nil {
		return err
	}
	runtime.Gosched()
	_, err = tx.Exec(fmt.Sprintf("UPDATE race SET total = %d WHERE name = '%s'", total+1, name))
	return err
}

// readCommitted is a transaction without a claim. At MariaDB's default level, from 11.6 on, the server itself refuses to
// change rows that were read before another client's commit.
func readCommitted(db *sql.DB, work func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	if err := work(tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

// raceLoses is how many acknowledged adds are missing after holders, each with a newer token, have raced one another.
func raceLoses(t *testing.T, e *engine, fenced bool) int {
	t.Helper()
	name := newTotal(t, e.db)
	var token, acknowledged atomic.Uint64
	var all sync.WaitGroup
	for range [racers]int{} {
		all.Add(1)
		go func() {
			defer all.Done()
			for range [turns]int{} {
				holder := fence.Token(token.Add(1))
				work := func(tx *sql.Tx) error { return add(tx, name) }
				var err error
				if fenced {
					err = e.transact(ctx, e.db, map[string]fence.Holder{name: holder}, work)
				} else {
					err = readCommitted(e.db, work)
				}
				if err == nil {
					acknowledged.Add(1)
				} else if !errors.Is(err, fence.ErrStale) {
					t.Error(err)
				}
			}
		}()
	}
	all.Wait()
	total, err := readTotal(e.db, name)
	if err != nil || acknowledged.Load() <= racers {
		t.Fatalf("%v after %d adds", err, acknowledged.Load())
	}
	return int(acknowledged.Load()) - total
}

func TestARaceThroughTransactLosesNothing(t *testing.T) {
	onEachDriver(t, func(t *testing.T, e *engine) {
		if lost := raceLoses(t, e, true); lost != 0 {
			t.Errorf("%d adds are lost", lost)
		}
		// A control: without a claim, adds are lost.
		lost := 0
		for round := 0; lost == 0 && round < 20; round++ {
			lost = raceLoses(t, e, false)
		}
		if lost == 0 {
			t.Error("the race shows nothing")
		}
	})
}

func TestTransactWritesNothingForAnOlderHolderOrAfterAnError(t *testing.T) {
	onEachDriver(t, func(t *testing.T, e *engine) {
		name, other := newTotal(t, e.db), newTotal(t, e.db)
		failed := errors.New("the work failed")
		work := func(tx *sql.Tx) error { return add(tx, name) }
		for _, one := range []struct {
			holders map[string]fence.Holder
			work    func(*sql.Tx) error
			wanted  error
		}{
			{map[string]fence.Holder{name: fence.Token(8)}, work, nil},
			{map[string]fence.Holder{name: fence.Token(7)}, work, fence.ErrStale},
			{map[string]fence.Holder{name: fence.Token(9)}, func(tx *sql.Tx) error { return errors.Join(work(tx), failed) }, failed},
			// The failed work took its claim with it.
			{map[string]fence.Holder{name: fence.Token(8)}, work, nil},
			{map[string]fence.Holder{other: fence.Token(9)}, func(*sql.Tx) error { return nil }, nil},
			{map[string]fence.Holder{name: fence.Token(8), other: fence.Token(8)}, work, fence.ErrStale},
			{map[string]fence.Holder{name: fence.Token(10), other: fence.Token(10)}, work, nil},
		} {
			if err := e.transact(ctx, e.db, one.holders, one.work); !errors.Is(err, one.wanted) {
				t.Errorf("%v: %v", one.holders, err)
			}
		}
		if total, err := readTotal(e.db, name); err != nil || total != 3 {
			t.Errorf("%d, %v", total, err)
		}
	})
}

// A plausible mistake is named, and nothing is sent.
func TestAHolderThatIsNilIsNamed(t *testing.T) {
	onEach(t, func(t *testing.T, e *engine) {
		var lease *palisade.Lease
		for _, holder := range []fence.Holder{nil, lease} {
			err := e.transact(ctx, e.db, map[string]fence.Holder{"orders": holder}, nothing)
			if err == nil || !strings.Contains(err.Error(), "was the lock acquired") {
				t.Errorf("%v", err)
			}
		}
		for _, holders := range []map[string]fence.Holder{nil, {"": fence.Token(7)}, {"orders": fence.Token(0)}} {
			if err := e.transact(ctx, e.db, holders, nothing); err == nil {
				t.Errorf("%v was claimed", holders)
			}
		}
	})
}
