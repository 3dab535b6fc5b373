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
	"reflect"
	"strconv"
	"strings"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/internal/guardrow"
)

// The statements of the Rust fence (crates/palisade-fence/src/postgres/guard.rs). Lists are given as the text of an array,
// which every driver can send. Every operation writes the guard row, even when nothing changes: with only a lock, a waiting
// transaction at REPEATABLE READ would go on with an outdated view.
const (
	take = `WITH claims AS MATERIALIZED (
    SELECT resource FROM palisade_fence WHERE resource = ANY($1::text::text[])
        AND (SELECT count(*) FROM palisade_fence WHERE resource = ANY($1::text::text[])) = cardinality($1::text::text[])
    ORDER BY resource FOR UPDATE)
UPDATE palisade_fence AS g SET updated_at = clock_timestamp() FROM claims WHERE g.resource = claims.resource
RETURNING g.resource::text, g.authority::text, g.lock::text, g.token, g.written, g.sequence, g.digest, g.result,
    set_config('palisade.tokens', (coalesce(nullif(current_setting('palisade.tokens', true), ''), '{}')::jsonb
        || jsonb_object($1::text::text[], $2::text::text[]))::text, true)`

	create = `INSERT INTO palisade_fence (resource)
SELECT name FROM unnest($1::text::text[]) AS name ORDER BY name COLLATE "C" ON CONFLICT (resource) DO NOTHING`

	store = `UPDATE palisade_fence SET authority = $2, lock = $3, token = $4, written = $5, sequence = $6, digest = $7,
    result = $8, updated_at = clock_timestamp() WHERE resource = $1`

	record = `UPDATE palisade_fence SET result = $4, updated_at = clock_timestamp()
WHERE resource = $1 AND token = $2 AND sequence = $3`

	forget = `SELECT set_config('palisade.tokens', '', true)`
)

// A Guard is the guard rows of a database under one rule.
type Guard struct{ Rule fence.Rule }

var guard = Guard{fence.Claim}

// Transact begins a transaction, claims the resource, does the work and commits. It rolls back if one of them fails.
func Transact(ctx context.Context, db *sql.DB, resource string, holder fence.Holder, work func(*sql.Tx) error) error {
	claim := func(tx *sql.Tx) error { return Claim(ctx, tx, resource, holder) }
	return guardrow.Transact(ctx, db, claim, work)
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
	done, err := tx.ExecContext(ctx, record, resource, int64(holder.Token()), int64(sequence), result)
	if err != nil {
		return translated(err)
	}
	if rows, err := done.RowsAffected(); err != nil || rows != 1 {
		return guardrow.NotLast(resource, holder.Token(), sequence)
	}
	return nil
}

// Claim is as the function of that name, under the guard's rule.
func (g Guard) Claim(ctx context.Context, tx *sql.Tx, resource string, holder fence.Holder) error {
	return g.ClaimAll(ctx, tx, map[string]fence.Holder{resource: holder})
}

// ClaimAll is as the function of that name, under the guard's rule.
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

func (g Guard) judge(
	ctx context.Context, tx *sql.Tx, holders map[string]fence.Holder, operation fence.Operation,
) (fence.Written, error) {
	claims, err := guardrow.InNameOrder(holders, operation)
	if err != nil {
		return fence.Written{}, err
	}
	before, err := rows(ctx, tx, claims)
	if err != nil {
		return fence.Written{}, translated(err)
	}
	next, answer, rejected := guardrow.DecideAll(g.Rule, claims, before, operation)
	if rejected != nil {
		if _, err := tx.ExecContext(ctx, forget); err != nil {
			return fence.Written{}, err
		}
		return fence.Written{}, rejected
	}
	for _, claim := range claims {
		changed := next[claim.Resource]
		if reflect.DeepEqual(changed, before[claim.Resource]) {
			continue
		}
		if _, err := tx.ExecContext(ctx, store, append([]any{claim.Resource}, guardrow.Values(changed)...)...); err != nil {
			return fence.Written{}, err
		}
	}
	return answer, nil
}

// rows locks the rows of these resources until the transaction ends, and creates missing ones.
func rows(ctx context.Context, tx *sql.Tx, claims []guardrow.Claim) (map[string]fence.Record, error) {
	names, tokens := make([]string, len(claims)), make([]string, len(claims))
	for at, claim := range claims {
		names[at], tokens[at] = claim.Resource, strconv.FormatUint(claim.Holder.Token(), 10)
	}
	found, err := taken(ctx, tx, array(names), array(tokens))
	if err != nil || len(found) == len(claims) {
		return found, err
	}
	if _, err := tx.ExecContext(ctx, create, array(names)); err != nil {
		return nil, err
	}
	found, err = taken(ctx, tx, array(names), array(tokens))
	if err == nil && len(found) < len(claims) {
		err = &guardrow.NotInstalled{Err: errors.New("a guard row vanished"), Advice: "is row level security hiding it?"}
	}
	return found, err
}

func taken(ctx context.Context, tx *sql.Tx, names, tokens string) (map[string]fence.Record, error) {
	answer, err := tx.QueryContext(ctx, take, names, tokens)
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	found := map[string]fence.Record{}
	for answer.Next() {
		var row guardrow.Row
		var settings string
		if err := answer.Scan(append(row.Columns(), &settings)...); err != nil {
			return nil, err
		}
		found[row.Resource] = row.Record()
	}
	return found, answer.Err()
}

// array writes a list as PostgreSQL reads it.
func array(values []string) string {
	quoted := make([]string, len(values))
	for at, value := range values {
		quoted[at] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}

// Rejected returns the rejection if a sticky trigger refused one of your own statements. It understands the errors of
// lib/pq and pgx.
func Rejected(err error) (*fence.Rejection, bool) {
	state, detail := stateOf(err)
	highest, _ := strconv.ParseUint(detail, 10, 64)
	switch state {
	case "PF001":
		return &fence.Rejection{Code: "stale", Highest: highest}, true
	case "PF002":
		return &fence.Rejection{Code: "tokenless", Highest: highest}, true
	}
	return nil, false
}

// stateOf reads an error of either driver without depending on it: both have the method SQLState, and the field Detail.
func stateOf(err error) (state, detail string) {
	var told interface {
		error
		SQLState() string
	}
	if !errors.As(err, &told) {
		return "", ""
	}
	value := reflect.Indirect(reflect.ValueOf(told))
	if value.Kind() == reflect.Struct {
		if field := value.FieldByName("Detail"); field.IsValid() && field.Kind() == reflect.String {
			detail = field.String()
		}
	}
	return told.SQLState(), detail
}

func translated(err error) error {
	const undefinedTable = "42P01"
	if state, _ := stateOf(err); state == undefinedTable && strings.Contains(err.Error(), "palisade_fence") {
		return &guardrow.NotInstalled{Err: err, Advice: "run `palisade fence install postgres`"}
	}
	return err
}
