// Package palisadek8s has a lock for the leader election of client-go, and so for controller-runtime, whose leader has a
// fencing token:
//
//	lock, err := palisadek8s.NewLock(client, "my-operator", hostname)
//	…
//	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
//		Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
//		ReleaseOnCancel: true,
//		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: lock.Leading(work), OnStoppedLeading: stopped},
//	})
//
// work is a func(context.Context, *palisade.Lease). It writes through a fence, with its lease.
package palisadek8s

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"palisade.example/palisade"
)

// ErrNotLeading: this process does not lead, or the lock is of a leadership that has ended.
var ErrNotLeading = errors.New("palisade: this process does not lead")

// A Lock is a resourcelock.Interface: leaderelection.LeaderElectionConfig takes it, and LeaderElectionResourceLockInterface of
// controller-runtime's manager. It is for one elector at a time. Coordinated elections need a Lease object in the API server,
// and are not supported.
//
// The lease is renewed in the background, and lasts two thirds of the elector's LeaseDuration, so that its holder learns of a
// loss before the elector does. A leader whose lease is lost is never elected again under the elector's nose, with another
// token: the elector gives up after its RenewDeadline, and calls OnStoppedLeading. Run it again for another leadership.
type Lock struct {
	client   *palisade.Client
	name     string
	identity string
	options  []palisade.LockOption
	reads    atomic.Uint64

	mu    sync.Mutex
	lease *palisade.Lease
	// The elector leads, as far as it knows, under this lease, and has this LeaseDuration.
	leading  bool
	duration time.Duration
	// Works of Leading that have not returned, and a channel that is closed when all have; nil while there is none.
	working int
	idle    chan struct{}
}

var _ resourcelock.Interface = (*Lock)(nil)

// NewLock makes one. The identity is shown to others, who see it as client-go's HolderIdentity: 1 to 256 bytes. The options
// apply to each grant; palisade.TTL is instead of two thirds of LeaseDuration, and has to be shorter than that.
func NewLock(client *palisade.Client, name, identity string, options ...palisade.LockOption) (*Lock, error) {
	if len(identity) < 1 || len(identity) > 256 {
		return nil, fmt.Errorf("palisade: the identity has %d bytes: 1 to 256 are allowed, a host name for example", len(identity))
	}
	if client == nil {
		return nil, errors.New("palisade: the client is nil: did palisade.New return an error?")
	}
	return &Lock{client: client, name: name, identity: identity, options: options}, nil
}

// Lease is that of the leader. Take it once for each piece of work, such as one Reconcile, when it begins: a later leadership
// has another token. The error is ErrNotLeading, and palisade.ErrLost, too, if the lease was lost.
func (l *Lock) Lease() (*palisade.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.leading {
		return nil, ErrNotLeading
	}
	if err := l.lease.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotLeading, err)
	}
	return l.lease, nil
}

// Leading makes the callback OnStartedLeading. The context of the work ends with the elector's, and when the lease is lost;
// context.Cause says why. A release (ReleaseOnCancel) waits until the work has returned, for the elector's RenewDeadline
// at most: then the lock is not released, and is free when its lease is over.
func (l *Lock) Leading(work func(context.Context, *palisade.Lease)) func(context.Context) {
	return func(ctx context.Context) {
		lease := l.begin()
		if lease == nil {
			panic("palisade: Leading is of another Lock than the elector's: use LeaderElectionConfig.Lock's own")
		}
		defer l.end()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(lease.Context(), func() { cancel(lease.Check()) })()
		work(ctx, lease)
	}
}

func (l *Lock) begin() *palisade.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.working == 0 {
		l.idle = make(chan struct{})
	}
	l.working++
	return l.lease
}

func (l *Lock) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.working--
	if l.working == 0 {
		close(l.idle)
		l.idle = nil
	}
}

// Get is for the elector. The record's LeaderTransitions is the fencing token.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	info, err := l.client.Show(ctx, l.name)
	if err != nil {
		return nil, nil, err
	}
	// A free lock is a record without a holder, and never "not found": a leader that has lost its lease would still believe
	// in its last record then.
	record := &resourcelock.LeaderElectionRecord{}
	if holder := info.Holder; holder != nil {
		now := metav1.Now()
		record = &resourcelock.LeaderElectionRecord{
			HolderIdentity: l.identityOf(holder),
			// Another elector counts it from now on; the server, which refuses it before, counts better.
			LeaseDurationSeconds: int(holder.Remaining/time.Second) + 1,
			RenewTime:            now,
			AcquireTime:          acquiredAt(holder, now),
			LeaderTransitions:    int(holder.Token),
		}
	}
	// The elector believes what it reads only if it differs from what it read before, perhaps before it was elected.
	raw, err := json.Marshal(record)
	return record, fmt.Appendf(raw, " %d", l.reads.Add(1)), err
}

// identityOf is the elector's own identity only if it holds this very lease. Another process, or an earlier one, may have the
// same identity, and the elector would take its leadership for its own.
func (l *Lock) identityOf(holder *palisade.Holder) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	identity := holder.Metadata
	if identity == "" {
		identity = holder.ClientID
	}
	isOurs := l.leading && l.lease.Token() == holder.Token && l.lease.Check() == nil
	if identity == l.identity && !isOurs {
		return fmt.Sprintf("%s (another process, fencing token %d)", identity, holder.Token)
	}
	return identity
}

func acquiredAt(holder *palisade.Holder, otherwise metav1.Time) metav1.Time {
	at, err := time.Parse(time.RFC3339, holder.AcquiredAt)
	if err != nil {
		return otherwise
	}
	return metav1.NewTime(at)
}

// Create is for the elector, and as Update.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

// Update is for the elector: it acquires the lock without waiting, checks the lease, which needs no server, or releases it.
// A lock that another client has, and a lease that is lost, are apierrors.IsConflict, with the client's error in the chain.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		return l.release(ctx)
	}
	if record.LeaseDurationSeconds < 1 {
		return errors.New("palisade: the elector's LeaseDuration is below a second: 1 s is allowed at least")
	}
	l.mu.Lock()
	lease, leading := l.lease, l.leading
	l.mu.Unlock()
	if leading {
		return l.conflict(lease.Check())
	}
	duration := time.Duration(record.LeaseDurationSeconds) * time.Second
	options := append([]palisade.LockOption{palisade.TTL(duration * 2 / 3), palisade.Metadata(l.identity)}, l.options...)
	lease, err := l.client.TryLock(ctx, l.name, options...)
	if err != nil {
		return l.conflict(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease, l.leading, l.duration = lease, true, duration
	return nil
}

// conflict says it in Kubernetes' words, too.
func (l *Lock) conflict(err error) error {
	if !errors.Is(err, palisade.ErrHeld) && !errors.Is(err, palisade.ErrLost) {
		return err
	}
	return &refused{apierrors.NewConflict(schema.GroupResource{Group: "palisade", Resource: "locks"}, l.name, err), err}
}

// A refused is Kubernetes' error, and the client's.
type refused struct {
	*apierrors.StatusError
	client error
}

func (r *refused) Unwrap() []error { return []error{r.StatusError, r.client} }

// release never returns a conflict: client-go would repeat it at once, without a pause.
func (l *Lock) release(ctx context.Context) error {
	l.mu.Lock()
	lease, leading, idle, duration := l.lease, l.leading, l.idle, l.duration
	l.mu.Unlock()
	if !leading || lease.Check() != nil {
		return nil
	}
	if idle != nil {
		// An older client-go gives a context without a deadline.
		waiting, cancel := context.WithTimeout(ctx, duration)
		defer cancel()
		select {
		case <-idle:
		case <-lease.Lost():
			return nil
		case <-waiting.Done():
			return fmt.Errorf("palisade: the leader's work has not returned, so %q is free when its lease is over: %w", l.name, waiting.Err())
		}
	}
	return lease.Release(ctx)
}

// RecordEvent is for the elector, which says here that it leads no longer. The lease is not renewed from then on; unless it
// was released, the lock is free when it is over, as Kubernetes' own is: the work may still run.
func (l *Lock) RecordEvent(event string) {
	if event != "stopped leading" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading {
		l.leading = false
		// To nobody: it ends renewal, and sends nothing.
		_, _ = l.lease.Export()
	}
}

// Identity is for the elector.
func (l *Lock) Identity() string { return l.identity }

// Describe is for the elector's log.
func (l *Lock) Describe() string { return "palisade/" + l.name }
