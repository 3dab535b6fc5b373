// Package palisadegocron has a Locker and an Elector for gocron, which give each run a lease with a fencing token:
//
//	locker := palisadegocron.NewLocker(client, 5*time.Second)
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//	…
//	_, err = scheduler.NewJob(gocron.CronJob("0 3 * * *", false), locker.Task(nightly), gocron.WithName("nightly"))
//
// nightly is a func(context.Context, *palisade.Lease) error. It writes through a fence, with its lease.
package palisadegocron

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"palisade.example/palisade"
)

// Work is a job. Its context ends with gocron's, and when the lease is lost.
type Work = func(context.Context, *palisade.Lease) error

// ErrNoLease: the task has no lease, so the work was not begun.
var ErrNoLease = errors.New("palisade: the run has no lease")

var errNoClient = errors.New("palisade: the client is nil: did palisade.New return an error?")

// A Locker is a gocron.Locker: of the schedulers that share it, one runs a job at a time. The lock's name is the job's.
type Locker struct {
	client  *palisade.Client
	options []palisade.LockOption

	mu sync.Mutex
	// Leases that no task has taken yet, by the context of their job.
	granted map[context.Context]*palisade.Lease
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker makes one for gocron.WithDistributedLocker or gocron.WithDistributedJobLocker.
//
// The splay is how far the clocks of the schedulers are apart, and has to be shorter than the interval of the jobs. A lock
// stays closed for that long from the beginning of a run: gocron gives it back after the run, and a scheduler whose clock is
// late would run a short job again. More options apply to each lock, such as palisade.TTL; by default a lease lasts 15 s,
// and is renewed until the run ends.
func NewLocker(client *palisade.Client, splay time.Duration, options ...palisade.LockOption) *Locker {
	return &Locker{
		client:  client,
		options: append([]palisade.LockOption{palisade.AtLeastFor(splay)}, options...),
		granted: map[context.Context]*palisade.Lease{},
	}
}

// Lock is for gocron. It does not wait. After an error, which is that of palisade.Client.TryLock, gocron skips the run, and
// tells the event listener gocron.AfterLockError.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	if l.client == nil {
		return nil, errNoClient
	}
	if key == unnamed {
		return nil, errors.New("palisade: a job of Locker.Task needs a name, which is that of its lock: use gocron.WithName")
	}
	lease, err := l.client.TryLock(ctx, key, l.options...)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.granted[ctx] = lease
	return &lock{l, ctx, lease}, nil
}

// Task makes a task of gocron, whose run has the lease of its lock. The job needs a name (gocron.WithName). gocron tells the
// work's error to the event listener gocron.AfterJobRunsWithError, as it is.
func (l *Locker) Task(work Work) gocron.Task {
	return gocron.NewTask((&run{func(ctx context.Context) (*palisade.Lease, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		// Of two runs that overlap, because the first one's lease was lost, only one takes it.
		lease := l.granted[ctx]
		delete(l.granted, ctx)
		if lease == nil {
			return nil, fmt.Errorf("%w: give the scheduler this Locker with gocron.WithDistributedLocker, and no Elector", ErrNoLease)
		}
		return lease, nil
	}, work}).do)
}

// A lock is that of one run.
type lock struct {
	locker *Locker
	job    context.Context
	lease  *palisade.Lease
}

// Unlock is for gocron. The job's context has ended if the scheduler was shut down, and the lock is to be free then, too.
func (l *lock) Unlock(ctx context.Context) error {
	l.locker.mu.Lock()
	if l.locker.granted[l.job] == l.lease {
		delete(l.locker.granted, l.job)
	}
	l.locker.mu.Unlock()
	return l.lease.Release(context.WithoutCancel(ctx))
}

// An Elector is a gocron.Elector: of the schedulers that share its election, one runs jobs. A lease that is lost is followed
// by another election, in which each scheduler takes part when its next job is due.
//
// gocron asks no Locker when there is an Elector, and tells no event listener that a run was skipped.
type Elector struct {
	client  *palisade.Client
	name    string
	options []palisade.LockOption

	// Has one element while no campaign is under way.
	turn  chan struct{}
	mu    sync.Mutex
	lease *palisade.Lease
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector makes one for gocron.WithDistributedElector. The name is that of the election's lock.
func NewElector(client *palisade.Client, name string, options ...palisade.LockOption) *Elector {
	turn := make(chan struct{}, 1)
	turn <- struct{}{}
	return &Elector{client: client, name: name, options: options, turn: turn}
}

// IsLeader is for gocron: nil if this process leads now, or was elected by this call. It does not wait for another leader to
// end. The error is that of palisade.Client.TryLock.
func (e *Elector) IsLeader(ctx context.Context) error {
	if e.client == nil {
		return errNoClient
	}
	if _, err := e.Lease(); err == nil {
		return nil
	}
	select {
	case <-e.turn:
		defer func() { e.turn <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if _, err := e.Lease(); err == nil {
		return nil
	}
	lease, err := e.client.TryLock(ctx, e.name, e.options...)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lease = lease
	return nil
}

// Lease is that of the leader. Take it once for each run, when the run begins: a later leadership has another token. The
// error is ErrNoLease if this process was never elected, and palisade.ErrLost if it does not lead any more.
func (e *Elector) Lease() (*palisade.Lease, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lease == nil {
		return nil, fmt.Errorf("%w: this process was not elected as %q", ErrNoLease, e.name)
	}
	if err := e.lease.Check(); err != nil {
		return nil, err
	}
	return e.lease, nil
}

// Task makes a task of gocron, whose run has the leader's lease.
func (e *Elector) Task(work Work) gocron.Task {
	return gocron.NewTask((&run{func(context.Context) (*palisade.Lease, error) { return e.Lease() }, work}).do)
}

// Resign ends the leadership, if there is one: call it after the scheduler's Shutdown, and another scheduler is elected at
// once. The errors are those of palisade.Lease.Release.
func (e *Elector) Resign(ctx context.Context) error {
	lease, err := e.Lease()
	if err != nil {
		return nil
	}
	return lease.Release(ctx)
}

// A run is what gocron calls: work with the lease that is found.
type run struct {
	find func(context.Context) (*palisade.Lease, error)
	work Work
}

func (r *run) do(ctx context.Context) error {
	if r.work == nil {
		return errors.New("palisade: the task's work is nil: a function is needed")
	}
	lease, err := r.find(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(lease.Context(), func() { cancel(lease.Check()) })()
	return r.work(ctx, lease)
}

// unnamed is how gocron calls a job of Task that was given no name: the same for all of them.
var unnamed = runtime.FuncForPC(reflect.ValueOf((&run{}).do).Pointer()).Name()
