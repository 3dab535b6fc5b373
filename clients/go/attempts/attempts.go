// Package attempts is for jobs in a table of your own, without a lock server: the number of the attempt is the fencing token.
//
//	jobs, err := attempts.New(attempts.Options{Table: "jobs"})
//	…
//	attempt, err := jobs.Take(ctx, db, "worker-1") // nil: no job is ready
//	…
//	err = jobs.Transact(ctx, db, attempt, func(tx *sql.Tx) error {
//		… // all effects: they and `done` commit together
//	})
//
// docs/use/job-attempts.md has the table and the statements, for PostgreSQL (lib/pq, pgx), and for MySQL and MariaDB.
//
// Take, Heartbeat and Reap are transactions of their own; Guard, Finish and Fail belong into yours. An attempt whose job
// another one has taken is refused with fence.ErrStale, one that has ended with a *fence.Rejection whose code is
// already_written. In PostgreSQL the transaction can only roll back then, whatever is done with the error; in MySQL it is
// rolled back already.
//
// An Attempt is a fence.Holder for every fence. Attempts of two jobs cannot be compared, so give it only to the resource of
// its own job: Attempt.Resource.
package attempts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/internal/guardrow"
)

var (
	tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)
	jobID     = regexp.MustCompile(`^[0-9A-Za-z_-]{1,200}$`)
	name      = regexp.MustCompile(`^[ -~]{1,255}$`)
)

// A Dialect is the database's.
type Dialect int

// MySQL is MariaDB, too.
const (
	PostgreSQL Dialect = iota
	MySQL
)

// Options of New. What is zero has its default.
type Options struct {
	// Table is jobs, or another name: letters, digits and _, perhaps with a schema and a dot before it.
	Table string
	// Lease is how long an attempt keeps its job without a heartbeat: 1 s – 24 h, by default 30 s.
	Lease time.Duration
	// MaxAttempts is how many attempts a job has, 1 – 1,000,000, by default 5. They count when they begin.
	MaxAttempts int64
	// Authority is by default the table's name. Two databases whose jobs write to one target outside need two.
	Authority string
	Dialect   Dialect
}

// Attempts are those at the jobs of one table.
type Attempts struct {
	options Options
	leaseMS int64
}

// New checks the options. It sends nothing.
func New(options Options) (*Attempts, error) {
	o := options
	if o.Table == "" {
		o.Table = "jobs"
	}
	if o.Lease == 0 {
		o.Lease = 30 * time.Second
	}
	if o.MaxAttempts == 0 {
		o.MaxAttempts = 5
	}
	if o.Authority == "" {
		o.Authority = o.Table
	}
	switch {
	case !tableName.MatchString(o.Table):
		return nil, fmt.Errorf("palisade: %q is not the name of a table: letters, digits and _, schema.table or table", o.Table)
	case o.Lease < time.Second || o.Lease > 24*time.Hour || o.Lease%time.Millisecond != 0:
		return nil, fmt.Errorf("palisade: the lease is %v: whole milliseconds from 1 s to 24 h are allowed", o.Lease)
	case o.MaxAttempts < 1 || o.MaxAttempts > 1_000_000:
		return nil, fmt.Errorf("palisade: MaxAttempts is %d: 1 to 1000000 are allowed", o.MaxAttempts)
	case !name.MatchString(o.Authority):
		return nil, fmt.Errorf("palisade: the authority is %q: 1 to 255 printable ASCII characters are allowed", o.Authority)
	case o.Dialect != PostgreSQL && o.Dialect != MySQL:
		return nil, fmt.Errorf("palisade: %d is no dialect: PostgreSQL or MySQL", o.Dialect)
	}
	return &Attempts{o, o.Lease.Milliseconds()}, nil
}

// An Attempt is one attempt at a job. It is a fence.Holder, under the authority of its table.
type Attempt struct {
	// JobID is an int64, or the text of a UUID.
	JobID any
	// Attempt is its number, which is the fencing token.
	Attempt uint64
	Worker  string
	// Row has all columns of the job's row as they were when the attempt began, as the driver gives them.
	Row map[string]any

	authority string
}

// Token is the number of the attempt.
func (a *Attempt) Token() uint64 { return a.Attempt }

// Authority is the table's.
func (a *Attempt) Authority() string { return a.authority }

// Name is that of the resource. It binds the resource to this job, because attempts of two jobs cannot be compared.
func (a *Attempt) Name() string { return a.Resource() }

// Resource is what this attempt may claim at a fence: job:ID.
func (a *Attempt) Resource() string { return fmt.Sprintf("job:%v", a.JobID) }

// Take begins an attempt at the oldest job that is ready or whose lease has expired, and commits; nil if there is none. A
// job whose last attempt is over is moved to failed on the way. The worker's name is for people: nothing compares it.
func (s *Attempts) Take(ctx context.Context, db *sql.DB, worker string) (taken *Attempt, err error) {
	if worker == "" || len(worker) > 255 {
		return nil, fmt.Errorf("palisade: the worker's name has %d bytes: 1 to 255 are allowed", len(worker))
	}
	err = s.alone(ctx, db, func(tx *sql.Tx) error {
		if _, err := s.reap(ctx, tx); err != nil {
			return err
		}
		row, err := s.take(ctx, tx, worker)
		if err != nil || row == nil {
			return err
		}
		taken, err = s.attempt(row, worker)
		return err
	})
	if err != nil {
		return nil, err
	}
	return taken, nil
}

func (s *Attempts) attempt(row map[string]any, worker string) (*Attempt, error) {
	id := row["id"]
	switch found := id.(type) {
	case []byte:
		id = string(found)
	case int64, string:
	default:
		// pgx gives integers of other widths, too.
		id = fmt.Sprint(found)
	}
	if !jobID.MatchString(fmt.Sprint(id)) {
		return nil, fmt.Errorf("palisade: the job id %v is neither an integer nor a UUID", id)
	}
	number, ok := row["attempt"].(int64)
	if !ok || number < 1 {
		return nil, fmt.Errorf("palisade: the column attempt has %v: a bigint from 1 on is needed", row["attempt"])
	}
	return &Attempt{id, uint64(number), worker, row, s.options.Authority}, nil
}

// Heartbeat renews the lease, and commits. It waits while Transact has the row, which keeps the job by itself.
func (s *Attempts) Heartbeat(ctx context.Context, db *sql.DB, attempt *Attempt) error {
	return s.alone(ctx, db, func(tx *sql.Tx) error { return s.heartbeat(ctx, tx, attempt) })
}

// Reap moves the jobs whose last attempt is over to failed, and commits. It returns their ids. Take does it, too.
func (s *Attempts) Reap(ctx context.Context, db *sql.DB) (ids []any, err error) {
	err = s.alone(ctx, db, func(tx *sql.Tx) error {
		ids, err = s.reap(ctx, tx)
		return err
	})
	return ids, err
}

// Guard is first in the transaction that has all effects: nobody takes the job over before it ends.
func (s *Attempts) Guard(ctx context.Context, tx *sql.Tx, attempt *Attempt) error {
	return s.guard(ctx, tx, attempt)
}

// Finish: the job is done, if the transaction commits.
func (s *Attempts) Finish(ctx context.Context, tx *sql.Tx, attempt *Attempt) error {
	return s.mine(ctx, tx, attempt, s.statement(finish))
}

// Fail: the job is ready again if attempts are left and retry is true; else it has failed.
func (s *Attempts) Fail(ctx context.Context, tx *sql.Tx, attempt *Attempt, reason string, retry bool) error {
	most := int64(0)
	if retry {
		most = s.options.MaxAttempts
	}
	return s.fail(ctx, tx, attempt, reason, most)
}

// Transact begins a transaction with Guard, does the work, and commits with Finish, unless the work called Finish or Fail. It
// rolls back if one of them fails.
func (s *Attempts) Transact(ctx context.Context, db *sql.DB, attempt *Attempt, work func(*sql.Tx) error) error {
	guard := func(tx *sql.Tx) error { return s.guard(ctx, tx, attempt) }
	return guardrow.Transact(ctx, db, guard, func(tx *sql.Tx) error {
		if err := work(tx); err != nil {
			return err
		}
		// Under the lock of the guard nobody else can have ended it.
		hit, err := s.hits(ctx, tx, attempt, s.statement(finish))
		if err != nil || hit {
			return err
		}
		return s.mine(ctx, tx, attempt, s.statement(ended))
	})
}

func (s *Attempts) alone(ctx context.Context, db *sql.DB, work func(*sql.Tx) error) error {
	nothing := func(*sql.Tx) error { return nil }
	return guardrow.TransactWith(ctx, db, s.isolation(), nothing, work)
}

// mine is a statement that finds the row of the attempt. If it does not, the transaction cannot commit any more.
func (s *Attempts) mine(ctx context.Context, tx *sql.Tx, attempt *Attempt, statement string, more ...any) error {
	hit, err := s.hits(ctx, tx, attempt, statement, more...)
	if err != nil || hit {
		return err
	}
	return s.refuse(ctx, tx, attempt)
}

func checked(attempt *Attempt) error {
	switch {
	case attempt == nil:
		return errors.New("palisade: the attempt is nil: was a job taken?")
	case !jobID.MatchString(fmt.Sprint(attempt.JobID)):
		return fmt.Errorf("palisade: the job id %v is neither an integer nor a UUID", attempt.JobID)
	}
	return fence.CheckToken(attempt.Attempt)
}

// rows are all rows of an answer, by their columns.
func rows(found *sql.Rows, err error) (all []map[string]any, _ error) {
	if err != nil {
		return nil, err
	}
	defer found.Close()
	columns, err := found.Columns()
	if err != nil {
		return nil, err
	}
	for found.Next() {
		values, places := make([]any, len(columns)), make([]any, len(columns))
		for at := range values {
			places[at] = &values[at]
		}
		if err := found.Scan(places...); err != nil {
			return nil, err
		}
		row := map[string]any{}
		for at, column := range columns {
			row[column] = values[at]
		}
		all = append(all, row)
	}
	return all, found.Err()
}

func (s *Attempts) statement(text string) string {
	if s.options.Dialect == MySQL {
		text = strings.NewReplacer("$1", "?", "$2", "?", "$3", "?", "::bigint", "", "::text", "").Replace(text)
	}
	return strings.ReplaceAll(text, "{table}", s.options.Table)
}
