package palisadek8s_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"palisade.example/palisade"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/files"
	"palisade.example/palisade/internal/testserver"
	"palisade.example/palisade/palisadek8s"
	"palisade.example/palisade/palisadetest"
)

var ctx = context.Background()

func TestMain(m *testing.M) {
	if mode := testserver.Mode(); mode != "" {
		fmt.Println(worker(mode))
		return
	}
	os.Exit(m.Run())
}

func TestThePageHasTheseExamples(t *testing.T) {
	testserver.CheckPage(t, "example_test.go", "client-go")
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

func newLock(t *testing.T, client *palisade.Client, identity string, options ...palisade.LockOption) *palisadek8s.Lock {
	t.Helper()
	lock, err := palisadek8s.NewLock(client, "operator", identity, options...)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// config is that of an elector whose times are short.
func config(lock resourcelock.Interface, work func(context.Context)) leaderelection.LeaderElectionConfig {
	return leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 100 * time.Millisecond,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: work, OnStoppedLeading: func() {}},
	}
}

// An election is an elector that runs.
type election struct {
	*leaderelection.LeaderElector
	cancel func()
	ended  chan struct{}
}

func run(t *testing.T, config leaderelection.LeaderElectionConfig) *election {
	t.Helper()
	elector, err := leaderelection.NewLeaderElector(config)
	if err != nil {
		t.Fatal(err)
	}
	within, cancel := context.WithCancel(ctx)
	e := &election{elector, cancel, make(chan struct{})}
	go func() {
		defer close(e.ended)
		elector.Run(within)
	}()
	t.Cleanup(func() {
		cancel()
		<-e.ended
	})
	return e
}

func await[T any](t *testing.T, from <-chan T, what string) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(time.Minute):
		t.Fatal(what, "never came")
	}
	return got
}

// leads sends the lease when it leads, and returns the cause of the context's end.
func leads(lock *palisadek8s.Lock) (work func(context.Context), leases chan *palisade.Lease, causes chan error) {
	leases, causes = make(chan *palisade.Lease, 1), make(chan error, 1)
	return lock.Leading(func(ctx context.Context, lease *palisade.Lease) {
		leases <- lease
		<-ctx.Done()
		causes <- context.Cause(ctx)
	}), leases, causes
}

// A late leader's process is stopped after its check, and before anything is sent to the fence.
type late struct{ *palisade.Lease }

func (l late) Check() error {
	err := l.Lease.Check()
	testserver.StopHere()
	return err
}

// add reads a number, and writes another one in its place: through the fence, or without.
func add(path string, holder fence.Holder, number int) error {
	folder, err := files.Open(path)
	if err != nil {
		return err
	}
	defer folder.Close()
	before, err := folder.Observe("/total")
	if err != nil {
		return err
	}
	total, _ := strconv.Atoi(string(before))
	content := []byte(strconv.Itoa(total + number))
	if holder == nil {
		testserver.StopHere()
		return os.WriteFile(filepath.Join(path, "total"), content, 0o600)
	}
	return folder.Put(ctx, holder, "/total", content)
}

// worker is a leader that is stopped, "bare" after its read and its check, and "late" on the way to the fence.
func worker(mode string) string {
	client, err := palisade.New(palisade.Endpoints(os.Getenv("SERVER")))
	if err != nil {
		return err.Error()
	}
	lock, err := palisadek8s.NewLock(client, "operator", "stopped")
	if err != nil {
		return err.Error()
	}
	ends := make(chan error, 1)
	go leaderelection.RunOrDie(ctx, config(lock, lock.Leading(func(_ context.Context, lease *palisade.Lease) {
		if mode == "bare" {
			if err := lease.Check(); err != nil {
				ends <- err
				return
			}
			ends <- add(os.Getenv("FOLDER"), nil, 10)
			return
		}
		ends <- add(os.Getenv("FOLDER"), late{lease}, 10)
	})))
	switch err := <-ends; {
	case err == nil:
		return "written"
	case errors.Is(err, fence.ErrStale):
		return "stale"
	default:
		return err.Error()
	}
}

// A leader is stopped past its lease, and another one is elected and writes. Without the fence, that acknowledged write is lost.
func TestAStoppedLeaderLosesNothing(t *testing.T) {
	t.Parallel()
	server := testserver.Serve(t)
	client, err := palisade.New(palisade.Endpoints(server.URL))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for mode, wanted := range map[string]string{"bare": "written 10", "late": "stale 7"} {
		t.Run(mode, func(t *testing.T) {
			folder := t.TempDir()
			stopped := testserver.StartWorker(t, mode, "SERVER="+server.URL, "FOLDER="+folder)
			stopped.AwaitStop(t)
			lock, written := newLock(t, client, "next"), make(chan error, 1)
			next := config(lock, lock.Leading(func(_ context.Context, lease *palisade.Lease) { written <- add(folder, lease, 7) }))
			next.ReleaseOnCancel = true
			elected := run(t, next)
			if err := await(t, written, "the next leader"); err != nil {
				t.Fatal(err)
			}
			stopped.Continue(t)
			outcome := stopped.Line(t)
			content, err := os.ReadFile(filepath.Join(folder, "total"))
			if found := outcome + " " + string(content); err != nil || found != wanted {
				t.Errorf("%q and not %q: %v", found, wanted, err)
			}
			elected.cancel()
			<-elected.ended
		})
	}
}

// The elector looks at no clock of the lease, and has no push: the work's context ends at once. Then nobody is elected under
// the elector's nose, although the lock is free: the work has the old token.
func TestALostLeaseEndsTheLeadership(t *testing.T) {
	t.Parallel()
	server, client := inMemory(t)
	lock := newLock(t, client, "leader")
	work, leases, causes := leads(lock)
	elected := run(t, config(lock, work))
	first := await(t, leases, "the lease")
	if lease, err := lock.Lease(); err != nil || lease != first {
		t.Error(lease, err)
	}
	server.Expire("operator")
	if cause := await(t, causes, "the end of the work"); !errors.Is(cause, palisade.ErrLost) {
		t.Error(cause)
	}
	if _, err := lock.Lease(); !errors.Is(err, palisadek8s.ErrNotLeading) || !errors.Is(err, palisade.ErrLost) {
		t.Error(err)
	}
	await(t, elected.ended, "the end of the elector")
	if tokens := server.Tokens("operator"); len(tokens) != 1 {
		t.Errorf("elected again meanwhile: %v", tokens)
	}
	if elected.IsLeader() {
		t.Error("it believes that it leads")
	}
	// Run again, it is elected again, with another token.
	run(t, config(lock, work))
	if second := await(t, leases, "the second lease"); second.Token() <= first.Token() {
		t.Error(second.Token(), first.Token())
	}
}

// A releasing lock tells when the elector releases it.
type releasing struct {
	*palisadek8s.Lock
	begun chan struct{}
}

func (l releasing) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		close(l.begun)
	}
	return l.Lock.Update(ctx, record)
}

// kubernetes#139991: the elector releases while OnStartedLeading may still run.
func TestAReleaseWaitsForTheWork(t *testing.T) {
	server, client := inMemory(t)
	lock := releasing{newLock(t, client, "leader"), make(chan struct{})}
	began, end := make(chan *palisade.Lease), make(chan struct{})
	released := config(lock, lock.Leading(func(ctx context.Context, lease *palisade.Lease) {
		began <- lease
		<-ctx.Done()
		<-end
		if err := lease.Check(); err != nil {
			t.Errorf("released under the work: %v", err)
		}
	}))
	released.ReleaseOnCancel = true
	elected := run(t, released)
	await(t, began, "the lease")
	elected.cancel()
	await(t, lock.begun, "the release")
	time.Sleep(50 * time.Millisecond) // real time: a release that does not wait has happened by then.
	if server.Holder("operator") == nil {
		t.Error("it was released before the work had ended")
	}
	close(end)
	await(t, elected.ended, "the end of the elector")
	if holder := server.Holder("operator"); holder != nil {
		t.Errorf("not released: %v", holder)
	}
}

// Work that never returns holds no release up for ever: the lease runs out. And a callback that is not made by Leading is not
// waited for, as in Kubernetes; its fences refuse it.
func TestAReleaseUnderWorkThatGoesOn(t *testing.T) {
	t.Parallel()
	server, client := inMemory(t)
	folder, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	for _, waits := range []bool{true, false} {
		lock := newLock(t, client, "leader", palisade.TTL(1500*time.Millisecond))
		began, end := make(chan *palisade.Lease, 1), make(chan struct{})
		work := lock.Leading(func(_ context.Context, lease *palisade.Lease) {
			began <- lease
			<-end
		})
		if !waits {
			work = func(context.Context) {
				lease, err := lock.Lease()
				if err != nil {
					t.Error(err)
				}
				began <- lease
				<-end
			}
		}
		released := config(lock, work)
		released.ReleaseOnCancel = true
		elected := run(t, released)
		lease := await(t, began, "the lease")
		elected.cancel()
		await(t, elected.ended, "the end of the elector")
		if isHeld := server.Holder("operator") != nil; isHeld != waits {
			t.Errorf("held: %v; waits for the work: %v", isHeld, waits)
		}
		if err := folder.Put(ctx, lease, "/report", []byte("late")); !errors.Is(err, palisade.ErrLost) {
			t.Error(err)
		}
		if _, err := lock.Lease(); !errors.Is(err, palisadek8s.ErrNotLeading) {
			t.Error(err)
		}
		close(end)
		// Not renewed: the next leader need not wait for longer than the lease.
		next, err := client.Lock(ctx, "operator", palisade.Wait(30*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if err := next.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// Without ReleaseOnCancel the lock is free when the lease is over, as Kubernetes' own: the work may still run.
func TestWithoutReleaseOnCancelTheLeaseRunsOut(t *testing.T) {
	t.Parallel()
	server, client := inMemory(t)
	lock := newLock(t, client, "leader")
	work, leases, _ := leads(lock)
	elected := run(t, config(lock, work))
	await(t, leases, "the lease")
	elected.cancel()
	<-elected.ended
	if server.Holder("operator") == nil {
		t.Error("it was released")
	}
	if _, err := client.Lock(ctx, "operator", palisade.Wait(30*time.Second)); err != nil {
		t.Error(err)
	}
}

// Its predecessor, or another process by mistake, has the same identity: client-go would take its leadership for its own.
func TestTheSameIdentityIsAnotherLeader(t *testing.T) {
	_, client := inMemory(t)
	first, second := newLock(t, client, "same"), newLock(t, client, "same")
	work, leases, _ := leads(first)
	run(t, config(first, work))
	lease := await(t, leases, "the lease")
	other, seen := config(second, func(context.Context) { t.Error("two leaders") }), make(chan string, 10)
	other.Callbacks.OnNewLeader = func(identity string) { seen <- identity }
	standby := run(t, other)
	identity := await(t, seen, "the leader")
	if standby.IsLeader() || !strings.Contains(identity, fmt.Sprint("another process, fencing token ", lease.Token())) {
		t.Error(identity, standby.IsLeader())
	}
	record, _, err := first.Get(ctx)
	if err != nil || record.HolderIdentity != "same" || record.LeaderTransitions != int(lease.Token()) {
		t.Error(record, err)
	}
}

// The errors that the elector gets, in Kubernetes' words and the client's.
func TestTheLocksErrors(t *testing.T) {
	t.Parallel()
	server, client := inMemory(t, palisade.Patience(time.Second))
	lock := newLock(t, client, "leader")
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "leader", LeaseDurationSeconds: 3}
	if free, raw, err := lock.Get(ctx); err != nil || free.HolderIdentity != "" || len(raw) == 0 {
		t.Error(free, err)
	}
	held, err := server.Hold("operator", "another")
	if err != nil {
		t.Fatal(err)
	}
	if found, _, err := lock.Get(ctx); err != nil || found.HolderIdentity != "another" || found.LeaseDurationSeconds < 1 {
		t.Error(found, err)
	}
	for _, try := range []func(context.Context, resourcelock.LeaderElectionRecord) error{lock.Create, lock.Update} {
		if err := try(ctx, record); !apierrors.IsConflict(err) || !errors.Is(err, palisade.ErrHeld) {
			t.Error(err)
		}
	}
	held.Release()
	server.Down()
	if err := lock.Update(ctx, record); !errors.Is(err, palisade.ErrUnavailable) || apierrors.IsConflict(err) {
		t.Error(err)
	}
	if _, _, err := lock.Get(ctx); !errors.Is(err, palisade.ErrUnavailable) {
		t.Error(err)
	}
	server.Up()
	if err := lock.Update(ctx, record); err != nil {
		t.Fatal(err)
	}
	// A leader's renewal needs no server.
	server.Down()
	if err := lock.Update(ctx, record); err != nil {
		t.Error(err)
	}
	server.Up()
	lease, err := lock.Lease()
	if err != nil {
		t.Fatal(err)
	}
	server.Revoke("operator", "the test")
	<-lease.Lost()
	if err := lock.Update(ctx, record); !apierrors.IsConflict(err) || !errors.Is(err, palisade.ErrLost) {
		t.Error(err)
	}
	// A conflict here would be repeated without a pause.
	if err := lock.Update(ctx, resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1}); err != nil {
		t.Error(err)
	}
	record.LeaseDurationSeconds = 0
	if err := newLock(t, client, "leader").Update(ctx, record); err == nil || !strings.Contains(err.Error(), "LeaseDuration") {
		t.Error(err)
	}
	stranger, err := palisade.New(palisade.Endpoints(testserver.ServeStrict(t).URL), palisade.BearerToken("wrong"))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	record.LeaseDurationSeconds = 3
	if err := newLock(t, stranger, "leader").Update(ctx, record); !errors.Is(err, palisade.ErrInvalid) || apierrors.IsConflict(err) {
		t.Error(err)
	}
	if _, err := palisadek8s.NewLock(client, "operator", ""); err == nil {
		t.Error("an empty identity")
	}
	if _, err := palisadek8s.NewLock(nil, "operator", "leader"); err == nil {
		t.Error("no client")
	}
}

// The page's example.
func TestTheExampleWrites(t *testing.T) {
	_, client := inMemory(t)
	folder, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	within, cancel := context.WithCancel(ctx)
	ended, stopped := make(chan error), make(chan struct{})
	go func() { ended <- lead(within, client, folder, func() { close(stopped) }) }()
	for timeout := time.Now().Add(time.Minute); ; {
		if content, err := folder.Observe("/report"); err != nil || string(content) == "done" {
			break
		}
		if time.Now().After(timeout) {
			t.Fatal("nothing was written")
		}
		time.Sleep(10 * time.Millisecond) // real time: the example's work tells nobody.
	}
	cancel()
	await(t, stopped, "OnStoppedLeading")
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
