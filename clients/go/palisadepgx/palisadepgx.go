// Package palisadepgx is the fence in PostgreSQL for pgx, in a transaction of its own or of the caller's:
//
//	err := palisadepgx.Transact(ctx, pool, "orders", lease, func(tx pgx.Tx) error {
//		… // read and write: the fence is raised, and everything commits together
//	})
//
// palisade fence install postgres creates the tables of the fence. The rules are those of package
// palisade.example/palisade/fence/postgres, which is for database/sql.
//
// A refusal is a *fence.Rejection, and pgx's *pgconn.PgError is in its chain: errors.As finds either. For a statement outside
// of Transact, postgres.Rejected tells.
package palisadepgx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"palisade.example/palisade"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/postgres"
)

// A rollback is given up after this time: then pgx closes the connection, and the database rolls back by itself.
const rollbackTime = 5 * time.Second

// A Beginner begins transactions: a *pgxpool.Pool or a *pgx.Conn.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Transact begins a transaction, claims the resource before anything is read, does the work and commits. It rolls back if
// one of them fails or panics, or if ctx ends before the commit.
//
// An error of the work that is a refusal of the fence, perhaps by a trigger, is a *fence.Rejection, too. If the lease was lost
// meanwhile, any error is palisade.ErrLost, too.
// An error of the commit itself may mean that it happened: the connection broke before the answer.
func Transact(ctx context.Context, db Beginner, resource string, holder fence.Holder, work func(pgx.Tx) error) error {
	return TransactAll(ctx, db, map[string]fence.Holder{resource: holder}, work)
}

// TransactAll is like Transact, for several resources: it claims all of them or none.
func TransactAll(ctx context.Context, db Beginner, holders map[string]fence.Holder, work func(pgx.Tx) error) error {
	if db == nil || work == nil {
		return errors.New("palisade: the pool or the work is nil: a *pgxpool.Pool and a function are needed")
	}
	if _, isTx := db.(pgx.Tx); isTx {
		return errors.New("palisade: Transact begins a transaction, and this is one already: give it the pool, or Claim first in it")
	}
	for _, holder := range holders {
		if err := fence.CheckHolder(holder); err != nil {
			return err // No connection is taken for a lease that is lost.
		}
	}
	return about(holders, transact(ctx, db, holders, work))
}

func transact(ctx context.Context, db Beginner, holders map[string]fence.Holder, work func(pgx.Tx) error) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("palisade: no transaction was begun, and nothing is written: %w", err)
	}
	defer func() {
		// With the caller's context, which may have ended, pgx would close the connection.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTime)
		defer cancel()
		_ = tx.Rollback(ctx) // After a commit this does nothing.
	}()
	if err := ClaimAll(ctx, tx, holders); err != nil {
		return err
	}
	if err := work(tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err // pgx would close the connection.
	}
	return tx.Commit(ctx)
}

// about adds why the lease is lost, if it is: the error may be that of a context that ended with it, or of a transaction that
// the database ended.
func about(holders map[string]fence.Holder, err error) error {
	err = explained(err)
	if err == nil || errors.Is(err, fence.ErrRejected) || errors.Is(err, palisade.ErrLost) {
		return err
	}
	for _, holder := range holders {
		if lost := fence.CheckHolder(holder); lost != nil {
			return fmt.Errorf("%w; the transaction: %w", lost, err)
		}
	}
	return err
}

// Claim raises the fence in a transaction of your own: from the commit on, no older token is admitted at the resource. It
// comes first in its transaction. After an error roll back.
func Claim(ctx context.Context, tx pgx.Tx, resource string, holder fence.Holder) error {
	return ClaimAll(ctx, tx, map[string]fence.Holder{resource: holder})
}

// ClaimAll claims several resources at once: all of them or none.
func ClaimAll(ctx context.Context, tx pgx.Tx, holders map[string]fence.Holder) error {
	if tx == nil {
		return errors.New("palisade: a claim needs a transaction, and this one is nil")
	}
	claimed := &claiming{tx: tx}
	err := postgres.ClaimAll(ctx, claimed, holders)
	if rejection := (*fence.Rejection)(nil); errors.As(err, &rejection) {
		return &refused{rejection, claimed.err}
	}
	return err
}

// explained adds the rejection to pgx's error.
func explained(err error) error {
	if rejection, ok := postgres.Rejected(err); ok && !errors.Is(err, fence.ErrRejected) {
		return &refused{rejection, err}
	}
	return err
}

// A claiming is a transaction of pgx as package postgres knows one.
type claiming struct {
	tx  pgx.Tx
	err error
}

func (c *claiming) ExecContext(ctx context.Context, query string, arguments ...any) (sql.Result, error) {
	tag, err := c.tx.Exec(ctx, query, arguments...)
	c.err = err
	return driver.RowsAffected(tag.RowsAffected()), err
}

// Commit is what package postgres knows a transaction by.
func (c *claiming) Commit() error { return c.tx.Commit(context.Background()) }

// A refused is a rejection with the driver's error.
type refused struct {
	*fence.Rejection
	driver error
}

func (r *refused) Unwrap() []error { return []error{r.Rejection, r.driver} }
