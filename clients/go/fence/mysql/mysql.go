// Package mysql is the fence in MySQL and MariaDB, in the caller's own transaction, through database/sql:
//
//	err := mysql.Transact(ctx, db, "orders", lease, func(tx *sql.Tx) error {
//		… // read and write: the fence is raised, and everything commits together
//	})
//
// In a transaction of your own, call Claim before the first read. If it returns an error, which may be a
// *fence.Rejection, roll back.
//
// The tables of the fence are in crates/palisade-fence/sql/mysql. All tables must be InnoDB, and a statement that commits
// implicitly (CREATE, ALTER, TRUNCATE, LOCK TABLES) ends a transaction unnoticed.
//
// A claim must be the first statement of its transaction: at REPEATABLE READ, the default, later reads show what the first
// one saw. If the transaction has read before, and a claim finds that the resource has changed since, it returns
// ErrReadBeforeClaim. Deadlocks and lock timeouts come through as the driver's errors: begin again.
//
// For the triggers of sticky tables a claim leaves the token in the session variable @palisade_tokens, where it stays
// until the connection claims again. A token that has become stale is refused even so.
package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/internal/guardrow"
)

// ErrReadBeforeClaim: the transaction had read before it claimed, and what it read has changed since. Roll back, and
// claim first.
var ErrReadBeforeClaim = errors.New("palisade: the transaction read before it claimed: claim first")

// The statements of the Rust fence (crates/palisade-fence/src/mysql/guard.rs).
const (
	// Locks the rows in the order of the list, and creates missing ones. Existing rows are not changed: the snapshot
	// must still show the previous holder.
	lock    = "INSERT INTO palisade_fence (resource) VALUES "
	lockEnd = " ON DUPLICATE KEY UPDATE rearmed = palisade_fence.rearmed"

	// The rows as they are, and their versions as this transaction's plain reads see them.
	read = "SELECT g.resource, g.authority, g.`lock`, g.token, g.written, g.sequence, g.digest, g.result, g.version," +
		" (SELECT s.version FROM palisade_fence s WHERE s.resource = g.resource), @palisade_tokens" +
		" FROM palisade_fence g WHERE g.resource IN ("
	readEnd = ") FOR UPDATE"

	store = "UPDATE palisade_fence SET authority = ?, `lock` = ?, token = ?, written = ?, sequence = ?, digest = ?," +
		" result = ?, version = version + 1 WHERE resource = ?"

	record = "UPDATE palisade_fence SET result = ?, version = version + 1 WHERE resource = ? AND token = ? AND sequence = ?"

	show = "SET @palisade_tokens = ?"
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
	done, err := tx.ExecContext(ctx, record, result, resource, int64(holder.Token()), int64(sequence))
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
	before, shown, err := take(ctx, tx, claims)
	if err != nil {
		return fence.Written{}, translated(err)
	}
	next, answer, rejected := guardrow.DecideAll(g.Rule, claims, before, operation)
	changed := false
	for _, claim := range claims {
		changed = shown.set(claim, rejected == nil) || changed
		if rejected != nil {
			continue
		}
		values := append(guardrow.Values(next[claim.Resource]), claim.Resource)
		if _, err := tx.ExecContext(ctx, store, values...); err != nil {
			return fence.Written{}, err
		}
	}
	if changed {
		if _, err := tx.ExecContext(ctx, show, shown.text()); err != nil {
			return fence.Written{}, err
		}
	}
	return answer, rejected
}

// take locks the rows of these resources until the transaction ends, and creates missing ones.
func take(ctx context.Context, tx *sql.Tx, claims []guardrow.Claim) (map[string]fence.Record, shownTokens, error) {
	names := make([]any, len(claims))
	for at, claim := range claims {
		names[at] = claim.Resource
	}
	repeated := func(one string) string { return strings.TrimSuffix(strings.Repeat(one+", ", len(claims)), ", ") }
	if _, err := tx.ExecContext(ctx, lock+repeated("(?)")+lockEnd, names...); err != nil {
		return nil, nil, err
	}
	answer, err := tx.QueryContext(ctx, read+repeated("?")+readEnd, names...)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Close()
	found, shown := map[string]fence.Record{}, shownTokens{}
	for answer.Next() {
		var row guardrow.Row
		var version, seen sql.NullInt64
		var tokens sql.NullString
		if err := answer.Scan(append(row.Columns(), &version, &seen, &tokens)...); err != nil {
			return nil, nil, err
		}
		if version != seen {
			return nil, nil, fmt.Errorf("%w (%s)", ErrReadBeforeClaim, row.Resource)
		}
		found[row.Resource], shown = row.Record(), parseShown(tokens.String)
	}
	return found, shown, answer.Err()
}

// shownTokens is what the connection shows to the triggers: lines of a name, a tab and a token.
type shownTokens map[string]string

func parseShown(text string) shownTokens {
	shown := shownTokens{}
	for _, line := range strings.Split(text, "\n") {
		if name, token, ok := strings.Cut(line, "\t"); ok {
			shown[name] = token
		}
	}
	return shown
}

// set shows the token of a claim, or no token. It tells whether that changes anything.
func (s shownTokens) set(claim guardrow.Claim, admitted bool) bool {
	before, was := s[claim.Resource]
	if !admitted {
		delete(s, claim.Resource)
		return was
	}
	s[claim.Resource] = strconv.FormatUint(claim.Holder.Token(), 10)
	return s[claim.Resource] != before
}

func (s shownTokens) text() string {
	lines := make([]string, 0, len(s))
	for name, token := range s {
		lines = append(lines, name+"\t"+token+"\n")
	}
	sort.Strings(lines)
	return "\n" + strings.Join(lines, "")
}

// Rejected returns the rejection if a sticky trigger refused one of your own statements. The messages of these triggers
// end with the highest token; older drivers do not tell the SQLSTATE.
func Rejected(err error) (*fence.Rejection, bool) {
	if err == nil {
		return nil, false
	}
	for words, code := range map[string]string{
		"this fencing token is stale: give up, roll back, write nothing more; the highest is ": "stale",
		"fenced, and this write carries no fencing token; the highest is ":                     "tokenless",
	} {
		if _, number, found := strings.Cut(err.Error(), words); found {
			highest, _ := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
			return &fence.Rejection{Code: code, Highest: highest}, true
		}
	}
	return nil, false
}

func translated(err error) error {
	const noSuchTable = "Error 1146"
	if text := err.Error(); strings.HasPrefix(text, noSuchTable) && strings.Contains(text, "palisade_fence") {
		return &guardrow.NotInstalled{Err: err, Advice: "run the files of crates/palisade-fence/sql/mysql"}
	}
	return err
}
