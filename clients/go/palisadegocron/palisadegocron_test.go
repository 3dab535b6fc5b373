package palisadegocron_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	"palisade.example/palisade"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/files"
	"palisade.example/palisade/internal/testserver"
	"palisade.example/palisade/palisadegocron"
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
	testserver.CheckPage(t, "example_test.go", "gocron-locker", "gocron-elector")
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

// A scheduler tells what its jobs came to.
type scheduler struct {
	gocron.Scheduler
	ends chan error
}

// schedule begins a job that is due at once, and then each 100 ms until it is shut down.
func schedule(task gocron.Task, how gocron.SchedulerOption) (*scheduler, error) {
	made, err := gocron.NewScheduler(how, gocron.WithStopTimeout(30*time.Second))
	if err != nil {
		return nil, err
	}
	s := &scheduler{made, make(chan error)}
	var shut sync.Once
	ended := make(chan struct{})
	say := func(err error) {
		select {
		case s.ends <- err:
		case <-ended:
		}
	}
	s.Scheduler = stopping{made, func() { shut.Do(func() { close(ended) }) }}
	_, err = made.NewJob(gocron.DurationJob(100*time.Millisecond), task, gocron.WithName("nightly"),
		gocron.JobOption(gocron.WithStartAt(gocron.WithStartImmediately())),
		gocron.WithSingletonMode(gocron.LimitModeReschedule),
		gocron.WithEventListeners(
			gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { say(err) }),
			gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { say(err) }),
			gocron.AfterJobRuns(func(uuid.UUID, string) { say(nil) })))
	made.Start()
	return s, err
}

type stopping struct {
	gocron.Scheduler
	stop func()
}

func (s stopping) Shutdown() error {
	s.stop()
	return s.Scheduler.Shutdown()
}

func mustSchedule(t *testing.T, task gocron.Task, how gocron.SchedulerOption) *scheduler {
	t.Helper()
	s, err := schedule(task, how)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Shutdown() })
	return s
}

// await is the first end of a job that is wanted.
func (s *scheduler) await(t *testing.T, wanted func(error) bool) {
	t.Helper()
	var last error
	for timeout := time.After(time.Minute); ; {
		select {
		case last = <-s.ends:
			if wanted(last) {
				return
			}
		case <-timeout:
			t.Fatalf("it never came; the last is: %v", last)
		}
	}
}

func is(wanted error) func(error) bool { return func(err error) bool { return errors.Is(err, wanted) } }

func done(err error) bool { return err == nil }

// A way is one in which gocron may be distributed.
type way struct {
	lock string
	make func(*palisade.Client, ...palisade.LockOption) distributed
}

type distributed struct {
	task func(palisadegocron.Work) gocron.Task
	by   gocron.SchedulerOption
	end  func()
}

var ways = map[string]way{
	"locker": {"nightly", func(client *palisade.Client, options ...palisade.LockOption) distributed {
		locker := palisadegocron.NewLocker(client, 0, options...)
		return distributed{locker.Task, gocron.WithDistributedLocker(locker), func() {}}
	}},
	"elector": {"leader", func(client *palisade.Client, options ...palisade.LockOption) distributed {
		elector := palisadegocron.NewElector(client, "leader", options...)
		end := func() { _ = elector.Resign(ctx) }
		return distributed{elector.Task, gocron.WithDistributedElector(elector), end}
	}},
}

// A late holder's process is stopped after its check, and before anything is sent to the fence.
type late struct{ *palisade.Lease }

func (l late) Check() error {
	err := l.Lease.Check()
	testserver.StopHere()
	return err
}

// add reads a number, and writes another one in its place: through the fence, or without.
func add(ctx context.Context, path string, holder fence.Holder, number int) error {
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

// worker is a node whose job is stopped, "WAY bare" after its read and its check, and "WAY late" on the way to the fence.
func worker(mode string) string {
	var how, when string
	if _, err := fmt.Sscan(mode, &how, &when); err != nil {
		return err.Error()
	}
	client, err := palisade.New(palisade.Endpoints(os.Getenv("SERVER")))
	if err != nil {
		return err.Error()
	}
	d := ways[how].make(client, palisade.TTL(2*time.Second))
	s, err := schedule(d.task(func(ctx context.Context, lease *palisade.Lease) error {
		if when == "bare" {
			if err := lease.Check(); err != nil {
				return err
			}
			return add(ctx, os.Getenv("FOLDER"), nil, 10)
		}
		return add(ctx, os.Getenv("FOLDER"), late{lease}, 10)
	}), d.by)
	if err != nil {
		return err.Error()
	}
	switch err := <-s.ends; {
	case err == nil:
		return "written"
	case errors.Is(err, fence.ErrStale):
		return "stale"
	default:
		return err.Error()
	}
}

// A node is stopped past its lease, and another one runs the job. Without the fence, that acknowledged write is lost.
func TestAStoppedNodeLosesNothing(t *testing.T) {
	server := testserver.Serve(t)
	client, err := palisade.New(palisade.Endpoints(server.URL))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for how, one := range ways {
		for when, wanted := range map[string]string{"bare": "written 10", "late": "stale 7"} {
			t.Run(how+" "+when, func(t *testing.T) {
				folder := t.TempDir()
				stopped := testserver.StartWorker(t, how+" "+when, "SERVER="+server.URL, "FOLDER="+folder)
				stopped.AwaitStop(t)
				d := one.make(client)
				var once sync.Once
				t.Cleanup(d.end)
				here := mustSchedule(t, d.task(func(ctx context.Context, lease *palisade.Lease) (err error) {
					once.Do(func() { err = add(ctx, folder, lease, 7) })
					return err
				}), d.by)
				here.await(t, done)
				stopped.Continue(t)
				outcome := stopped.Line(t)
				content, err := os.ReadFile(filepath.Join(folder, "total"))
				if found := outcome + " " + string(content); err != nil || found != wanted {
					t.Errorf("%q and not %q: %v", found, wanted, err)
				}
			})
		}
	}
}

// The error of the job is the fence's own, in gocron's listener.
func TestARefusalReachesTheListener(t *testing.T) {
	for how, one := range ways {
		t.Run(how, func(t *testing.T) {
			_, client := inMemory(t)
			folder, err := files.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer folder.Close()
			d := one.make(client)
			t.Cleanup(d.end)
			s := mustSchedule(t, d.task(func(ctx context.Context, lease *palisade.Lease) error {
				newer := fence.NewPass(lease.Token()+5, lease.Authority(), lease.Name())
				if err := folder.Put(ctx, newer, "/total", []byte("7")); err != nil {
					return err
				}
				return folder.Put(ctx, lease, "/total", []byte("10"))
			}), d.by)
			s.await(t, func(err error) bool {
				var rejection *fence.Rejection
				return errors.As(err, &rejection) && errors.Is(err, fence.ErrStale)
			})
		})
	}
}

// The lease is lost while the job runs: its context ends, and says why.
func TestALeaseThatIsLostInARun(t *testing.T) {
	for how, one := range ways {
		t.Run(how, func(t *testing.T) {
			server, client := inMemory(t)
			folder, err := files.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer folder.Close()
			d := one.make(client, palisade.TTL(time.Second))
			tokens := make(chan uint64, 2)
			t.Cleanup(d.end)
			s := mustSchedule(t, d.task(func(ctx context.Context, lease *palisade.Lease) error {
				select {
				case tokens <- lease.Token():
				default:
					return nil
				}
				server.Expire(one.lock)
				<-ctx.Done()
				if cause := context.Cause(ctx); !errors.Is(cause, palisade.ErrLost) {
					t.Errorf("the context's cause: %v", cause)
				}
				return folder.Put(ctx, lease, "/total", []byte("10"))
			}), d.by)
			s.await(t, is(palisade.ErrLost))
			// It goes on with another lease.
			s.await(t, is(palisade.ErrLost))
			if first, second := <-tokens, <-tokens; second <= first {
				t.Errorf("token %d after %d", second, first)
			}
		})
	}
}

// Any error of the lock is gocron's reason to skip the run.
func TestARunIsSkippedWithoutAServerOrWithoutTheLock(t *testing.T) {
	server, client := inMemory(t, palisade.Patience(time.Second))
	locker := palisadegocron.NewLocker(client, 0)
	held, err := server.Hold("nightly", "another")
	if err != nil {
		t.Fatal(err)
	}
	server.Down()
	s := mustSchedule(t, locker.Task(func(context.Context, *palisade.Lease) error { return nil }), gocron.WithDistributedLocker(locker))
	s.await(t, is(palisade.ErrUnavailable))
	server.Up()
	s.await(t, func(err error) bool {
		var held *palisade.HeldError
		return errors.As(err, &held) && held.Holder.ClientID == "another"
	})
	held.Release()
	s.await(t, done)

	stranger, err := palisade.New(palisade.Endpoints(testserver.ServeStrict(t).URL), palisade.BearerToken("wrong"))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	refused := palisadegocron.NewLocker(stranger, 0)
	s = mustSchedule(t, refused.Task(func(context.Context, *palisade.Lease) error { return nil }), gocron.WithDistributedLocker(refused))
	s.await(t, func(err error) bool {
		var told *palisade.Error
		return errors.Is(err, palisade.ErrInvalid) && errors.As(err, &told) && told.Code == "unauthenticated"
	})
}

// An Elector's errors reach no listener, so they are seen here.
func TestOneOfTwoElectorsLeads(t *testing.T) {
	server, client := inMemory(t, palisade.Patience(time.Second))
	first, second := palisadegocron.NewElector(client, "leader"), palisadegocron.NewElector(client, "leader")
	if _, err := first.Lease(); !errors.Is(err, palisadegocron.ErrNoLease) {
		t.Error(err)
	}
	if err := first.Resign(ctx); err != nil {
		t.Error(err)
	}
	// Several jobs that are due at once ask at once: one campaign.
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := first.IsLeader(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if tokens := server.Tokens("leader"); len(tokens) != 1 {
		t.Error(tokens)
	}
	if err := second.IsLeader(ctx); !errors.Is(err, palisade.ErrHeld) {
		t.Error(err)
	}
	server.Down()
	if err := second.IsLeader(ctx); !errors.Is(err, palisade.ErrUnavailable) {
		t.Error(err)
	}
	// The leader needs no server to know that it leads.
	if err := first.IsLeader(ctx); err != nil {
		t.Error(err)
	}
	server.Up()
	if err := first.Resign(ctx); err != nil {
		t.Error(err)
	}
	if _, err := first.Lease(); !errors.Is(err, palisade.ErrLost) {
		t.Error(err)
	}
	if err := second.IsLeader(ctx); err != nil {
		t.Error(err)
	}
}

// gocron gives the lock back after the run, so a scheduler whose clock is late would run a short job again.
func TestALateClockRunsNothingAgainWithinTheSplay(t *testing.T) {
	for splay, again := range map[time.Duration]error{time.Minute: palisade.ErrHeld, 0: nil} {
		_, client := inMemory(t)
		early, lateOne := palisadegocron.NewLocker(client, splay), palisadegocron.NewLocker(client, splay)
		lock, err := early.Lock(ctx, "nightly")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Unlock(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := lateOne.Lock(ctx, "nightly"); !errors.Is(err, again) {
			t.Errorf("a splay of %v: %v", splay, err)
		}
	}
}

// gocron cancels the job's context at its shutdown, and the lock is free when that has returned.
func TestAShutdownFreesTheLock(t *testing.T) {
	server, client := inMemory(t)
	locker := palisadegocron.NewLocker(client, 0)
	begun := make(chan struct{})
	var once sync.Once
	s := mustSchedule(t, locker.Task(func(ctx context.Context, lease *palisade.Lease) error {
		once.Do(func() { close(begun) })
		<-ctx.Done()
		return lease.Check()
	}), gocron.WithDistributedLocker(locker))
	<-begun
	if err := s.Shutdown(); err != nil {
		t.Error(err)
	}
	if holder := server.Holder("nightly"); holder != nil {
		t.Errorf("held by %v", holder)
	}
	lock, err := locker.Lock(ctx, "nightly")
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if err := lock.Unlock(canceled); err != nil {
		t.Errorf("not released when it returned: %v", err)
	}
}

// A run is late at its task: its lease was lost, and the next run of this process has one. Two runs never share a lease.
func TestALateRunHasNoOtherRunsLease(t *testing.T) {
	server, client := inMemory(t)
	locker := palisadegocron.NewLocker(client, 0)
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		t.Fatal(err)
	}
	var begun atomic.Bool
	runs, ends := make(chan uint64, 2), make(chan error, 2)
	next, over := make(chan struct{}), make(chan struct{})
	var job gocron.Job
	job, err = s.NewJob(gocron.DurationJob(time.Hour), locker.Task(func(_ context.Context, lease *palisade.Lease) error {
		runs <- lease.Token()
		if len(runs) == 1 {
			close(next)
			<-over
		}
		return nil
	}), gocron.WithName("nightly"), gocron.WithEventListeners(
		gocron.BeforeJobRuns(func(uuid.UUID, string) {
			if begun.CompareAndSwap(false, true) {
				server.Expire("nightly")
				go func() { _ = job.RunNow() }()
				<-next
			}
		}),
		gocron.AfterJobRuns(func(uuid.UUID, string) { ends <- nil }),
		gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { ends <- err }),
	))
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if err := job.RunNow(); err != nil {
		t.Fatal(err)
	}
	if err := <-ends; !errors.Is(err, palisadegocron.ErrNoLease) {
		t.Error(err)
	}
	close(over)
	if err := s.Shutdown(); err != nil {
		t.Error(err)
	}
	if len(runs) != 1 || <-runs != 2 {
		t.Error("not the second run alone")
	}
}

// All tasks of a Locker have one name in gocron, which would be the lock of all of them.
func TestMistakesAreNamed(t *testing.T) {
	_, client := inMemory(t)
	if err := palisadegocron.NewElector(nil, "leader").IsLeader(ctx); err == nil {
		t.Error("an elector without a client")
	}
	if _, err := palisadegocron.NewLocker(nil, 0).Lock(ctx, "nightly"); err == nil {
		t.Error("a locker without a client")
	}
	locker := palisadegocron.NewLocker(client, 0)
	nothing := func(context.Context, *palisade.Lease) error { return nil }
	for name, one := range map[string]struct {
		task   gocron.Task
		option gocron.SchedulerOption
		named  []gocron.JobOption
		listen func(func(uuid.UUID, string, error)) gocron.EventListener
	}{
		"a job without a name": {locker.Task(nothing), gocron.WithDistributedLocker(locker), nil, gocron.AfterLockError},
		"no work": {
			locker.Task(nil), gocron.WithDistributedLocker(locker),
			[]gocron.JobOption{gocron.WithName("nothing")}, gocron.AfterJobRunsWithError,
		},
		"another's locker": {
			locker.Task(nothing), gocron.WithDistributedLocker(palisadegocron.NewLocker(client, 0)),
			[]gocron.JobOption{gocron.WithName("nightly")}, gocron.AfterJobRunsWithError,
		},
	} {
		s, err := gocron.NewScheduler(one.option)
		if err != nil {
			t.Fatal(err)
		}
		said := make(chan error, 1)
		listener := gocron.WithEventListeners(one.listen(func(_ uuid.UUID, _ string, err error) { said <- err }))
		_, err = s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), one.task, append(one.named, listener)...)
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		if err := <-said; err == nil {
			t.Error(name)
		} else {
			t.Log(err)
		}
		_ = s.Shutdown()
	}
}

// The page's examples, on a server that runs.
func TestTheExamplesWrite(t *testing.T) {
	_, client := inMemory(t)
	for _, example := range []func(*palisade.Client, *files.Folder) (gocron.Scheduler, error){nightly, elected} {
		folder, err := files.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer folder.Close()
		s, err := example(client, folder)
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		for _, job := range s.Jobs() {
			if err := job.RunNow(); err != nil {
				t.Error(err)
			}
		}
		for timeout := time.Now().Add(time.Minute); ; {
			if content, err := folder.Observe("/report"); err != nil || string(content) == "done" {
				break
			}
			if time.Now().After(timeout) {
				t.Fatal("nothing was written")
			}
			time.Sleep(10 * time.Millisecond) // real time: gocron tells no listener of the example's job.
		}
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	}
}
