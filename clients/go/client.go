package palisade

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// A Client asks a Palisade server, or the servers of a cluster, for locks. It may be used by several goroutines, and
// should be shared: it keeps connections.
type Client struct {
	transport *transport
	patience  time.Duration
	margin    time.Duration
	// The host that a client runs on, for people. Each acquire adds random characters, which make its client id unique.
	host      string
	reports   *reporter
	listening *listening

	// Ends renewals and background work.
	base context.Context
	end  context.CancelFunc

	mu         sync.Mutex
	closed     bool
	background sync.WaitGroup
}

// noCopy makes `go vet` report copies of the struct that contains it.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// New makes a client. It sends nothing yet.
func New(options ...Option) (*Client, error) {
	s := settings{patience: defaultPatience, reports: true, notices: true}
	for _, option := range options {
		if option == nil {
			return nil, invalid("an option is nil: leave it out")
		}
		option(&s)
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	transport, err := newTransport(&s)
	if err != nil {
		return nil, err
	}
	base, end := context.WithCancel(context.Background())
	return &Client{
		transport: transport,
		patience:  s.patience,
		margin:    s.margin,
		host:      hostName(),
		reports:   &reporter{transport: transport, base: base, off: !s.reports, recent: map[reportKey]instant{}},
		listening: newListening(base, transport, !s.notices),
		base:      base,
		end:       end,
	}, nil
}

// Close finishes giving up requests and locks in the background, at most for the client's patience, and reports of refused
// late writes, at most for a quarter of a second, and then ends the connections. Leases that are still held are no longer renewed: release them first.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	done := make(chan struct{})
	go func() {
		c.background.Wait()
		close(done)
	}()
	patience := time.NewTimer(c.patience)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
	}
	c.reports.close()
	c.end()
	c.transport.exchange.Reset()
	return nil
}

// Lock waits in the queue for as long as the option Wait says, and returns a lease that is renewed in the background
// until it is released or lost.
//
// The context is for the acquire only: when it ends later, the lease stays. However an acquire fails, no lock stays
// behind: a request that may have been granted is abandoned in the background.
//
// The error is ErrHeld if another client keeps the lock, ErrUnavailable or ErrUnknownOutcome if nobody answers, or the
// context's.
func (c *Client) Lock(ctx context.Context, name string, options ...LockOption) (*Lease, error) {
	return c.lock(ctx, valuesOf{ctx}, []string{name}, defaultWait, options)
}

// TryLock is as Lock, and does not wait unless the option Wait says so.
func (c *Client) TryLock(ctx context.Context, name string, options ...LockOption) (*Lease, error) {
	return c.lock(ctx, valuesOf{ctx}, []string{name}, 0, options)
}

// Locks is as Lock, for 1 – 64 locks at once: all or none, under one lease with one token. Each name once, in any order.
// Nothing is held while it waits. Claim every resource before the first read of any, each with Lease.Part.
//
// Several locks are exclusive, and closed for no time after the grant: Shared, Permits, LockDelay and AtLeastFor are
// ErrInvalid.
func (c *Client) Locks(ctx context.Context, names []string, options ...LockOption) (*Lease, error) {
	return c.lock(ctx, valuesOf{ctx}, names, defaultWait, options)
}

// TryLocks is as Locks, and does not wait unless the option Wait says so.
func (c *Client) TryLocks(ctx context.Context, names []string, options ...LockOption) (*Lease, error) {
	return c.lock(ctx, valuesOf{ctx}, names, 0, options)
}

func (c *Client) lock(
	ctx, parent context.Context, names []string, wait time.Duration, options []LockOption,
) (*Lease, error) {
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	w, err := c.newWish(names, wait, options)
	if err != nil {
		return nil, err
	}
	return c.acquire(ctx, parent, w)
}

func (c *Client) acquire(ctx, parent context.Context, w *wish) (*Lease, error) {
	grant, err := c.transport.acquire(ctx, w, c.patience)
	if err != nil {
		if w.mayHaveHappened {
			c.inBackground(func(ctx context.Context) { _ = c.transport.abandon(ctx, w) })
		}
		return nil, about(w.name(), err)
	}
	return c.newLease(parent, w, grant)
}

// With holds a lock while work runs, and releases it when work returns or panics. The context that work gets ends at the
// loss of the lease, and with ctx.
//
// It returns work's error; if that is the context's and the lease was lost, it returns the loss, which is ErrLost. A
// release that is not acknowledged is no error: the lease expires.
func (c *Client) With(
	ctx context.Context, name string, work func(context.Context, *Lease) error, options ...LockOption,
) error {
	return c.WithLocks(ctx, []string{name}, work, options...)
}

// WithLocks is as With, for several locks at once; see Locks.
func (c *Client) WithLocks(
	ctx context.Context, names []string, work func(context.Context, *Lease) error, options ...LockOption,
) error {
	if work == nil {
		return invalid("work is nil: a function is needed")
	}
	lease, err := c.lock(ctx, ctx, names, defaultWait, options)
	if err != nil {
		return err
	}
	// Not with ctx: it may have ended, and the lock is to be free at once.
	defer func() { _ = lease.Release(context.Background()) }()
	err = work(lease.Context(), lease)
	if lost := lease.Check(); lost != nil && isContextError(err) {
		return lost
	}
	return err
}

// ask sends a request whose only good answer is 200, for the client's patience.
func (c *Client) ask(ctx context.Context, r request) (reply, error) {
	if err := c.open(ctx); err != nil {
		return reply{}, err
	}
	answer, err := c.transport.repeat(ctx, r, now().add(c.patience))
	if err == nil && answer.status != 200 {
		err = answer.err()
	}
	return answer, err
}

// open refuses a request of a closed client, or without a context.
func (c *Client) open(ctx context.Context) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return invalid("the client is closed")
	}
	return nil
}

func checkContext(ctx context.Context) error {
	if ctx == nil {
		return invalid("a context is needed, such as context.Background()")
	}
	return nil
}

// inBackground runs work that nobody waits for, until the client is closed.
func (c *Client) inBackground(run func(context.Context)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.background.Add(1)
	go func() {
		defer c.background.Done()
		run(c.base)
	}()
}

func (c *Client) deadline(t0 instant, validFor time.Duration) instant {
	return deadline(t0, validFor, c.margin)
}

func hostName() string {
	name, _ := os.Hostname()
	printable := strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return -1
		}
		return r
	}, name)
	if len(printable) > 64 {
		printable = printable[:64]
	}
	return fmt.Sprintf("%s-%d", printable, os.Getpid())
}
