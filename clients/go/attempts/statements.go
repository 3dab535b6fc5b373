package attempts

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/postgres"
)

// The statements of docs/use/job-attempts.md. The clock is the database's, and the time that of the statement: that of now()
// is the beginning of the transaction.
const (
	isOpen = "(state = 'ready' OR (state = 'running' AND lease_until < clock_timestamp()))"
	isMine = "id = $1 AND attempt = $2::bigint AND state = 'running'"
	later  = "clock_timestamp() + $3::bigint * interval '1 millisecond'"

	reap = "UPDATE {table} SET state = 'failed', lease_until = NULL," +
		" reason = CASE state WHEN 'running' THEN 'attempt ' || attempt || ' was the last of ' || $1::bigint" +
		" || ', and its lease expired (worker ' || coalesce(worker, '?') || ')' ELSE coalesce(reason, 'no attempt is left') END" +
		" WHERE id IN (SELECT id FROM {table} WHERE attempt >= $1::bigint AND " + isOpen + " FOR UPDATE SKIP LOCKED)" +
		" RETURNING id"
	take = "UPDATE {table} SET state = 'running', attempt = attempt + 1, worker = $1::text, lease_until = " + later +
		" WHERE id = (SELECT id FROM {table} WHERE attempt < $2::bigint AND " + isOpen +
		" ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING *"
	heartbeat = "UPDATE {table} SET lease_until = " + later + " WHERE " + isMine
	// If this program stops inside the transaction, the database ends it after the time of a lease. A tighter setting of your
	// own stays.
	guard = "SELECT set_config('idle_in_transaction_session_timeout', CASE" +
		" WHEN current_setting('idle_in_transaction_session_timeout')::interval" +
		" BETWEEN interval '1 millisecond' AND $3::bigint * interval '1 millisecond'" +
		" THEN current_setting('idle_in_transaction_session_timeout') ELSE $3::bigint::text END, true)" +
		" FROM {table} WHERE " + isMine + " FOR UPDATE"
	finish = "UPDATE {table} SET state = 'done', lease_until = NULL WHERE " + isMine
	ended  = "SELECT 1 FROM {table} WHERE id = $1 AND attempt = $2::bigint AND state <> 'running'"
	fail   = "UPDATE {table} SET state = CASE WHEN attempt < $3::bigint THEN 'ready' ELSE 'failed' END," +
		" lease_until = NULL, reason = $4::text WHERE " + isMine

	// An error in the database: the transaction cannot commit any more, even if nobody looks at the error.
	refuse = `DO $palisade$ DECLARE newest bigint; BEGIN
    SELECT j.attempt INTO newest FROM {table} j WHERE j.id = '{id}';
    IF newest > {attempt} THEN
        RAISE EXCEPTION USING ERRCODE = 'PF001', DETAIL = newest::text, CONSTRAINT = 'job:{id}',
            MESSAGE = 'token {attempt} is stale: {attempt} < ' || newest || ' at resource job:{id}',
            HINT = 'another attempt has this job: give up, roll back, and write nothing more';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'PF010', DETAIL = '', CONSTRAINT = 'job:{id}',
        MESSAGE = 'attempt {attempt} has ended at resource job:{id}',
        HINT = 'it was finished, has failed, or its row is gone: roll back, and write nothing more';
END $palisade$`

	// MySQL and MariaDB.
	isOpenMySQL = "(state = 'ready' OR (state = 'running' AND lease_until < UTC_TIMESTAMP(3)))"
	isMineMySQL = "id = ? AND attempt = ? AND state = 'running'"
	laterMySQL  = "UTC_TIMESTAMP(3) + INTERVAL ? * 1000 MICROSECOND"

	overMySQL = "SELECT id, state, attempt, worker FROM {table} WHERE attempt >= ? AND " + isOpenMySQL + " FOR UPDATE SKIP LOCKED"
	reapMySQL = "UPDATE {table} SET reason = CASE state WHEN 'running' THEN concat('attempt ', attempt, ' was the last of ', ?," +
		" ', and its lease expired (worker ', coalesce(worker, '?'), ')') ELSE coalesce(reason, 'no attempt is left') END," +
		" state = 'failed', lease_until = NULL WHERE id = ?"
	nextMySQL      = "SELECT id FROM {table} WHERE attempt < ? AND " + isOpenMySQL + " ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
	takeMySQL      = "UPDATE {table} SET state = 'running', attempt = attempt + 1, worker = ?, lease_until = " + laterMySQL + " WHERE id = ?"
	rowMySQL       = "SELECT * FROM {table} WHERE id = ?"
	guardMySQL     = "SELECT 1 FROM {table} WHERE " + isMineMySQL + " FOR UPDATE"
	heartbeatMySQL = "UPDATE {table} SET lease_until = " + laterMySQL + " WHERE id = ?"
	failMySQL      = "UPDATE {table} SET state = CASE WHEN attempt < ? THEN 'ready' ELSE 'failed' END, lease_until = NULL, reason = ?" +
		" WHERE " + isMineMySQL
	newestMySQL = "SELECT attempt FROM {table} WHERE id = ?"
)

func (s *Attempts) isolation() *sql.TxOptions {
	if s.options.Dialect == MySQL {
		// At REPEATABLE READ it would lock the gaps between the jobs, too.
		return &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	return nil
}

func (s *Attempts) reap(ctx context.Context, tx *sql.Tx) (ids []any, err error) {
	statement := reap
	if s.options.Dialect == MySQL {
		statement = overMySQL
	}
	found, err := rows(tx.QueryContext(ctx, s.statement(statement), s.options.MaxAttempts))
	if err != nil {
		return nil, err
	}
	for _, row := range found {
		if s.options.Dialect == MySQL {
			if _, err := tx.ExecContext(ctx, s.statement(reapMySQL), s.options.MaxAttempts, row["id"]); err != nil {
				return nil, err
			}
		}
		ids = append(ids, row["id"])
	}
	return ids, nil
}

// take is the row of the job that was taken, or nil.
func (s *Attempts) take(ctx context.Context, tx *sql.Tx, worker string) (map[string]any, error) {
	var found []map[string]any
	var err error
	if s.options.Dialect == MySQL {
		found, err = s.takeMySQL(ctx, tx, worker)
	} else {
		found, err = rows(tx.QueryContext(ctx, s.statement(take), worker, s.options.MaxAttempts, s.leaseMS))
	}
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

func (s *Attempts) takeMySQL(ctx context.Context, tx *sql.Tx, worker string) ([]map[string]any, error) {
	next, err := rows(tx.QueryContext(ctx, s.statement(nextMySQL), s.options.MaxAttempts))
	if err != nil || len(next) == 0 {
		return nil, err
	}
	id := next[0]["id"]
	if _, err := tx.ExecContext(ctx, s.statement(takeMySQL), worker, s.leaseMS, id); err != nil {
		return nil, err
	}
	return rows(tx.QueryContext(ctx, s.statement(rowMySQL), id))
}

func (s *Attempts) guard(ctx context.Context, tx *sql.Tx, attempt *Attempt) error {
	if s.options.Dialect == MySQL {
		return s.mine(ctx, tx, attempt, s.statement(guardMySQL))
	}
	return s.mine(ctx, tx, attempt, s.statement(guard), s.leaseMS)
}

func (s *Attempts) heartbeat(ctx context.Context, tx *sql.Tx, attempt *Attempt) error {
	if s.options.Dialect == PostgreSQL {
		return s.mine(ctx, tx, attempt, s.statement(heartbeat), s.leaseMS)
	}
	// MySQL counts the rows that changed, and two heartbeats within a millisecond change nothing.
	if err := s.guard(ctx, tx, attempt); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, s.statement(heartbeatMySQL), s.leaseMS, attempt.JobID)
	return err
}

func (s *Attempts) fail(ctx context.Context, tx *sql.Tx, attempt *Attempt, reason string, most int64) error {
	if s.options.Dialect == PostgreSQL {
		return s.mine(ctx, tx, attempt, s.statement(fail), most, reason)
	}
	if err := checked(attempt); err != nil {
		return err
	}
	done, err := tx.ExecContext(ctx, s.statement(failMySQL), most, reason, attempt.JobID, int64(attempt.Attempt))
	if err != nil {
		return err
	}
	if changed, err := done.RowsAffected(); err != nil || changed > 0 {
		return err
	}
	return s.refuse(ctx, tx, attempt)
}

// hits tells whether a statement found the row of the attempt.
func (s *Attempts) hits(ctx context.Context, tx *sql.Tx, attempt *Attempt, statement string, more ...any) (bool, error) {
	if err := checked(attempt); err != nil {
		return false, err
	}
	given := append([]any{attempt.JobID, int64(attempt.Attempt)}, more...)
	if strings.HasPrefix(statement, "SELECT") {
		found, err := rows(tx.QueryContext(ctx, statement, given...))
		return len(found) > 0, err
	}
	done, err := tx.ExecContext(ctx, statement, given...)
	if err != nil {
		return false, err
	}
	changed, err := done.RowsAffected()
	return changed > 0, err
}

// refuse is the error of an attempt that has no row any more.
func (s *Attempts) refuse(ctx context.Context, tx *sql.Tx, attempt *Attempt) error {
	if s.options.Dialect == MySQL {
		// There an error ends no transaction.
		found, err := rows(tx.QueryContext(ctx, s.statement(newestMySQL), attempt.JobID))
		if err != nil {
			return err
		}
		if err := tx.Rollback(); err != nil {
			return err
		}
		if len(found) > 0 {
			if newest, ok := found[0]["attempt"].(int64); ok && uint64(newest) > attempt.Attempt {
				return &fence.Rejection{Code: "stale", Token: attempt.Attempt, Highest: uint64(newest)}
			}
		}
		return &fence.Rejection{Code: "already_written"}
	}
	text := strings.NewReplacer("{table}", s.options.Table, "{id}", fmt.Sprint(attempt.JobID),
		"{attempt}", fmt.Sprint(attempt.Attempt)).Replace(refuse)
	_, err := tx.ExecContext(ctx, text)
	if rejection, ok := postgres.Rejected(err); ok {
		return rejection
	}
	if err == nil {
		err = fmt.Errorf("palisade: %s is not that of attempt %d any more", attempt.Resource(), attempt.Attempt)
	}
	return err
}
