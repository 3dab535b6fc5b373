package palisadepgx_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"palisade.example/palisade"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/postgres"
	"palisade.example/palisade/internal/testserver"
	"palisade.example/palisade/palisadepgx"
	"palisade.example/palisade/palisadetest"
)

var (
	ctx         = context.Background()
	startServer sync.Once
	serverURL   string
	endServer   = func() {}
)

func TestMain(m *testing.M) {
	if mode := testserver.Mode(); mode != "" {
		fmt.Println(worker(mode))
		return
	}
	code := m.Run()
	endServer()
	os.Exit(code)
}

// newShop makes a database with the fence and a table of one order, and returns its address.
func newShop(t *testing.T) string {
	t.Helper()
	startServer.Do(func() { serverURL, endServer = testserver.Postgres(t) })
	url := testserver.Database(t, serverURL)
	execute(t, newPool(t, url), "CREATE TABLE orders (total int)", "INSERT INTO orders VALUES (0)")
	return url
}

func newPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func execute(t *testing.T, pool *pgxpool.Pool, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := pool.Exec(ctx, statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func newClient(t *testing.T, options ...palisade.Option) *palisade.Client {
	t.Helper()
	client, err := palisade.New(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func inMemory(t *testing.T, options ...palisade.Option) (*palisadetest.Server, *palisade.Client) {
	t.Helper()
	server := palisadetest.NewServer()
	client, err := server.Client(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return server, client
}

func mustLock(t *testing.T, client *palisade.Client) *palisade.Lease {
	t.Helper()
	lease, err := client.Lock(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

type queryer interface {
	QueryRow(ctx context.Context, query string, arguments ...any) pgx.Row
}

func total(db queryer) (total int, err error) {
	return total, db.QueryRow(ctx, "SELECT total FROM orders").Scan(&total)
}

func mustBe(t *testing.T, pool *pgxpool.Pool, wanted int) {
	t.Helper()
	if found, err := total(pool); err != nil || found != wanted {
		t.Errorf("the total is %d and not %d: %v", found, wanted, err)
	}
}

// add reads, computes, and writes the result.
func add(tx pgx.Tx, number int) error {
	before, err := total(tx)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "UPDATE orders SET total = $1", before+number)
	return err
}

func TestThePageHasTheseExamples(t *testing.T) {
	testserver.CheckPage(t, "example_test.go", "pgx")
}

// The page's example; then a newer holder claims.
func TestARefusalIsThatOfTheFenceAndOfPgx(t *testing.T) {
	pool := newPool(t, newShop(t))
	_, client := inMemory(t)
	if err := order(ctx, client, pool); err != nil {
		t.Fatal(err)
	}
	lease := mustLock(t, client)
	newer := fence.NewPass(lease.Token()+5, lease.Authority(), "orders")
	if err := palisadepgx.Transact(ctx, pool, "orders", newer, func(pgx.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	err := palisadepgx.Transact(ctx, pool, "orders", lease, func(pgx.Tx) error {
		t.Error("the work was begun")
		return nil
	})
	var rejection *fence.Rejection
	var said *pgconn.PgError
	if !errors.Is(err, fence.ErrStale) || !errors.As(err, &rejection) || !errors.As(err, &said) {
		t.Fatal(err)
	}
	if rejection.Token != lease.Token() || rejection.Highest != newer.Token() || said.Code != "PF001" {
		t.Error(rejection, said)
	}
	other := fence.NewPass(99, "another-authority", "orders")
	err = palisadepgx.Transact(ctx, pool, "orders", other, func(pgx.Tx) error { return nil })
	if !errors.As(err, &rejection) || rejection.Code != "wrong_authority" {
		t.Error(err)
	}
	mustBe(t, pool, 1)
}

// A worker is a holder that is stopped in the middle of its work: "bare" after its read and its check; "late" where its claim
// goes on its way, after the check; "inside" in its transaction. It answers with its outcome.
func worker(mode string) string {
	client, err := palisade.New(palisade.Endpoints(os.Getenv("SERVER")))
	if err != nil {
		return err.Error()
	}
	lease, err := client.Lock(ctx, "orders", palisade.TTL(2*time.Second))
	if err != nil {
		return err.Error()
	}
	config, err := pgxpool.ParseConfig(os.Getenv("SHOP"))
	if err != nil {
		return err.Error()
	}
	config.ConnConfig.Tracer = tracer(mode)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err.Error()
	}
	work := func(tx pgx.Tx) error { return add(tx, 10) }
	switch mode {
	case "bare":
		if err = lease.Check(); err == nil {
			err = pgx.BeginFunc(ctx, pool, work)
		}
	default:
		err = palisadepgx.Transact(ctx, pool, "orders", lease, work)
	}
	var said *pgconn.PgError
	switch ofPgx := errors.As(err, &said); {
	case err == nil:
		return "written"
	case errors.Is(err, fence.ErrStale) && ofPgx:
		return "stale " + said.Code
	case errors.Is(err, palisade.ErrLost):
		return "lost"
	}
	return err.Error()
}

// tracer stops the process before a statement is sent.
type tracer string

func (mode tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	before := map[tracer]string{"bare": "UPDATE", "late": "palisade_claim", "inside": "UPDATE"}[mode]
	if strings.Contains(data.SQL, before) {
		testserver.StopHere()
	}
	return ctx
}

func (tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A holder is stopped past its lease, and the next one writes. Without the fence, that acknowledged write is lost.
func TestAStoppedHolderLosesNothing(t *testing.T) {
	server := testserver.Serve(t)
	client := newClient(t, palisade.Endpoints(server.URL))
	for _, one := range []struct {
		mode, outcome string
		total         int
	}{
		{"bare", "written", 10}, // The control: 7 is lost.
		{"late", "stale PF001", 7},
		{"inside", "lost", 7},
	} {
		t.Run(one.mode, func(t *testing.T) {
			url := newShop(t)
			pool := newPool(t, url)
			stopped := testserver.StartWorker(t, one.mode, "SERVER="+server.URL, "SHOP="+url)
			stopped.AwaitStop(t)
			err := client.With(ctx, "orders", func(ctx context.Context, lease *palisade.Lease) error {
				return palisadepgx.Transact(ctx, pool, "orders", lease, func(tx pgx.Tx) error { return add(tx, 7) })
			})
			if err != nil {
				t.Fatal(err)
			}
			stopped.Continue(t)
			if outcome := stopped.Line(t); outcome != one.outcome {
				t.Errorf("%q and not %q", outcome, one.outcome)
			}
			mustBe(t, pool, one.total)
		})
	}
}

func TestWithoutAServerAndWithoutTheLockNothingIsWritten(t *testing.T) {
	pool := newPool(t, newShop(t))
	server, client := inMemory(t, palisade.Patience(time.Second))
	server.Down()
	writes := func(ctx context.Context, lease *palisade.Lease) error {
		return palisadepgx.Transact(ctx, pool, "orders", lease, func(tx pgx.Tx) error { return add(tx, 1) })
	}
	if err := client.With(ctx, "orders", writes, palisade.Wait(0)); !errors.Is(err, palisade.ErrUnavailable) {
		t.Error(err)
	}
	server.Up()
	if _, err := server.Hold("orders", "another"); err != nil {
		t.Fatal(err)
	}
	if err := client.With(ctx, "orders", writes, palisade.Wait(0)); !errors.Is(err, palisade.ErrHeld) {
		t.Error(err)
	}
	stranger := newClient(t, palisade.Endpoints(testserver.ServeStrict(t).URL), palisade.BearerToken("wrong"))
	var told *palisade.Error
	err := stranger.With(ctx, "orders", writes)
	if !errors.Is(err, palisade.ErrInvalid) || !errors.As(err, &told) || told.Code != "unauthenticated" {
		t.Error(err)
	}
	mustBe(t, pool, 0)
}

// The lease is lost in the transaction: its context ends, it rolls back, and the pool keeps the connection.
func TestALeaseThatIsLostInATransaction(t *testing.T) {
	pool := newPool(t, newShop(t))
	server, client := inMemory(t)
	var session uint32
	err := client.With(ctx, "orders", func(ctx context.Context, lease *palisade.Lease) error {
		return palisadepgx.Transact(ctx, pool, "orders", lease, func(tx pgx.Tx) error {
			session = tx.Conn().PgConn().PID()
			if err := add(tx, 1); err != nil {
				return err
			}
			server.Expire("orders")
			<-ctx.Done()
			return nil
		})
	}, palisade.TTL(3*time.Second))
	if !errors.Is(err, palisade.ErrLost) {
		t.Error(err)
	}
	mustBe(t, pool, 0)
	connection, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Release()
	if now := connection.Conn().PgConn().PID(); now != session || pool.Stat().TotalConns() != 1 {
		t.Errorf("session %d, before %d", now, session)
	}
}

func TestAPoolWithoutAFreeConnection(t *testing.T) {
	pool := newPool(t, newShop(t)+"&pool_max_conns=1")
	_, client := inMemory(t)
	lease := mustLock(t, client)
	taken, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	nothing := func(pgx.Tx) error { return nil }
	err = palisadepgx.Transact(short, pool, "orders", lease, nothing)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "nothing is written") {
		t.Error(err)
	}
	// The lease ends while it waits; then it is refused without a connection.
	ended := make(chan error)
	go func() { ended <- palisadepgx.Transact(lease.Context(), pool, "orders", lease, nothing) }()
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, palisade.ErrLost) {
		t.Error(err)
	}
	if err := palisadepgx.Transact(ctx, pool, "orders", lease, nothing); !errors.Is(err, palisade.ErrLost) {
		t.Error(err)
	}
	taken.Release()
	// A control.
	if err := palisadepgx.Transact(ctx, pool, "orders", mustLock(t, client), nothing); err != nil {
		t.Error(err)
	}
}

// A commit that fails leaves nothing, and pgx's own error says why.
func TestACommitThatFails(t *testing.T) {
	pool := newPool(t, newShop(t))
	_, client := inMemory(t)
	lease := mustLock(t, client)
	execute(t, pool, "CREATE TABLE parts (number int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	for name, one := range map[string]struct {
		work   func(pgx.Tx) error
		wanted func(error) bool
	}{
		"constraint": {func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO parts VALUES (1), (1)")
			return err
		}, func(err error) bool {
			var said *pgconn.PgError
			return errors.As(err, &said) && said.Code == "23505"
		}},
		"hidden": {func(tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "SELECT nonsense") // PostgreSQL answers the commit with a rollback.
			return nil
		}, func(err error) bool { return errors.Is(err, pgx.ErrTxCommitRollback) }},
		"connection": {func(tx pgx.Tx) error {
			var ended bool
			pid := tx.Conn().PgConn().PID()
			return pool.QueryRow(ctx, "SELECT pg_terminate_backend($1, 5000)", pid).Scan(&ended)
		}, func(err error) bool { return err != nil && !errors.Is(err, palisade.ErrLost) }},
	} {
		err := palisadepgx.Transact(ctx, pool, "orders", lease, func(tx pgx.Tx) error {
			if err := add(tx, 1); err != nil {
				return err
			}
			return one.work(tx)
		})
		if !one.wanted(err) {
			t.Errorf("%s: %v", name, err)
		}
		mustBe(t, pool, 0)
	}
	failed := errors.New("the work failed")
	fail := func(tx pgx.Tx) error { return errors.Join(add(tx, 1), failed) }
	if err := palisadepgx.Transact(ctx, pool, "orders", lease, fail); !errors.Is(err, failed) {
		t.Error(err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = palisadepgx.Transact(ctx, pool, "orders", lease, func(tx pgx.Tx) error { panic(add(tx, 1)) })
	}()
	mustBe(t, pool, 0)
	if err := palisadepgx.Transact(ctx, pool, "orders", lease, func(tx pgx.Tx) error { return add(tx, 1) }); err != nil {
		t.Error(err)
	}
	mustBe(t, pool, 1)
}

// A table that is guarded refuses what forgot the fence: in Transact, a write that belongs to another resource.
func TestATriggersRefusalIsThatOfTheFence(t *testing.T) {
	url := newShop(t)
	pool := newPool(t, url)
	testserver.InstallFence(t, url, "orders")
	_, client := inMemory(t)
	if err := order(ctx, client, pool); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"cache_statement", "simple_protocol"} {
		pool := newPool(t, url+"&default_query_exec_mode="+mode)
		for how, write := range map[string]func(pgx.Tx) error{
			"a statement": func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "UPDATE orders SET total = 99")
				return err
			},
			"a query": func(tx pgx.Tx) error {
				return tx.QueryRow(ctx, "UPDATE orders SET total = 99 RETURNING total").Scan(new(int))
			},
			"a batch": func(tx pgx.Tx) error {
				batch := &pgx.Batch{}
				batch.Queue("SELECT 1")
				batch.Queue("UPDATE orders SET total = 99")
				return tx.SendBatch(ctx, batch).Close()
			},
			"a copy": func(tx pgx.Tx) error {
				_, err := tx.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"total"}, pgx.CopyFromRows([][]any{{int32(99)}}))
				return err
			},
		} {
			err := palisadepgx.Transact(ctx, pool, "another", fence.Token(7), write)
			var rejection *fence.Rejection
			var said *pgconn.PgError
			if !errors.As(err, &rejection) || rejection.Code != "tokenless" || !errors.As(err, &said) {
				t.Errorf("%s, %s: %v", how, mode, err)
			}
		}
	}
	_, err := pool.Exec(ctx, "UPDATE orders SET total = 99")
	if rejection, refused := postgres.Rejected(err); !refused || rejection.Code != "tokenless" {
		t.Error(err)
	}
	mustBe(t, pool, 1)
}

// With every way in which pgx sends a statement: poolers need the simple ones.
func TestClaimsInEveryModeOfPgx(t *testing.T) {
	url := newShop(t)
	for token, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		pool := newPool(t, url+"&default_query_exec_mode="+mode)
		holders := map[string]fence.Holder{
			`it's "a" \ name?`: fence.NewPass(uint64(token)+1, "auth", "lock"), "orders": fence.Token(token + 1),
		}
		work := func(tx pgx.Tx) error { return add(tx, 1) }
		if err := palisadepgx.TransactAll(ctx, pool, holders, work); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		holders["orders"] = fence.Token(token + 2)
		holders[`it's "a" \ name?`] = fence.NewPass(uint64(token)+1, "auth", "another")
		if err := palisadepgx.TransactAll(ctx, pool, holders, work); !errors.Is(err, fence.ErrRejected) {
			t.Errorf("%s: %v", mode, err)
		}
	}
	mustBe(t, newPool(t, url), 5)
}

func TestMistakesAreNamed(t *testing.T) {
	url := newShop(t)
	testserver.InstallFence(t, url, "orders")
	pool := newPool(t, url)
	_, client := inMemory(t)
	lease := mustLock(t, client)
	var none *palisade.Lease
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := total(tx); err != nil {
		t.Fatal(err)
	}
	nothing := func(pgx.Tx) error { return nil }
	for words, err := range map[string]error{
		"was the lock acquired":    palisadepgx.Transact(ctx, pool, "orders", none, nothing),
		"the work is nil":          palisadepgx.Transact(ctx, pool, "orders", lease, nil),
		"one already":              palisadepgx.Transact(ctx, tx, "orders", lease, nothing),
		"claim first":              palisadepgx.Claim(ctx, tx, "orders", lease),
		"this one is nil":          palisadepgx.Claim(ctx, nil, "orders", lease),
		"no resource to claim":     palisadepgx.TransactAll(ctx, pool, nil, nothing),
		"fence install postgres":   palisadepgx.Transact(ctx, newPool(t, strings.Replace(serverURL, "/postgres?", "/template1?", 1)), "orders", lease, nothing),
		"not the name of a resour": palisadepgx.Transact(ctx, pool, "", lease, nothing),
	} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, and not %q", err, words)
		}
	}
}

// A listener keeps what a lease would tell its authority.
type listener struct {
	fence.Pass
	told []fence.Late
}

func (l *listener) Refused(late fence.Late) { l.told = append(l.told, late) }

func TestAHolderIsToldOfItsLateWrites(t *testing.T) {
	pool := newPool(t, newShop(t))
	nothing := func(pgx.Tx) error { return nil }
	if err := palisadepgx.Transact(ctx, pool, "b", fence.Token(8), nothing); err != nil {
		t.Fatal(err)
	}
	l := &listener{Pass: fence.NewPass(7, "one", "orders")}
	if err := palisadepgx.TransactAll(ctx, pool, map[string]fence.Holder{"a": l, "b": l}, nothing); !errors.Is(err, fence.ErrStale) {
		t.Fatal(err)
	}
	if want := (fence.Late{Lock: "orders", Resource: "b", Operation: "claim", Highest: 8}); len(l.told) != 1 || l.told[0] != want {
		t.Errorf("%+v", l.told)
	}
}
