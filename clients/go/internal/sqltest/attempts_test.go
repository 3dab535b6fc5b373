package sqltest

import (
	"bufio"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"palisade.example/palisade/attempts"
	"palisade.example/palisade/fence"
)

// A queue is a table of jobs, and one account that they write to.
type queue struct {
	*attempts.Attempts
	t       *testing.T
	db      *sql.DB
	table   string
	dialect attempts.Dialect
}

const (
	jobsOfPostgres = `CREATE TABLE %s (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, progress int, result text,
		state text NOT NULL DEFAULT 'ready' CHECK (state IN ('ready', 'running', 'done', 'failed')),
		attempt bigint NOT NULL DEFAULT 0, lease_until timestamptz, worker text, reason text)`
	jobsOfMySQL = `CREATE TABLE %s (id BIGINT AUTO_INCREMENT PRIMARY KEY, progress INT, result TEXT,
		state VARCHAR(8) NOT NULL DEFAULT 'ready', attempt BIGINT NOT NULL DEFAULT 0, lease_until DATETIME(3) NULL,
		worker VARCHAR(255) NULL, reason TEXT NULL, KEY open (state, id)) ENGINE=InnoDB`
)

// newQueue has one job that is ready, with the id 1.
func newQueue(t *testing.T, e *engine, dialect attempts.Dialect) *queue {
	t.Helper()
	table, create := unique("jobs"), jobsOfPostgres
	if dialect == attempts.MySQL {
		create = jobsOfMySQL
	}
	made, err := attempts.New(attempts.Options{Table: table, Dialect: dialect})
	if err != nil {
		t.Fatal(err)
	}
	q := &queue{made, t, e.db, table, dialect}
	execute(t, q.db, fmt.Sprintf(create, table), "CREATE TABLE "+table+"_account (total int)",
		"INSERT INTO "+table+"_account VALUES (0)")
	q.add()
	return q
}

func onEachQueue(t *testing.T, test func(t *testing.T, q *queue)) {
	t.Run("postgres", func(t *testing.T) { test(t, newQueue(t, onPostgres(t), attempts.PostgreSQL)) })
	t.Run("pgx", func(t *testing.T) {
		e := onPostgres(t)
		e.db.Close()
		e.db = open(t, "pgx", postgresURL(t, "postgres"))
		test(t, newQueue(t, e, attempts.PostgreSQL))
	})
	t.Run("mariadb", func(t *testing.T) { test(t, newQueue(t, onMaria(t), attempts.MySQL)) })
}

func (q *queue) add() {
	q.t.Helper()
	q.execute("INSERT INTO {} (progress) VALUES (0)")
}

// execute returns how many rows were hit.
func (q *queue) execute(statement string) int64 {
	q.t.Helper()
	done, err := q.db.Exec(strings.ReplaceAll(statement, "{}", q.table))
	if err != nil {
		q.t.Fatalf("%s: %v", statement, err)
	}
	rows, _ := done.RowsAffected()
	return rows
}

// pass has the lease of the job expire: no test waits for it.
func (q *queue) pass(id int) {
	q.t.Helper()
	past := "clock_timestamp() - interval '1 second'"
	if q.dialect == attempts.MySQL {
		past = "UTC_TIMESTAMP(3) - INTERVAL 1 SECOND"
	}
	q.execute(fmt.Sprintf("UPDATE {} SET lease_until = %s WHERE id = %d", past, id))
}

func (q *queue) take(worker string) *attempts.Attempt {
	q.t.Helper()
	taken, err := q.Take(ctx, q.db, worker)
	if err != nil || taken == nil {
		q.t.Fatalf("%v, %v", taken, err)
	}
	return taken
}

func (q *queue) text(columns string) (text string) {
	q.t.Helper()
	var found sql.NullString
	if err := q.db.QueryRow("SELECT " + columns + " FROM " + q.table + " WHERE id = 1").Scan(&found); err != nil {
		q.t.Fatal(err)
	}
	return found.String
}

func (q *queue) total() (total int) {
	q.t.Helper()
	if err := q.db.QueryRow("SELECT total FROM " + q.table + "_account").Scan(&total); err != nil {
		q.t.Fatal(err)
	}
	return total
}

// write is what a job does: in one transaction, and by its own statement.
func (q *queue) write(attempt *attempts.Attempt, statement string) error {
	return q.Transact(ctx, q.db, attempt, func(tx *sql.Tx) error {
		_, err := tx.Exec(strings.ReplaceAll(statement, "{}", q.table))
		return err
	})
}

func isStale(t *testing.T, err error) {
	t.Helper()
	var rejection *fence.Rejection
	if !errors.Is(err, fence.ErrStale) || !errors.As(err, &rejection) || rejection.Token != 1 || rejection.Highest != 2 {
		t.Errorf("%v", err)
	}
}

func isOver(t *testing.T, err error) {
	t.Helper()
	var rejection *fence.Rejection
	if !errors.As(err, &rejection) || rejection.Code != "already_written" {
		t.Errorf("%v", err)
	}
}

func TestAJobsLife(t *testing.T) {
	onEachQueue(t, func(t *testing.T, q *queue) {
		first := q.take("w1")
		if fmt.Sprint(first.JobID) != "1" || first.Token() != 1 || first.Authority() != q.table || first.Name() != "job:1" ||
			first.Resource() != "job:1" || fmt.Sprint(first.Row["progress"]) != "0" {
			t.Errorf("%+v", first)
		}
		if none, err := q.Take(ctx, q.db, "w2"); none != nil || err != nil {
			t.Errorf("%v, %v", none, err)
		}
		for range []int{1, 2} {
			if err := q.Heartbeat(ctx, q.db, first); err != nil {
				t.Fatal(err)
			}
		}
		fail := func(attempt *attempts.Attempt, reason string, retry bool) error {
			return transact(t, q.db, func(tx *sql.Tx) error {
				if err := q.Guard(ctx, tx, attempt); err != nil {
					return err
				}
				return q.Fail(ctx, tx, attempt, reason, retry)
			})
		}
		if err := fail(first, "a mistake", true); err != nil || q.text("state") != "ready" || q.text("reason") != "a mistake" {
			t.Errorf("%v, %s", err, q.text("state"))
		}
		isOver(t, q.Heartbeat(ctx, q.db, first))
		second := q.take("w1")
		isStale(t, fail(first, "late", true))
		// The work may end its attempt itself.
		err := q.Transact(ctx, q.db, second, func(tx *sql.Tx) error { return q.Fail(ctx, tx, second, "for ever", false) })
		if err != nil || q.text("state") != "failed" || q.text("reason") != "for ever" {
			t.Errorf("%v, %s", err, q.text("state"))
		}
		isOver(t, q.write(second, "UPDATE {}_account SET total = 1"))
		q.add()
		third := q.take("w3")
		if err := q.write(third, "UPDATE {}_account SET total = 3"); err != nil || q.total() != 3 {
			t.Errorf("%v, %d", err, q.total())
		}
		isOver(t, q.write(third, "UPDATE {}_account SET total = 4"))
		if q.total() != 3 {
			t.Errorf("%d", q.total())
		}
	})
}

// A refusal that nobody looks at still ends the transaction.
func TestARefusalCannotBeDroppedUnseen(t *testing.T) {
	onEachQueue(t, func(t *testing.T, q *queue) {
		first := q.take("w1")
		q.pass(1)
		q.take("w2")
		tx, err := q.db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.Exec("UPDATE " + q.table + "_account SET total = 10"); err != nil {
			t.Fatal(err)
		}
		_ = q.Finish(ctx, tx, first)
		_ = tx.Commit()
		if q.total() != 0 {
			t.Errorf("the effect of a refused attempt was committed: %d", q.total())
		}
	})
}

// Mistake 1: the owner is a worker's name, which its second attempt has, too.
func TestAWorkersFirstAttemptIsNotItsSecond(t *testing.T) {
	onEachQueue(t, func(t *testing.T, q *queue) {
		first := q.take("w1")
		q.pass(1)
		second := q.take("w1")
		const store = "UPDATE {} SET progress = %d WHERE id = 1 AND worker = 'w1' AND state = 'running'"
		q.execute(fmt.Sprintf(store, 70))
		// The control: by its name the late attempt overwrites what was acknowledged.
		if q.execute(fmt.Sprintf(store, 10)); q.text("progress") != "10" {
			t.Error("nothing was lost")
		}
		q.execute(fmt.Sprintf(store, 70))
		isStale(t, q.write(first, fmt.Sprintf(store, 10)))
		isStale(t, q.Heartbeat(ctx, q.db, first))
		if q.text("progress") != "70" {
			t.Errorf("the progress is %s", q.text("progress"))
		}
		if err := q.Heartbeat(ctx, q.db, second); err != nil {
			t.Error(err)
		}
	})
}

// Mistake 3: the completion looks at the state only.
func TestALateCompletionIsRefused(t *testing.T) {
	onEachQueue(t, func(t *testing.T, q *queue) {
		first := q.take("w1")
		q.pass(1)
		second := q.take("w2")
		const result = "UPDATE {} SET result = '%s' WHERE id = 1"
		isStale(t, q.write(first, fmt.Sprintf(result, "old")))
		if err := q.write(second, fmt.Sprintf(result, "new")); err != nil || q.text("result") != "new" || q.text("state") != "done" {
			t.Errorf("%v: %s", err, q.text("result"))
		}
		// The control: the same story by the state alone.
		q.execute("UPDATE {} SET state = 'running' WHERE id = 1")
		const complete = "UPDATE {} SET state = 'done', result = '%s' WHERE id = 1 AND state = 'running'"
		if q.execute(fmt.Sprintf(complete, "old")) != 1 || q.execute(fmt.Sprintf(complete, "new")) != 0 || q.text("result") != "old" {
			t.Error("nothing was lost")
		}
	})
}

// Mistake 9: the maximum of attempts is looked at where a worker reports a failure, and this one dies.
func TestAJobThatKillsItsWorkersIsGivenUp(t *testing.T) {
	onEachQueue(t, func(t *testing.T, q *queue) {
		q.add()
		for attempt := 1; attempt <= 5; attempt++ {
			if taken := q.take("w1"); fmt.Sprint(taken.JobID) != "1" || taken.Token() != uint64(attempt) {
				t.Fatalf("%+v", taken)
			}
			q.pass(1)
		}
		// The control: without a maximum it is taken again, and the job behind it never is.
		endless, err := attempts.New(attempts.Options{Table: q.table, Dialect: q.dialect, MaxAttempts: 1_000_000})
		if err != nil {
			t.Fatal(err)
		}
		if taken, err := endless.Take(ctx, q.db, "w1"); err != nil || fmt.Sprint(taken.JobID) != "1" {
			t.Errorf("%+v, %v", taken, err)
		}
		q.pass(1)
		if taken := q.take("w1"); fmt.Sprint(taken.JobID) != "2" {
			t.Errorf("%+v", taken)
		}
		if q.text("state") != "failed" || !strings.Contains(q.text("reason"), "was the last of 5, and its lease expired (worker w1)") {
			t.Errorf("%s: %s", q.text("state"), q.text("reason"))
		}
		if ids, err := q.Reap(ctx, q.db); len(ids) != 0 || err != nil {
			t.Errorf("%v, %v", ids, err)
		}
	})
}

func TestTheExampleOfTheReadmeFinishesItsJob(t *testing.T) {
	q := newQueue(t, onPostgres(t), attempts.PostgreSQL)
	execute(t, q.db, "CREATE TABLE accounts (total int)", "INSERT INTO accounts VALUES (0)")
	defer execute(t, q.db, "DROP TABLE accounts")
	for range []int{1, 2} { // The second time there is no job.
		if err := work(ctx, q.Attempts, q.db); err != nil || q.text("state") != "done" {
			t.Errorf("%v, %s", err, q.text("state"))
		}
	}
	var total int
	if err := q.db.QueryRow("SELECT total FROM accounts").Scan(&total); err != nil || total != 1 {
		t.Errorf("%d, %v", total, err)
	}
}

func TestWrongOptionsAreNamed(t *testing.T) {
	for says, options := range map[string]attempts.Options{
		"name of a table": {Table: "jobs; DROP TABLE jobs"},
		"the lease":       {Lease: time.Millisecond},
		"MaxAttempts":     {MaxAttempts: -1},
		"the authority":   {Authority: "ä"},
		"dialect":         {Dialect: 7},
	} {
		if _, err := attempts.New(options); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
	made, err := attempts.New(attempts.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Finish(ctx, nil, nil); err == nil || !strings.Contains(err.Error(), "is nil") {
		t.Errorf("%v", err)
	}
	if err := made.Finish(ctx, nil, &attempts.Attempt{JobID: "1'; --", Attempt: 1}); err == nil {
		t.Error("an id that is none")
	}
}

// TestWorker is the other process of the next test.
func TestWorker(t *testing.T) {
	given := strings.Split(os.Getenv("PALISADE_TEST_WORKER"), "|")
	if len(given) != 3 {
		t.Skip("the other process of the test below")
	}
	table, url, does := given[0], given[1], given[2]
	made, err := attempts.New(attempts.Options{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	db := open(t, "postgres", url)
	q := &queue{made, t, db, table, attempts.PostgreSQL}
	attempt := q.take("w1")
	total := q.total()
	fmt.Println("read", total)
	// The test stops this process here.
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	effect := fmt.Sprintf("UPDATE {}_account SET total = %d", total+10)
	if does == "guarded" {
		err = q.write(attempt, effect)
	} else {
		// Mistake 8: the effect is outside of the transaction that looks at the row. This one does look, afterwards.
		q.execute(effect)
		err = transact(t, db, func(tx *sql.Tx) error { return q.Finish(ctx, tx, attempt) })
	}
	fmt.Println("wrote", err)
}

func TestAStoppedWorkersEffectIsRefused(t *testing.T) {
	run := func(does string) (int, string) {
		q := newQueue(t, onPostgres(t), attempts.PostgreSQL)
		command := exec.Command(os.Args[0], "-test.run=^TestWorker$", "-test.v")
		command.Env = append(os.Environ(), "PALISADE_TEST_WORKER="+q.table+"|"+postgresURL(t, "postgres")+"|"+does)
		in, err := command.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = command.Process.Kill()
			_ = command.Wait()
		}()
		lines := bufio.NewScanner(out)
		says := func(begins string) string {
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), begins) {
					return lines.Text()
				}
			}
			t.Fatalf("it ended without %q", begins)
			return ""
		}
		says("read 0")
		if err := command.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		q.pass(1)
		if err := q.write(q.take("w2"), "UPDATE {}_account SET total = 70"); err != nil {
			t.Fatal(err)
		}
		if err := command.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(in)
		said := says("wrote")
		return q.total(), said
	}
	if total, said := run("guarded"); total != 70 || !strings.Contains(said, "1 is stale: 1 < 2") {
		t.Errorf("the acknowledged effect became %d: %s", total, said)
	}
	// A control: the effect outside of the guarded transaction is lost, though its completion is refused.
	if total, said := run("beside"); total != 10 || !strings.Contains(said, "1 is stale: 1 < 2") {
		t.Errorf("nothing was lost: %d, %s", total, said)
	}
}
