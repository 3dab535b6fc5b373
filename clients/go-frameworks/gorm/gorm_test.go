// Package gormtest tests the fence of PostgreSQL in transactions of gorm.
package gormtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	driver "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"palisade.example/palisade"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/postgres"
	"palisade.example/palisade/internal/testserver"
	"palisade.example/palisade/palisadetest"
)

var (
	ctx = context.Background()
	// The address of PostgreSQL.
	server string
)

func TestMain(m *testing.M) {
	if mode := testserver.Mode(); mode != "" {
		fmt.Println(worker(mode))
		return
	}
	os.Exit(m.Run())
}

// An Order is a row that gorm reads and writes.
type Order struct {
	ID    int
	Total int
}

func open(url string, options gorm.Config) (*gorm.DB, error) {
	options.Logger = logger.Discard
	return gorm.Open(driver.Open(url), &options)
}

// newShop makes a database with the fence and a table of one order.
func newShop(t *testing.T, options gorm.Config) (url string, db *gorm.DB) {
	t.Helper()
	url = testserver.Database(t, server)
	db, err := open(url, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if pool, err := db.DB(); err == nil {
			pool.Close()
		}
	})
	if err := errors.Join(db.AutoMigrate(&Order{}), db.Exec("INSERT INTO orders VALUES (1, 0)").Error); err != nil {
		t.Fatal(err)
	}
	return url, db
}

func mustBe(t *testing.T, db *gorm.DB, wanted int) {
	t.Helper()
	var found Order
	if err := db.First(&found, 1).Error; err != nil || found.Total != wanted {
		t.Errorf("the total is %d and not %d: %v", found.Total, wanted, err)
	}
}

// add reads a row, stops if it is told to, and saves it.
func add(tx *gorm.DB, number int, stop func()) error {
	var row Order
	if err := tx.First(&row, 1).Error; err != nil {
		return err
	}
	stop()
	row.Total += number
	return tx.Save(&row).Error
}

func fenced(ctx context.Context, db *gorm.DB, holder fence.Holder, work func(*gorm.DB) error) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := postgres.Claim(ctx, tx.Statement.ConnPool, "orders", holder); err != nil {
			return err
		}
		return work(tx)
	})
}

func on() {}

// A late holder's process is stopped after its check, and before anything is sent.
type late struct{ *palisade.Lease }

func (l late) Check() error {
	err := l.Lease.Check()
	testserver.StopHere()
	return err
}

func worker(mode string) string {
	client, err := palisade.New(palisade.Endpoints(os.Getenv("SERVER")))
	if err != nil {
		return err.Error()
	}
	lease, err := client.Lock(ctx, "orders", palisade.TTL(2*time.Second))
	if err != nil {
		return err.Error()
	}
	db, err := open(os.Getenv("SHOP"), gorm.Config{})
	if err != nil {
		return err.Error()
	}
	if mode == "bare" {
		err = db.Transaction(func(tx *gorm.DB) error { return add(tx, 10, testserver.StopHere) })
	} else {
		err = fenced(ctx, db, late{lease}, func(tx *gorm.DB) error { return add(tx, 10, on) })
	}
	switch {
	case err == nil:
		return "written"
	case errors.Is(err, fence.ErrStale):
		return "stale"
	}
	return err.Error()
}

func TestGorm(t *testing.T) {
	url, end := testserver.Postgres(t)
	defer end()
	server = url
	for _, options := range []gorm.Config{{}, {PrepareStmt: true}, {SkipDefaultTransaction: true}} {
		t.Run(fmt.Sprintf("prepared %v, skip %v", options.PrepareStmt, options.SkipDefaultTransaction), func(t *testing.T) {
			_, db := newShop(t, options)
			refusals(t, db)
		})
	}
	t.Run("stopped", aStoppedHolderLosesNothing)
}

func refusals(t *testing.T, db *gorm.DB) {
	locks := palisadetest.NewServer()
	client, err := locks.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := order(ctx, client, db); err != nil {
		t.Fatal(err)
	}
	lease, err := client.Lock(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	saves := func(tx *gorm.DB) error { return add(tx, 1, on) }
	if err := fenced(ctx, db, lease, saves); err != nil {
		t.Fatal(err)
	}
	// A transaction inside of it is a savepoint, and a claim there is harmless.
	err = fenced(ctx, db, lease, func(tx *gorm.DB) error { return fenced(ctx, tx, lease, saves) })
	if err != nil {
		t.Fatal(err)
	}
	// The pool in place of the transaction would guard nothing.
	if err := postgres.Claim(ctx, db.Statement.ConnPool, "orders", lease); err == nil || !strings.Contains(err.Error(), "claim in it") {
		t.Error(err)
	}
	newer := fence.NewPass(lease.Token()+5, lease.Authority(), "orders")
	if err := fenced(ctx, db, newer, func(*gorm.DB) error { return nil }); err != nil {
		t.Fatal(err)
	}
	err = fenced(ctx, db, lease, saves)
	var rejection *fence.Rejection
	if !errors.Is(err, fence.ErrStale) || !errors.As(err, &rejection) || rejection.Highest != newer.Token() {
		t.Error(err)
	}
	// The lease is lost in the transaction, and its context has ended: gorm rolls back.
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	err = client.With(ctx, "other", func(ctx context.Context, other *palisade.Lease) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			if err := postgres.Claim(ctx, tx.Statement.ConnPool, "other", other); err != nil {
				return err
			}
			if err := saves(tx); err != nil {
				return err
			}
			locks.Expire("other")
			<-ctx.Done()
			return saves(tx)
		})
	}, palisade.TTL(3*time.Second))
	if !errors.Is(err, palisade.ErrLost) {
		t.Error(err)
	}
	mustBe(t, db, 3)
}

// A holder is stopped past its lease, and the next one writes. Without the fence, that acknowledged write is lost.
func aStoppedHolderLosesNothing(t *testing.T) {
	locks := testserver.Serve(t)
	client, err := palisade.New(palisade.Endpoints(locks.URL))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for mode, wanted := range map[string]struct {
		outcome string
		total   int
	}{"bare": {"written", 10}, "late": {"stale", 7}} {
		shop, db := newShop(t, gorm.Config{})
		stopped := testserver.StartWorker(t, mode, "SERVER="+locks.URL, "SHOP="+shop)
		stopped.AwaitStop(t)
		err := client.With(ctx, "orders", func(ctx context.Context, lease *palisade.Lease) error {
			return fenced(ctx, db, lease, func(tx *gorm.DB) error { return add(tx, 7, on) })
		})
		if err != nil {
			t.Fatal(err)
		}
		stopped.Continue(t)
		if outcome := stopped.Line(t); outcome != wanted.outcome {
			t.Errorf("%s: %q and not %q", mode, outcome, wanted.outcome)
		}
		mustBe(t, db, wanted.total)
	}
}

func TestThePageHasTheseExamples(t *testing.T) {
	testserver.CheckPage(t, "example_test.go", "gorm")
}
