// Package sqlite is the fence in SQLite, in the caller's own transaction, with any driver of database/sql:
//
//	err := sqlite.Transact(ctx, db, "orders", lease, func(tx *sql.Tx) error {
//		… // read and write: the fence is raised, and everything commits together
//	})
//
// In a transaction of your own, call Claim before the first read. If it returns an error, which may be a
// *fence.Rejection, roll back, and write nothing more.
//
// palisade fence install sqlite creates the table of the fence, in the file that has the data: holders in Rust may share it.
// SQLite ≥ 3.35 is needed.
//
// SQLite locks the file. A claim takes its one write lock, also if it begins with the driver's plain BEGIN, because its first
// statement writes. It waits for as long as busy_timeout says: set one, in the driver's way. After that the driver's error
// SQLITE_BUSY comes through: begin the same transaction again. A process that is stopped inside its transaction holds the file
// until it goes on or ends; palisade fence unblock ends it.
//
// Tables with the triggers of palisade fence install sqlite TABLE cannot be written through this package: they ask a function
// of the connection which only the Rust library registers, and SQLite refuses the statement of a connection without it.
//
// An acknowledged commit is durable with PRAGMA synchronous = FULL, SQLite's default. Do not use a network file system that
// fakes locks.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/internal/guardrow"
)

// The statements of crates/palisade-fence/src/sqlite/guard.rs. The file itself is named, because a temporary table or an
// attached file of that name would have another mark.
const (
	// It takes the write lock, whether the row exists or not; only then is the row read.
	take = "UPDATE main.palisade_fence SET updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE resource = ?" +
		" RETURNING resource, authority, lock, token, written, sequence, digest, result"
	create = "INSERT INTO main.palisade_fence (resource) VALUES (?)"
	store  = "UPDATE main.palisade_fence SET authority = ?, lock = ?, token = ?, written = ?, sequence = ?, digest = ?," +
		" result = ? WHERE resource = ?"
	record = "UPDATE main.palisade_fence SET result = ?, updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')" +
		" WHERE resource = ? AND token = ? AND sequence = ?"
)

// A Guard is the guard rows of a file under one rule.
type Guard struct{ Rule fence.Rule }

var guard = Guard{fence.Claim}

// Transact begins a transaction, claims the resource before anything is read, does the work and commits. It rolls back if
// one of them fails.
func Transact(ctx context.Context, db *sql.DB, resource string, holder fence.Holder, work func(*sql.Tx) error) error {
	return guard.Transact(ctx, db, resource, holder, work)
}

// TransactAll is like Transact, for several resources: it claims all of them or none.
func TransactAll(ctx context.Context, db *sql.DB, holders map[string]fence.Holder, work func(*sql.Tx) error) error {
	return guard.TransactAll(ctx, db, holders, work)
}

// Claim raises the fence: from the commit on, no older token is admitted at the resource.
func Claim(ctx context.Context, tx *sql.Tx, resource string, holder fence.Holder) error {
	return guard.Claim(ctx, tx, resource, holder)
}

// ClaimAll claims several resources at once: all of them or none.
func ClaimAll(ctx context.Context, tx *sql.Tx, holders map[string]fence.Holder) error {
	return guard.ClaimAll(ctx, tx, holders)
}

// Check is for a read that feeds a write, in a transaction that did not begin with a claim.
func Check(ctx context.Context, tx *sql.Tx, resource string, holder fence.Holder) error {
	_, err := guard.Do(ctx, tx, resource, holder, fence.Operation{Kind: fence.KindRead})
	return err
}

// Write is for a write with a number, which is safe to repeat: do nothing if it was carried out before.
func Write(
	ctx context.Context, tx *sql.Tx, resource string, holder fence.Holder, number fence.Number,
) (fence.Written, error) {
	return guard.Do(ctx, tx, resource, holder, fence.WriteOperation(&number))
}

// Record records the result of a numbered write, at most 65,536 bytes, in the transaction that carried it out.
func Record(
	ctx context.Context, tx *sql.Tx, resource string, holder fence.Holder, sequence uint64, result []byte,
) error {
	if err := guardrow.CheckResult(result); err != nil {
		return err
	}
	if result == nil {
		result = []byte{}
	}
	done, err := tx.ExecContext(ctx, record, result, resource, int64(holder.Token()), int64(sequence))
	if err != nil {
		return translated(err)
	}
	if rows, err := done.RowsAffected(); err == nil && rows != 1 {
		return guardrow.NotLast(resource, holder.Token(), sequence)
	}
	return nil
}

// Transact is like the package's Transact, under the guard's rule.
func (g Guard) Transact(
	ctx context.Context, db *sql.DB, resource string, holder fence.Holder, work func(*sql.Tx) error,
) error {
	return g.TransactAll(ctx, db, map[string]fence.Holder{resource: holder}, work)
}

// TransactAll is like the package's TransactAll, under the guard's rule.
func (g Guard) TransactAll(
	ctx context.Context, db *sql.DB, holders map[string]fence.Holder, work func(*sql.Tx) error,
) error {
	claim := func(tx *sql.Tx) error { return g.ClaimAll(ctx, tx, holders) }
	return guardrow.Transact(ctx, db, claim, work)
}

// Claim is like the package's Claim, under the guard's rule.
func (g Guard) Claim(ctx context.Context, tx *sql.Tx, resource string, holder fence.Holder) error {
	return g.ClaimAll(ctx, tx, map[string]fence.Holder{resource: holder})
}

// ClaimAll is like the package's ClaimAll, under the guard's rule.
func (g Guard) ClaimAll(ctx context.Context, tx *sql.Tx, holders map[string]fence.Holder) error {
	_, err := g.judge(ctx, tx, holders, fence.Operation{Kind: fence.KindClaim})
	return err
}

// Do checks any operation, and raises the fence if necessary.
func (g Guard) Do(
	ctx context.Context, tx *sql.Tx, resource string, holder fence.Holder, operation fence.Operation,
) (fence.Written, error) {
	return g.judge(ctx, tx, map[string]fence.Holder{resource: holder}, operation)
}

// judge stores nothing unless every holder is admitted.
func (g Guard) judge(
	ctx context.Context, tx *sql.Tx, holders map[string]fence.Holder, operation fence.Operation,
) (written fence.Written, err error) {
	claims, err := guardrow.InNameOrder(holders, operation)
	if err != nil {
		return written, err
	}
	raised := make([]fence.Record, len(claims))
	for at, claim := range claims {
		found, err := taken(ctx, tx, claim.Resource)
		if err != nil {
			return written, translated(err)
		}
		next, repeat, rejected := g.Rule.Decide(found, claim.Holder, operation)
		if rejected != nil {
			return written, fence.Tell(claim.Holder, claim.Resource, operation.Kind.String(), rejected)
		}
		if written.Repeat = repeat; repeat {
			written.Result = found.Result
		}
		raised[at] = next
	}
	for at, claim := range claims {
		if written.Repeat {
			break
		}
		if _, err := tx.ExecContext(ctx, store, append(guardrow.Values(raised[at]), claim.Resource)...); err != nil {
			return written, translated(err)
		}
	}
	return written, nil
}

// taken is the guard row of a resource, which is locked with the file until the transaction ends. It is created if it is
// missing.
func taken(ctx context.Context, tx *sql.Tx, resource string) (fence.Record, error) {
	var row guardrow.Row
	err := tx.QueryRowContext(ctx, take, resource).Scan(row.Columns()...)
	if errors.Is(err, sql.ErrNoRows) {
		_, err = tx.ExecContext(ctx, create, resource)
	}
	return row.Record(), err
}

func translated(err error) error {
	if strings.Contains(err.Error(), "no such table: main.palisade_fence") {
		return &guardrow.NotInstalled{Err: err, Advice: "run `palisade fence install sqlite`"}
	}
	return err
}
