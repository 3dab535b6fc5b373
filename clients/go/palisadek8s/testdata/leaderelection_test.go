// The tests of client-go's leaderelection_test.go, with its own elector, whose unexported methods they call, and Palisade in
// the place of the API server. clients/go-frameworks/check copies client-go's package beside this file. The names and the expectations are
// client-go's; a comment says where Palisade differs.
//
// Left out: coordinated elections, which are not supported; the form of a Lease object; the health check, which knows no lock;
// and that the identity may not be empty, which NewLock itself refuses.
package leaderelection

import (
	"context"
	"reflect"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"palisade.example/palisade"
	"palisade.example/palisade/palisadek8s"
	"palisade.example/palisade/palisadetest"
)

// A spy is the lock of "baz", which records what the elector does, and may fail in its place.
type spy struct {
	rl.Interface
	mu     sync.Mutex
	ops    []string
	events []string
	// fails returns the error of the n-th operation of that kind, from 1 on.
	fails func(op string, n int) error
}

func (s *spy) count(op string) error {
	s.mu.Lock()
	s.ops = append(s.ops, op)
	n := 0
	for _, one := range s.ops {
		if one == op {
			n++
		}
	}
	fails := s.fails
	s.mu.Unlock()
	if fails == nil {
		return nil
	}
	return fails(op, n)
}

func (s *spy) Get(ctx context.Context) (*rl.LeaderElectionRecord, []byte, error) {
	if err := s.count("get"); err != nil {
		return nil, nil, err
	}
	return s.Interface.Get(ctx)
}

func (s *spy) Create(ctx context.Context, record rl.LeaderElectionRecord) error {
	if err := s.count("create"); err != nil {
		return err
	}
	return s.Interface.Create(ctx, record)
}

func (s *spy) Update(ctx context.Context, record rl.LeaderElectionRecord) error {
	if err := s.count("update"); err != nil {
		return err
	}
	return s.Interface.Update(ctx, record)
}

func (s *spy) RecordEvent(event string) {
	s.mu.Lock()
	s.events = append(s.events, event)
	s.mu.Unlock()
	s.Interface.RecordEvent(event)
}

func (s *spy) all() (ops, events []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(ops, s.ops...), append(events, s.events...)
}

func newSpy(t *testing.T) (*palisadetest.Server, *spy) {
	t.Helper()
	server := palisadetest.NewServer()
	client, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	lock, err := palisadek8s.NewLock(client, "bar", "baz")
	if err != nil {
		t.Fatal(err)
	}
	return server, &spy{Interface: lock}
}

func newElector(lock rl.Interface, onNewLeader func(string)) *LeaderElector {
	return &LeaderElector{
		config: LeaderElectionConfig{
			Lock: lock, LeaseDuration: 10 * time.Second, RenewDeadline: 5 * time.Second,
			Callbacks: LeaderCallbacks{OnNewLeader: onNewLeader},
		},
		clock:   clock.RealClock{},
		metrics: globalMetricsFactory.newLeaderMetrics(),
	}
}

func TestTryAcquireOrRenewPalisade(t *testing.T) {
	future, past := time.Now().Add(1000*time.Hour), time.Now().Add(-1000*time.Hour)
	hold := func(t *testing.T, server *palisadetest.Server) *palisadetest.Held {
		t.Helper()
		held, err := server.Hold("bar", "bing")
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	for _, test := range []struct {
		name           string
		before         func(*testing.T, *palisadetest.Server, *LeaderElector)
		observedRecord rl.LeaderElectionRecord
		observedTime   time.Time
		expectSuccess  bool
		outHolder      string
		ops            []string
	}{
		{
			// client-go gets, and creates the object: a free lock of Palisade is never "not found".
			name: "acquire from no object", expectSuccess: true, outHolder: "baz", ops: []string{"get", "update"},
		},
		{
			name: "acquire from led object with the lease duration seconds",
			before: func(t *testing.T, server *palisadetest.Server, le *LeaderElector) {
				hold(t, server)
				if le.tryAcquireOrRenew(context.Background()) {
					t.Error("acquired from the one that leads")
				}
				server.Expire("bar")
			},
			expectSuccess: true, outHolder: "baz", ops: []string{"get", "get", "update"},
		},
		{
			name:          "acquire from unled object",
			before:        func(t *testing.T, server *palisadetest.Server, _ *LeaderElector) { hold(t, server).Release() },
			expectSuccess: true, outHolder: "baz", ops: []string{"get", "update"},
		},
		{
			// client-go acquires here, because by its own clock the leader did not renew for long. The leader of Palisade did:
			// the authority knows, and what the elector observed long ago does not count.
			name:           "acquire from led, unacked object",
			before:         func(t *testing.T, server *palisadetest.Server, _ *LeaderElector) { hold(t, server) },
			observedRecord: rl.LeaderElectionRecord{HolderIdentity: "bing"}, observedTime: past,
			expectSuccess: false, outHolder: "bing", ops: []string{"get"},
		},
		{
			name:         "acquire from empty led, acked object",
			observedTime: future, expectSuccess: true, outHolder: "baz", ops: []string{"get", "update"},
		},
		{
			name:         "don't acquire from led, acked object",
			before:       func(t *testing.T, server *palisadetest.Server, _ *LeaderElector) { hold(t, server) },
			observedTime: future, expectSuccess: false, outHolder: "bing", ops: []string{"get"},
		},
		{
			name: "renew already acquired object",
			before: func(t *testing.T, _ *palisadetest.Server, le *LeaderElector) {
				if !le.tryAcquireOrRenew(context.Background()) {
					t.Error("not acquired")
				}
			},
			expectSuccess: true, outHolder: "baz", ops: []string{"get", "update", "update"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			server, lock := newSpy(t)
			reported := make(chan string, 1)
			le := newElector(lock, func(identity string) { reported <- identity })
			if test.before != nil {
				test.before(t, server, le)
			}
			if test.observedRecord.HolderIdentity != "" {
				le.observedRecord = test.observedRecord
			}
			if !test.observedTime.IsZero() {
				le.observedTime = test.observedTime
			}
			if test.expectSuccess != le.tryAcquireOrRenew(context.Background()) {
				t.Errorf("unexpected result of tryAcquireOrRenew: [succeeded=%v]", !test.expectSuccess)
			}
			if le.observedRecord.HolderIdentity != test.outHolder {
				t.Errorf("expected holder:\n\t%+v\ngot:\n\t%+v", test.outHolder, le.observedRecord.HolderIdentity)
			}
			if ops, _ := lock.all(); !reflect.DeepEqual(ops, test.ops) {
				t.Errorf("wrong interactions: %q", ops)
			}
			le.maybeReportTransition()
			if leader := <-reported; leader != test.outHolder {
				t.Errorf("reported leader was not the new leader. expected %q, got %q", test.outHolder, leader)
			}
		})
	}
}

func TestReleaseLeasePalisade(t *testing.T) {
	server, lock := newSpy(t)
	reported := make(chan string, 2)
	le := newElector(lock, func(identity string) { reported <- identity })
	if !le.tryAcquireOrRenew(context.Background()) {
		t.Fatal("not acquired")
	}
	le.maybeReportTransition()
	<-reported
	if !le.release(klog.Background()) {
		t.Error("not released")
	}
	le.maybeReportTransition()
	if leader := <-reported; leader != "" || le.observedRecord.HolderIdentity != "" {
		t.Errorf("reported leader %q, observed %q", leader, le.observedRecord.HolderIdentity)
	}
	if holder := server.Holder("bar"); holder != nil {
		t.Error(holder)
	}
}

func TestReleaseMethodCallsGetPalisade(t *testing.T) {
	_, lock := newSpy(t)
	le := newElector(lock, func(string) {})
	le.observedRecord.HolderIdentity = "baz"
	le.release(klog.Background())
	if ops, _ := lock.all(); len(ops) == 0 || ops[0] != "get" {
		t.Errorf("release method does not call Get: %q", ops)
	}
}

func conflict() error {
	return errors.NewConflict(schema.GroupResource{Resource: "locks"}, "bar", nil)
}

func TestReleaseRetriesOnConflictPalisade(t *testing.T) {
	server, lock := newSpy(t)
	le := newElector(lock, func(string) {})
	if !le.tryAcquireOrRenew(context.Background()) {
		t.Fatal("not acquired")
	}
	conflicted := false
	lock.fails = func(op string, n int) error {
		if op == "update" && !conflicted {
			conflicted = true
			return conflict()
		}
		return nil
	}
	if !le.release(klog.Background()) || !conflicted || server.Holder("bar") != nil {
		t.Error("release should have succeeded after retrying on conflict")
	}
}

func TestReleaseOnCancellationPalisade(t *testing.T) {
	for name, canceled := range map[string]func(op string, n int) bool{
		// The first operation acquires; the fast path is skipped twice; the cancellation falls into the second slow one.
		"release acquired lock on cancellation of update": func(op string, n int) bool { return op == "update" && (n == 2 || n >= 4 && n <= 5) },
		"release acquired lock on cancellation of get":    func(op string, n int) bool { return op == "update" && (n == 2 || n == 4) || op == "get" && n == 3 },
	} {
		t.Run(name, func(t *testing.T) {
			server, lock := newSpy(t)
			onRenewCalled, onRenewResume := make(chan struct{}), make(chan struct{})
			var once sync.Once
			lock.fails = func(op string, n int) error {
				if !canceled(op, n) {
					return nil
				}
				if n >= 3 && (op == "get" || n == 5) {
					once.Do(func() {
						close(onRenewCalled)
						<-onRenewResume
					})
				}
				return context.Canceled
			}
			started := make(chan struct{})
			elector, err := NewLeaderElector(LeaderElectionConfig{
				Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 100 * time.Millisecond,
				ReleaseOnCancel: true,
				Callbacks: LeaderCallbacks{
					OnStoppedLeading: func() {}, OnStartedLeading: func(context.Context) { close(started) },
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			go func() {
				elector.Run(ctx)
				close(ended)
			}()
			for what, event := range map[string]chan struct{}{"become the leader": started, "renew the lock": onRenewCalled} {
				select {
				case <-event:
				case <-time.After(10 * time.Second):
					t.Fatal("failed to ", what)
				}
			}
			if server.Holder("bar") == nil {
				t.Error("not held")
			}
			cancel()
			close(onRenewResume)
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				t.Fatal("the elector did not end")
			}
			if holder := server.Holder("bar"); holder != nil {
				t.Errorf("the lock was not released: %v", holder)
			}
			if _, events := lock.all(); !reflect.DeepEqual(events, []string{"became leader", "stopped leading"}) {
				t.Errorf("%q", events)
			}
		})
	}
}

func TestFastPathLeaderElectionPalisade(t *testing.T) {
	// An update acquires, where client-go creates an object.
	for name, test := range map[string]struct {
		conflictAt, cancelAt int
		ops                  []string
	}{
		"Exercise fast path after lock acquired":      {0, 3, []string{"get", "update", "update", "update"}},
		"Fallback to slow path after fast path fails": {3, 5, []string{"get", "update", "update", "update", "get", "update", "update"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, lock := newSpy(t)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			lock.fails = func(op string, n int) error {
				if op == "update" && n == test.conflictAt {
					return conflict()
				}
				if op == "update" && n == test.cancelAt {
					cancel()
				}
				return nil
			}
			elector, err := NewLeaderElector(LeaderElectionConfig{
				Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 100 * time.Millisecond,
				Callbacks: LeaderCallbacks{OnStoppedLeading: func() {}, OnStartedLeading: func(context.Context) {}},
			})
			if err != nil {
				t.Fatal(err)
			}
			elector.Run(ctx)
			if ops, _ := lock.all(); !reflect.DeepEqual(ops, test.ops) {
				t.Errorf("Expected lock ops %q, got %q", test.ops, ops)
			}
		})
	}
}

// Its times are aggressive, to provoke races.
func TestCheckMethodRacePalisade(t *testing.T) {
	server := palisadetest.NewServer()
	client, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	lock, err := palisadek8s.NewLock(client, "bar", "baz", palisade.TTL(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	le, err := NewLeaderElector(LeaderElectionConfig{
		Lock: lock, LeaseDuration: 2 * time.Second, RenewDeadline: time.Second, RetryPeriod: 5 * time.Millisecond,
		Callbacks: LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		le.Run(ctx)
		close(ended)
	}()
	for start := time.Now(); time.Since(start) < 2*time.Second; {
		if err := le.Check(time.Second); err != nil {
			t.Error(err)
		}
		// real time: the check is asked for as long as a lease lasts, so renewals fall into it.
		time.Sleep(10 * time.Millisecond)
	}
	if !le.IsLeader() {
		t.Error("not the leader")
	}
	cancel()
	<-ended
}
