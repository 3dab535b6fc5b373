// Package postgres is the fence in PostgreSQL, in the caller's own transaction, with any driver of database/sql:
//
//	err := postgres.Transact(ctx, db, "orders", lease, func(tx *sql.Tx) error {
//		… // read and write: the fence is raised, and everything commits together
//	})
//
// In a transaction of your own, call Claim before the first read. If it returns an error, which may be a
// *fence.Rejection, roll back.
//
// palisade fence install postgres creates the tables of the fence. A claim must be the first statement of its
// transaction. Serialization failures and deadlocks come through as the driver's errors: begin the same transaction again.
//
// After a rejection roll back, and write nothing more. An error of one of your own statements may be that of a sticky
// trigger: Rejected tells.
package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/internal/guardrow"
)

// The functions of crates/palisade-fence/sql/postgres/0004_functions.sql decide. Lists are given as the text of an array,
// which every driver can send.
const (
	// In the order of the lists, which is that of the names, so that no two transactions wait for each other.
	// If this program stops inside the transaction, the database ends it when the lease is over. Your own setting is first.
	claimAll = "WITH bound AS (SELECT set_config('palisade.lease_left_ms'," +
		" coalesce(nullif(current_setting('palisade.lease_left_ms', true), ''), $7::text, ''), true)) SELECT palisade_claim(c.resource, c.token::bigint, c.authority, c.lock, $5, $6)" +
		" FROM bound, unnest($1::text::text[], $2::text::text[], $3::text::text[], $4::text::text[])" +
		" AS c (resource, token, authority, lock)"

	check = "SELECT palisade_check($1, $2, $3, $4, $5, $6)"

	write = "SELECT repeated, result FROM palisade_write($1, $2, $7, $8, $3, $4, $5, $6)"

	record = "SELECT palisade_record($1, $2, $3, $4)"
)

// ErrReadBeforeClaim: the transaction read data before it claimed, and the data may have changed since. Roll back, and
// claim first.
var ErrReadBeforeClaim = errors.New("palisade: the transaction read before it claimed: claim first")

// A Tx is a transaction: a *sql.Tx, or what a framework has in its place, such as gorm's tx.Statement.ConnPool. It has a method
// Commit() error; a pool and a connection have none, and are refused.
type Tx interface {
	ExecContext(ctx context.Context, query string, arguments ...any) (sql.Result, error)
}

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
func Claim(ctx context.Context, tx Tx, resource string, holder fence.Holder) error {
	return guard.Claim(ctx, tx, resource, holder)
}

// ClaimAll claims several resources at once, in the order of their names: all of them or none.
func ClaimAll(ctx context.Context, tx Tx, holders map[string]fence.Holder) error {
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
	_, err := tx.ExecContext(ctx, record, resource, int64(sequence), result, int64(holder.Token()))
	if state, _ := stateOf(err); state == "PF004" {
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
	claim := func(tx *sql.Tx) error { return g.ClaimAll(ctx, tx, holders) }
	return guardrow.Transact(ctx, db, claim, work)
}

// Claim is like the package's Claim, under the guard's rule.
func (g Guard) Claim(ctx context.Context, tx Tx, resource string, holder fence.Holder) error {
	return g.ClaimAll(ctx, tx, map[string]fence.Holder{resource: holder})
}

// ClaimAll is like the package's ClaimAll, under the guard's rule.
func (g Guard) ClaimAll(ctx context.Context, tx Tx, holders map[string]fence.Holder) error {
	// A claim on a pool or a connection would commit by itself, and guard nothing.
	if _, isOne := tx.(interface{ Commit() error }); !isOne {
		return errors.New("palisade: a claim needs a transaction, and this is a pool or a connection: begin one, and claim in it")
	}
	claims, err := guardrow.InNameOrder(holders, fence.Operation{})
	if err != nil {
		return err
	}
	var lists [4][]any
	for _, one := range claims {
		for at, value := range arguments(one) {
			lists[at] = append(lists[at], value)
		}
	}
	given := []any{array(lists[0]), array(lists[1]), array(lists[2]), array(lists[3])}
	left, known := guardrow.LeaseLeft(claims)
	given = append(append(given, g.arguments()...), guardrow.OrNull(known, strconv.FormatInt(left, 10)))
	_, err = tx.ExecContext(ctx, claimAll, given...)
	refused := claims[0]
	if len(claims) > 1 {
		resource := fieldOf(err, "ConstraintName", "Constraint")
		for _, one := range claims {
			if one.Resource == resource {
				refused = one
			}
		}
	}
	return fence.Tell(refused.Holder, refused.Resource, fence.KindClaim.String(), translated(err))
}

// Do checks any operation, and raises the fence if necessary. A claim comes first in its transaction, as by Claim.
func (g Guard) Do(
	ctx context.Context, tx *sql.Tx, resource string, holder fence.Holder, operation fence.Operation,
) (fence.Written, error) {
	claims, err := guardrow.InNameOrder(map[string]fence.Holder{resource: holder}, operation)
	if err != nil {
		return fence.Written{}, err
	}
	given := append(arguments(claims[0]), g.arguments()...)
	var written fence.Written
	switch operation.Kind {
	case fence.KindClaim:
		return written, g.Claim(ctx, tx, resource, holder)
	case fence.KindRead:
		_, err = tx.ExecContext(ctx, check, given...)
	case fence.KindWrite:
		given = append(given,
			guardrow.OrNull(operation.Numbered, int64(operation.Sequence)),
			guardrow.OrNull(operation.HasDigest, int64(operation.Digest)))
		err = tx.QueryRowContext(ctx, write, given...).Scan(&written.Repeat, &written.Result)
	}
	return written, fence.Tell(holder, resource, operation.Kind.String(), translated(err))
}

// arguments are the first four of every function: resource, token, authority and lock.
func arguments(claim guardrow.Claim) []any {
	authority, lock := claim.Holder.Authority(), claim.Holder.Name()
	return []any{
		claim.Resource, int64(claim.Holder.Token()),
		guardrow.OrNull(authority != "", authority), guardrow.OrNull(lock != "", lock),
	}
}

// arguments are strict and max_jump.
func (g Guard) arguments() []any {
	return []any{g.Rule.Strict, guardrow.OrNull(g.Rule.MaxJump != 0, int64(g.Rule.MaxJump))}
}

// array writes a list as PostgreSQL reads it.
func array(values []any) string {
	quoted := make([]string, len(values))
	for at, value := range values {
		quoted[at] = "NULL"
		if value != nil {
			quoted[at] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(fmt.Sprint(value)) + `"`
		}
	}
	return "{" + strings.Join(quoted, ",") + "}"
}

// Rejected returns the rejection if the fence refused one of your own statements: a sticky trigger, or a function that you
// called yourself. It understands the errors of lib/pq and pgx.
func Rejected(err error) (*fence.Rejection, bool) {
	state, detail := stateOf(err)
	number := func(text string) uint64 {
		n, _ := strconv.ParseUint(text, 10, 64)
		return n
	}
	switch state {
	case "PF001":
		said, _, _ := strings.Cut(err.Error(), " is stale: ")
		token := said[strings.LastIndexByte(said, ' ')+1:]
		return &fence.Rejection{Code: "stale", Token: number(token), Highest: number(detail)}, true
	case "PF002":
		return &fence.Rejection{Code: "tokenless", Highest: number(detail)}, true
	case "PF005":
		return &fence.Rejection{Code: "wrong_authority", Authority: detail}, true
	case "PF006":
		return &fence.Rejection{Code: "wrong_lock", Lock: detail}, true
	case "PF007":
		highest, bound, _ := strings.Cut(detail, " ")
		return &fence.Rejection{Code: "jump", Highest: number(highest), Bound: number(bound)}, true
	case "PF008":
		return &fence.Rejection{Code: "sequence_stale", Last: number(detail)}, true
	case "PF009":
		return &fence.Rejection{Code: "sequence_reused", Last: number(detail)}, true
	case "PF010":
		return &fence.Rejection{Code: "already_written"}, true
	}
	return nil, false
}

// A driverError is that of either driver, without depending on it: both have the method SQLState, and the field Detail.
type driverError interface {
	error
	SQLState() string
}

func stateOf(err error) (state, detail string) {
	var told driverError
	if !errors.As(err, &told) {
		return "", ""
	}
	return told.SQLState(), fieldOf(err, "Detail")
}

// fieldOf is the first of these fields that the driver's error has; "" if it has none.
func fieldOf(err error, names ...string) string {
	var told driverError
	if !errors.As(err, &told) {
		return ""
	}
	value := reflect.Indirect(reflect.ValueOf(told))
	if value.Kind() != reflect.Struct {
		return ""
	}
	for _, name := range names {
		if field := value.FieldByName(name); field.IsValid() && field.Kind() == reflect.String {
			return field.String()
		}
	}
	return ""
}

// translated turns the fence's errors into a *fence.Rejection; other errors are the driver's.
func translated(err error) error {
	if rejection, ok := Rejected(err); ok {
		return rejection
	}
	if state, _ := stateOf(err); state == "PF012" {
		return fmt.Errorf("%w (%v)", ErrReadBeforeClaim, err)
	}
	const undefinedTable, undefinedFunction = "42P01", "42883"
	state, _ := stateOf(err)
	if (state == undefinedTable || state == undefinedFunction) && strings.Contains(err.Error(), "palisade_") {
		return &guardrow.NotInstalled{Err: err, Advice: "run `palisade fence install postgres`"}
	}
	return err
}
