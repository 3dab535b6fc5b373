package palisade

import "time"

// The options of an exclusive grant. A new one is a function, a field of each of these types, and a line of each of
// their methods.

// LockDelay is how long nobody is granted the lock after this grant expires or is revoked, 0 – 60 s.
func LockDelay(d time.Duration) LockOption { return func(w *wish) { w.grant.lockDelay = d } }

// AtLeastFor is how long nobody else is granted the lock from this grant on, however early it is released, 0 – 24 h.
func AtLeastFor(d time.Duration) LockOption { return func(w *wish) { w.grant.atLeastFor = d } }

// grantOptions are what the caller wants; the zero value wants nothing.
type grantOptions struct {
	lockDelay  time.Duration
	atLeastFor time.Duration
}

// grantFields are the options as a request has them.
type grantFields struct {
	LockDelay  int64 `json:"lock_delay_ms,omitempty"`
	AtLeastFor int64 `json:"at_least_for_ms,omitempty"`
}

func (o grantOptions) check() error {
	if err := within("the lock-delay", o.lockDelay, 0, time.Minute); err != nil {
		return err
	}
	return within("the time at least", o.atLeastFor, 0, day)
}

func (o grantOptions) fields() grantFields {
	return grantFields{
		LockDelay:  wholeMilliseconds(o.lockDelay),
		AtLeastFor: wholeMilliseconds(o.atLeastFor),
	}
}
