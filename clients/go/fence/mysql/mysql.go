// Package mysql is the fence in MySQL and MariaDB, in the caller's own transaction, through database/sql:
//
//	err := mysql.Transact(ctx, db, "orders", lease, func(tx *sql.Tx) error {
//		… // read and write: the fence is raised, and everything commits together
//	})
//
// In a transaction of your own, call Claim before the first read. If it returns an error, which may be a
// *fence.Rejection, roll back.
//
// palisade fence install mysql creates the tables of the fence and the procedures that decide. All tables must be InnoDB, and a statement that commits
// implicitly (CREATE, ALTER, TRUNCATE, LOCK TABLES) ends a transaction unnoticed.
//
// A claim must be the first statement of its transaction: at REPEATABLE READ, the default, later reads show what the first
// one saw. If the transaction has read before, and a claim finds that the resource has changed since, it returns
// ErrReadBeforeClaim. Deadlocks, lock timeouts and error 1615 (routines were replaced) come through as the driver's errors:
// begin again.
//
// MariaDB ends a transaction of a claim that stays idle for 10 seconds, or for longer than the rest of the lease. That
// bound is the session's, and Transact gives the connection its own one back. In a transaction of your own do the same with
// CALL palisade_end(TRUE), or FALSE to roll back, before tx.Commit or tx.Rollback.
//
// For the triggers of sticky tables a claim leaves the token in the session variable @palisade_tokens, where it stays
// until the connection claims again. A token that has become stale is refused even so.
package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/internal/guardrow"
)

// ErrReadBeforeClaim: the transaction read data before it claimed, and the data has changed since. Roll back, and claim
// first.
var ErrReadBeforeClaim = errors.New("palisade: the transaction read before it claimed: claim first")

// The procedures of crates/palisade-fence/sql/mysql/0004_procedures.sql decide.
const (
	// Resource, token, authority, lock, whether it is a write, sequence, digest, strict, max_jump.
	judge = "CALL palisade_judge(?, ?, ?, ?, ?, ?, ?, ?, ?)"
	// The owner of the last rejection's resource: the whole name does not fit into a message.
	bound  = "SELECT @palisade_bound"
	forget = "CALL palisade_forget(?)"

	// A statement of our own would need the right to change the table, and with it to lower a fence.
	record = "CALL palisade_record_for(?, ?, ?, ?)"

	// They commit and roll back: between that and another statement this program could stop with the wrong bound.
	commit, rollback = "CALL palisade_end(TRUE)", "CALL palisade_end(FALSE)"
)

// A Guard is the guard rows of a database under one rule.
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
	_, err := tx.ExecContext(ctx, record, resource, int64(holder.Token()), int64(sequence), result)
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "this is not the number of the last write"):
		return guardrow.NotLast(resource, holder.Token(), sequence)
	}
	return translated(err)
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
	connection, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer connection.Close()
	// If ctx ends, database/sql would roll back with a plain ROLLBACK, which leaves the bound.
	unending := context.WithoutCancel(ctx)
	tx, err := connection.BeginTx(unending, nil)
	if err != nil {
		return err
	}
	committed := false
	defer func() {
		if committed {
			return
		}
		_ = tx.Rollback()
		if _, err := connection.ExecContext(unending, rollback); err != nil {
			// The pool closes a connection with another one's bound.
			_ = connection.Raw(func(any) error { return driver.ErrBadConn })
		}
	}()
	if err := g.ClaimAll(ctx, tx, holders); err != nil {
		return err
	}
	if err := work(tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, commit); err != nil {
		return translated(err)
	}
	committed = true
	return tx.Commit()
}

// Claim is like the package's Claim, under the guard's rule.
func (g Guard) Claim(ctx context.Context, tx *sql.Tx, resource string, holder fence.Holder) error {
	return g.ClaimAll(ctx, tx, map[string]fence.Holder{resource: holder})
}

// ClaimAll is like the package's ClaimAll, under the guard's rule.
func (g Guard) ClaimAll(ctx context.Context, tx *sql.Tx, holders map[string]fence.Holder) error {
	operation := fence.Operation{Kind: fence.KindClaim}
	claims, err := guardrow.InNameOrder(holders, operation)
	if err != nil {
		return err
	}
	if left, known := guardrow.LeaseLeft(claims); known {
		// If this program stops inside the transaction, MariaDB ends it when the lease is over.
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("SET @palisade_lease_left_ms = %d", left)); err != nil {
			return err
		}
	}
	if len(claims) > 1 {
		if _, err := tx.ExecContext(ctx, "SAVEPOINT palisade_claims"); err != nil {
			return err
		}
	}
	for at, claim := range claims {
		_, err := g.judge(ctx, tx, claim, operation)
		if err == nil {
			continue
		}
		if _, rejected := err.(*fence.Rejection); rejected && len(claims) > 1 {
			if _, err := tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT palisade_claims"); err != nil {
				return err
			}
			// A savepoint has no session variables: the connection would go on to show these tokens.
			for _, admitted := range claims[:at] {
				if _, err := tx.ExecContext(ctx, forget, admitted.Resource); err != nil {
					return err
				}
			}
		}
		return err
	}
	return nil
}

// Do checks any operation, and raises the fence if necessary. A claim comes first in its transaction, as by Claim.
func (g Guard) Do(
	ctx context.Context, tx *sql.Tx, resource string, holder fence.Holder, operation fence.Operation,
) (fence.Written, error) {
	if operation.Kind == fence.KindClaim {
		return fence.Written{}, g.Claim(ctx, tx, resource, holder)
	}
	claims, err := guardrow.InNameOrder(map[string]fence.Holder{resource: holder}, operation)
	if err != nil {
		return fence.Written{}, err
	}
	return g.judge(ctx, tx, claims[0], operation)
}

func (g Guard) judge(
	ctx context.Context, tx *sql.Tx, claim guardrow.Claim, operation fence.Operation,
) (written fence.Written, err error) {
	authority, lock := claim.Holder.Authority(), claim.Holder.Name()
	isWrite := operation.Kind == fence.KindWrite
	arguments := []any{
		claim.Resource, int64(claim.Holder.Token()),
		guardrow.OrNull(authority != "", authority), guardrow.OrNull(lock != "", lock),
		isWrite,
		guardrow.OrNull(isWrite && operation.Numbered, int64(operation.Sequence)),
		guardrow.OrNull(isWrite && operation.HasDigest, int64(operation.Digest)),
		g.Rule.Strict, guardrow.OrNull(g.Rule.MaxJump != 0, int64(g.Rule.MaxJump)),
	}
	if isWrite {
		err = tx.QueryRowContext(ctx, judge, arguments...).Scan(&written.Repeat, &written.Result)
	} else {
		_, err = tx.ExecContext(ctx, judge, arguments...)
	}
	if err == nil {
		return written, nil
	}
	if strings.Contains(err.Error(), "has read before it claimed") {
		return fence.Written{}, fmt.Errorf("%w (%s)", ErrReadBeforeClaim, claim.Resource)
	}
	rejection, rejected := Rejected(err)
	if !rejected {
		return fence.Written{}, translated(err)
	}
	for code, name := range map[string]*string{"wrong_authority": &rejection.Authority, "wrong_lock": &rejection.Lock} {
		if rejection.Code == code {
			if err := tx.QueryRowContext(ctx, bound).Scan(name); err != nil {
				return fence.Written{}, err
			}
		}
	}
	return fence.Written{}, fence.Tell(claim.Holder, claim.Resource, operation.Kind.String(), rejection)
}

// rejections are the messages of the procedures and triggers, with the code of each, and where the numbers go that it has.
// Older drivers do not tell the SQLSTATE.
var rejections = []struct {
	words, code string
	numbers     func(*fence.Rejection) []*uint64
}{
	{"give up, roll back, write nothing more: token ", "stale", tokens},
	{"fenced, and this write carries no fencing token; the highest is ", "tokenless", highest},
	{"the resource belongs to another authority: ", "wrong_authority", nothing},
	{"the resource belongs to another lock: ", "wrong_lock", nothing},
	{"no token is believed more than ", "jump", func(r *fence.Rejection) []*uint64 { return []*uint64{&r.Bound, &r.Highest} }},
	{"another write of this grant has the sequence number ", "sequence_reused", last},
	{"a later write of this grant was carried out: drop this one; the last is ", "sequence_stale", last},
	{"there was already a write under this token", "already_written", nothing},
}

// tokens: "token 33 is stale: 33 < 34".
func tokens(r *fence.Rejection) []*uint64  { return []*uint64{&r.Token, &r.Token, &r.Highest} }
func highest(r *fence.Rejection) []*uint64 { return []*uint64{&r.Highest} }
func last(r *fence.Rejection) []*uint64    { return []*uint64{&r.Last} }
func nothing(*fence.Rejection) []*uint64   { return nil }

// Rejected returns the rejection if a procedure of the fence, or a sticky trigger, refused one of your own statements. For
// wrong_authority and wrong_lock the name is in @palisade_bound.
func Rejected(err error) (*fence.Rejection, bool) {
	if err == nil {
		return nil, false
	}
	for _, one := range rejections {
		_, rest, found := strings.Cut(err.Error(), one.words)
		if !found {
			continue
		}
		rejection := &fence.Rejection{Code: one.code}
		words := strings.FieldsFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
		for at, number := range one.numbers(rejection) {
			if at < len(words) {
				*number, _ = strconv.ParseUint(words[at], 10, 64)
			}
		}
		return rejection, true
	}
	return nil, false
}

func translated(err error) error {
	text := err.Error()
	if !strings.Contains(text, "palisade_") {
		return err
	}
	switch {
	case strings.HasPrefix(text, "Error 1146"):
		return &guardrow.NotInstalled{Err: err, Advice: "run `palisade fence install mysql`"}
	case strings.HasPrefix(text, "Error 1305"):
		return &guardrow.NotInstalled{Err: err, Advice: "it was never installed, or by an older version: run `palisade fence install mysql`"}
	case strings.HasPrefix(text, "Error 1370"):
		return fmt.Errorf("palisade: %w; the user needs the right to call the fence: GRANT EXECUTE ON the database", err)
	}
	return err
}
