package palisade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"palisade.example/palisade/fence"
)

const shortestPause = 20 * millisecond

// A Lease is a lock that is held, and renewed in the background, until it is released or lost. Its methods may be used by
// several goroutines.
//
// It is a fence.Holder: a fence takes it as it is. Of several locks, a fence takes the part that is its own: Part.
type Lease struct {
	client *Client
	wish   *wish
	grant  granted
	parts  *parts
	// Set when the server says that the lease is over.
	loss    atomic.Pointer[loss]
	hold    *hold
	notices notices
	// The client listens for it, or did; under the lock of its listening.
	listened bool
	// An upgrade is under way.
	upgrading atomic.Bool
	parent    context.Context
	context   context.Context
}

// A loss is the end of a lock, as the server said it, with the operator's reason or "".
type loss struct{ lock, reason string }

// newLease makes a lease whose context comes from parent.
func (c *Client) newLease(parent context.Context, w *wish, grant granted) (*Lease, error) {
	l := &Lease{client: c, wish: w, grant: grant, parts: newParts(w.names), parent: parent}
	renewals, stop := context.WithCancel(c.base)
	var cancel context.CancelFunc
	l.context, cancel = context.WithCancel(parent)
	until := c.deadline(grant.t0, grant.validFor)
	if w.reader != nil && w.reader.hold.deadline() > until {
		// The same lease, which was renewed while the upgrade waited.
		until = w.reader.hold.deadline()
	}
	l.hold = newHold(until, func(lost bool) {
		cancel()
		stop()
		l.isOver(lost)
	})
	if !l.hold.holds() {
		// The process was stopped while the grant was on its way: it is given back.
		l.giveBack()
		return nil, l.Check()
	}
	go l.keep(renewals)
	c.listening.add(l)
	return l, nil
}

// Token is the fencing token. It never changes, and stays readable after a loss.
func (l *Lease) Token() uint64 { return l.grant.token }

// GrantID is the number that names the grant, as in Client.Break: the token, or a reader's own number. It is not for fences.
func (l *Lease) GrantID() uint64 { return l.grant.number }

// Shared tells whether it is a reader's, also in mode update.
func (l *Lease) Shared() bool { return l.wish.mode.isReader() }

// Update tells whether it is the reader that may become the writer, by Upgrade.
func (l *Lease) Update() bool { return l.wish.mode == update }

// Slots are the slots of a semaphore that it has, rising; none for another kind of lock.
func (l *Lease) Slots() []int { return append([]int(nil), l.grant.slots...) }

// SlotKeys are the resource ids of its slots. Claim each at its fence, with the token: a slot's next holder fences this one
// there, and no other holder of the semaphore.
func (l *Lease) SlotKeys() []string {
	keys := make([]string, 0, len(l.grant.slots))
	for _, slot := range l.grant.slots {
		keys = append(keys, SlotKey(l.wish.name(), slot))
	}
	return keys
}

// SlotKey is the resource id under which a fence keeps the tokens of one slot of a semaphore.
func SlotKey(lock string, slot int) string { return fmt.Sprintf("%s~%d", lock, slot) }

// Name is the name of the lock. Several locks have none, but Locks: then it is "".
func (l *Lease) Name() string {
	if len(l.wish.names) > 1 {
		return ""
	}
	return l.wish.name()
}

// Locks are the names of all locks that were granted, sorted.
func (l *Lease) Locks() []string { return copied(l.wish.names) }

// Part is the proof for the fence of one of several locks: the token, with that lock's name. The error is ErrInvalid if the
// lease has no such lock, and ErrLost if it is not held any more; a fence that is given the part later has the same error.
func (l *Lease) Part(name string) (fence.Holder, error) {
	if err := l.checkPart(name); err != nil {
		return nil, err
	}
	p := part{l, name}
	if err := p.Check(); err != nil {
		return nil, err
	}
	return p, nil
}

type part struct {
	*Lease
	name string
}

func (p part) Name() string { return p.name }

func (p part) Check() error {
	if err := p.Lease.Check(); err != nil {
		return err
	}
	if !p.parts.holds(p.name) {
		return lost("not_held", p.name, p.Token())
	}
	return nil
}

func (l *Lease) checkPart(name string) error {
	if !contains(l.wish.names, name) {
		return invalid("%q is not a lock of this lease: it has %s", name, l.quoted())
	}
	return nil
}

func (l *Lease) quoted() string { return `"` + strings.Join(l.wish.names, `", "`) + `"` }

// Authority is the server, or the cluster, that granted the lock: tokens of two authorities are never compared.
func (l *Lease) Authority() string { return l.grant.authority }

// ClientID is the id under which others see the holder.
func (l *Lease) ClientID() string { return l.wish.clientID }

// Waited is how long the request stood in the queue.
func (l *Lease) Waited() time.Duration { return l.grant.waited }

// Check returns nil while the holder may act, by its own clock, at this moment, and a *LostError from the loss or the
// release on. It needs no round trip and does not wait.
func (l *Lease) Check() error {
	if l.hold.holds() {
		return nil
	}
	if heard := l.loss.Load(); heard != nil {
		return lost(l.hold.reason(), heard.lock, l.grant.token).because(heard.reason)
	}
	return lost(l.hold.reason(), l.wish.name(), l.grant.token)
}

// Remaining is how long the holder may still act if no further renewal is acknowledged; 0 after the loss or the release.
func (l *Lease) Remaining() time.Duration { return l.hold.remaining() }

// Context ends when the lease is lost, released or handed over; Check tells why. It has the values of the context given to Lock, and
// does not end with it. Inside With it is the context that work got, and ends with the outer one, too.
func (l *Lease) Context() context.Context { return l.context }

// Lost is closed when the lease is lost, and not by a release or an Export.
func (l *Lease) Lost() <-chan struct{} { return l.hold.lost }

// Release gives the lock up: from the call on it is not held here, whatever the answer. It is repeated for the client's
// patience. If the context ends first, the release goes on in the background.
//
// The error is ErrLost if the lease had ended before or was handed over, and ErrUnavailable or ErrUnknownOutcome if nobody answered: the lock
// is then free when the lease expires. Releasing again is harmless.
func (l *Lease) Release(ctx context.Context) error {
	l.hold.end(released)
	if err := checkContext(ctx); err != nil {
		return err
	}
	if err := l.isElsewhere(); err != nil {
		return err
	}
	return l.releaseNow(ctx, l.parts.toRelease())
}

// ReleasePart gives one of several locks up: from the call on it is not held here, whatever the answer, and the others
// stay. With the last one the lease is released.
//
// The errors are those of Release. If nobody answers, the lock stays taken until it is released again, at the latest by
// Release.
func (l *Lease) ReleasePart(ctx context.Context, name string) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if err := l.checkPart(name); err != nil {
		return err
	}
	if err := l.isElsewhere(); err != nil {
		return err
	}
	if !l.parts.giveUp(name) {
		return l.Release(ctx)
	}
	return l.releaseNow(ctx, []string{name})
}

// isElsewhere is the error for a lease that was handed over: its release is the adopter's.
func (l *Lease) isElsewhere() error {
	if l.hold.reason() == handedOver {
		return l.Check()
	}
	return nil
}

func (l *Lease) releaseNow(ctx context.Context, names []string) error {
	until := now().add(l.client.patience)
	err := l.release(ctx, names, until)
	if err != nil && ctx.Err() != nil {
		l.client.inBackground(func(ctx context.Context) { _ = l.release(ctx, names, until) })
	}
	return about(l.wish.name(), err)
}

// giveBack releases in the background the locks that the lease no longer holds.
func (l *Lease) giveBack() {
	until := now().add(2 * l.wish.ttl)
	l.client.inBackground(func(ctx context.Context) { _ = l.release(ctx, l.parts.toRelease(), until) })
}

// Downgrade makes a writer a reader, in one step: no other writer gets in between. From the call on this lease is not held;
// the one returned has a new token, with which it claims before it reads, and a context of its own. A reader is returned as
// it is.
//
// The errors are those of Check, and of Client.Lock; then the lock is released in the background.
func (l *Lease) Downgrade(ctx context.Context) (*Lease, error) {
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	if l.Shared() {
		return l, nil
	}
	if err := l.Check(); err != nil {
		return nil, err
	}
	if len(l.grant.slots) > 0 || len(l.wish.names) > 1 {
		return nil, invalid("permits of a semaphore, and several locks, have no shared mode")
	}
	w, err := l.wish.asReader(l)
	if err != nil {
		return nil, err
	}
	l.hold.end(released)
	reader, err := l.client.acquire(ctx, l.parent, w)
	if err != nil {
		l.giveBack()
		return nil, err
	}
	return reader, nil
}

// Upgrade makes the reader in mode update the writer, in one step: nobody else writes in between. It goes ahead of the queue
// and waits for the other readers alone, 0 – 24 h. The lease returned has a new token, with which it claims before it writes,
// and a context of its own; this one is not held any more then. Until then it is held and renewed as before, also after
// ErrHeld, which names a reader that still held the lock.
//
// The errors are those of Client.Lock, and ErrLost if this lease is lost meanwhile. If the context ends first, the upgrade is
// given up in the background. If it was granted by then, or can be granted at that moment, the lock is released, and this lease
// is lost.
func (l *Lease) Upgrade(ctx context.Context, wait time.Duration) (*Lease, error) {
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	if err := l.Check(); err != nil {
		return nil, err
	}
	if !l.Update() {
		return nil, invalid("only a reader in mode update can be upgraded: ask for the lock with Update")
	}
	if err := within("the wait", wait, 0, day); err != nil {
		return nil, err
	}
	w, err := l.wish.asWriter(l, wait)
	if err != nil {
		return nil, err
	}
	if !l.upgrading.CompareAndSwap(false, true) {
		return nil, invalid("an upgrade of %s is under way already", l.quoted())
	}
	defer l.upgrading.Store(false)
	unlost, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-l.Lost():
			stop()
		case <-unlost.Done():
		}
	}()
	writer, err := l.client.acquire(unlost, l.parent, w)
	if err != nil && ctx.Err() == nil && unlost.Err() != nil {
		return nil, l.Check()
	}
	return writer, err
}

// makeWay: its upgrade is granted, so it does not hold any more. A lease that was lost meanwhile has no successor.
func (l *Lease) makeWay() error {
	if err := l.Check(); err != nil {
		return err
	}
	if !l.hold.end(released) {
		return l.Check()
	}
	return nil
}

// Sequencer is the token as the authority signs it, for resources that check it with package fence/sequencer or with --keys.
// Of several locks it signs the part that is named; else the name is that of the lock.
//
// It asks the server, and is repeated for the client's patience. The errors are those of Lock if nobody answers, and ErrLost
// if the lease is over. It is a secret until the next grant: send it with TLS only, and keep it out of logs.
func (l *Lease) Sequencer(ctx context.Context, name string) (string, error) {
	if err := checkContext(ctx); err != nil {
		return "", err
	}
	if _, err := l.Part(name); err != nil {
		return "", err
	}
	// The answer has no new deadline, so the old one stays.
	sent := l.request(name, "/sequencer", func(r reply) string { return l.isOf(name, l.grant.token, r) })
	answer, err := l.client.transport.repeat(ctx, sent, now().add(l.client.patience))
	switch {
	case err != nil:
		return "", about(name, err)
	case answer.over():
		if l.parts.holds(name) {
			l.lose(name, answer.code())
		}
		return "", lost(answer.code(), name, l.grant.token)
	case answer.status != 200:
		return "", answer.err()
	}
	var signed struct {
		Sequencer string `json:"sequencer"`
	}
	if json.Unmarshal(answer.body, &signed) != nil || signed.Sequencer == "" {
		return "", &Error{"unknown_outcome", "a broken answer: sequencer is missing", ErrUnknownOutcome}
	}
	return signed.Sequencer, nil
}

func (l *Lease) release(ctx context.Context, names []string, until instant) error {
	var over error
	for _, name := range names {
		answer, err := l.client.transport.repeat(ctx, l.request(name, "/release", l.isRelease(name)), until)
		switch {
		case err != nil:
			return err
		case answer.over():
			over = lost(answer.code(), name, l.grant.token)
		case answer.status != 200:
			return answer.err()
		default:
			l.parts.released(name)
		}
	}
	return over
}

// keep renews until the hold is over: at a third of the remaining time, or soon after a failure.
func (l *Lease) keep(ctx context.Context) {
	longest, deadlines := day, map[string]instant{}
	for _, name := range l.wish.names {
		deadlines[name] = l.hold.deadline()
	}
	for {
		third := atLeast(l.hold.deadline().sub(now())/3, shortestPause)
		if sleepUntil(ctx, now().add(atMost(third, longest))) != nil || !l.hold.holds() {
			return
		}
		longest = longestPause
		switch l.renew(ctx, deadlines) {
		case acknowledged:
			longest = day
			l.isSuspended(false)
		case failing:
			if ctx.Err() == nil && l.hold.holds() {
				l.isSuspended(true)
			}
		}
	}
}

// A renewal is the outcome of one.
type renewal int

const (
	acknowledged renewal = iota
	failing
	// The lease is over, or its upgrade is about to end it.
	ending
)

// renew makes one attempt for each lock that is held, because the server looks at the named one only; first for the one that
// was acknowledged longest ago. The earliest of their deadlines counts.
func (l *Lease) renew(ctx context.Context, deadlines map[string]instant) renewal {
	names := l.parts.toRenew()
	sort.SliceStable(names, func(i, j int) bool { return deadlines[names[i]] < deadlines[names[j]] })
	for _, name := range names {
		if !l.hold.holds() {
			return ending
		}
		t0 := now()
		limit := atLeast(l.hold.deadline().sub(t0)/3, shortestPause)
		answer, failed := l.client.transport.send(ctx, l.request(name, "/renew", l.isRenewal(name)), limit)
		switch {
		case failed != nil:
			return failing
		case answer.over():
			if !l.parts.holds(name) {
				continue // It was released here meanwhile.
			}
			if l.upgrading.Load() && answer.code() == "superseded" {
				return ending // By its own upgrade, whose answer is on its way.
			}
			l.lose(name, answer.code())
			return ending
		case answer.status != 200:
			return failing
		}
		validFor, ok := readRenewal(answer)
		if !ok {
			return failing
		}
		waiters := readWaiters(answer)
		if waiters != nil {
			l.isWantedBy(name, *waiters)
		}
		l.client.listening.renewed(l, waiters != nil)
		earliest := l.client.deadline(t0, validFor)
		deadlines[name] = earliest
		for _, other := range l.parts.toRenew() {
			if deadlines[other] < earliest {
				earliest = deadlines[other]
			}
		}
		l.hold.renewed(earliest)
	}
	return acknowledged
}

// lose records that the server ended a lock. If the lease has several locks, the others are released, because they are useless
// without it.
func (l *Lease) lose(name, code string) { l.loseBecause(name, code, "") }

// loseBecause is as lose, with an operator's reason.
func (l *Lease) loseBecause(name, code, reason string) {
	if !l.hold.holds() {
		return
	}
	l.loss.Store(&loss{name, reason})
	if l.hold.end(code) && len(l.wish.names) > 1 {
		l.giveBack()
	}
}

// request names the grant by both of its names: a late copy can never touch a later grant.
func (l *Lease) request(name, verb string, differs func(reply) string) request {
	body := struct {
		LeaseKey string `json:"lock_token"`
		Token    uint64 `json:"fencing_token"`
	}{l.grant.leaseKey, l.grant.number}
	return request{method: "POST", path: lockPath(name, verb), body: body, differs: differs}
}

// isOf tells why an answer is not about this grant; number is the grant's number in a good answer.
func (l *Lease) isOf(name string, number uint64, r reply) string {
	if r.over() {
		if ended := r.problemFields(); has(ended, "fencing_token") && !is(ended, "fencing_token", l.grant.number) {
			return "the answer is that of another request: another grant is over"
		}
	}
	switch {
	case r.status != 200:
		return ""
	case !is(r.fields(), "resource_id", name):
		return differs(r, "resource_id", name)
	case !is(r.fields(), "fencing_token", number):
		return differs(r, "fencing_token", number)
	}
	return ""
}

func (l *Lease) isRenewal(name string) func(reply) string {
	return func(r reply) string {
		why := l.isOf(name, l.grant.token, r)
		switch {
		case why != "" || r.status != 200:
			return why
		case has(r.fields(), "lock_acquired"), has(r.fields(), "released"):
			return "the answer is that of another request: it is no renewal"
		case !is(r.fields(), "authority", l.grant.authority):
			return differs(r, "authority", l.grant.authority)
		}
		return ""
	}
}

func (l *Lease) isRelease(name string) func(reply) string {
	return func(r reply) string {
		why := l.isOf(name, l.grant.number, r)
		switch {
		case why != "" || r.status != 200:
			return why
		case !is(r.fields(), "released", true):
			return differs(r, "released", true)
		case !is(r.fields(), "authority", l.grant.authority):
			return differs(r, "authority", l.grant.authority)
		}
		return ""
	}
}

// String never contains the lease key.
func (l *Lease) String() string {
	state := l.hold.reason()
	if state == "" {
		state = fmt.Sprint(l.Remaining().Round(millisecond))
	}
	return fmt.Sprintf("lease of %s, fencing token %d: %s", l.quoted(), l.grant.token, state)
}

// GoString keeps the lease key out of %#v, too.
func (l *Lease) GoString() string { return "palisade.Lease{" + l.String() + "}" }

// valuesOf has the values of a context, and does not end with it.
type valuesOf struct{ context.Context }

func (valuesOf) Deadline() (time.Time, bool) { return time.Time{}, false }
func (valuesOf) Done() <-chan struct{}       { return nil }
func (valuesOf) Err() error                  { return nil }

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// about says which lock an error of the context is about. Other errors say it themselves.
func about(name string, err error) error {
	if isContextError(err) {
		return fmt.Errorf("palisade: the request for lock %q was given up: %w", name, err)
	}
	return err
}
