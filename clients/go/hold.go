package palisade

import (
	"sync"
	"sync/atomic"
	"time"
)

// deadline counts from t0, which was read before the request that was answered was sent. Either clock may run 1 % wrong:
// (1 − ε) / (1 + ε) of the time is sure. Rounded down.
func deadline(t0 instant, validFor, margin time.Duration) instant {
	return t0.add(atLeast(validFor/101*99-margin, 0))
}

// A hold is the deadline of one grant. No I/O here.
type hold struct {
	until atomic.Int64
	// Why it is over: a code, or "released".
	over atomic.Pointer[string]
	lost chan struct{}
	// Called once, when it is over for any reason; whether that is a loss.
	ended func(lost bool)

	mu    sync.Mutex
	alarm *time.Timer
}

const released = "released"

func newHold(until instant, ended func(lost bool)) *hold {
	h := &hold{lost: make(chan struct{}), ended: ended}
	h.until.Store(int64(until))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.alarm = time.AfterFunc(h.nextAlarm(), h.ring)
	return h
}

// ring announces a loss at the deadline, also when nobody checks.
func (h *hold) ring() {
	if h.holds() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.alarm.Reset(h.nextAlarm())
	}
}

func (h *hold) nextAlarm() time.Duration {
	return atLeast(atMost(h.deadline().sub(now()), longestSleep), 0)
}

func (h *hold) deadline() instant { return instant(h.until.Load()) }

// holds tells whether the holder may act now. Once the clock has passed the deadline, it stays false.
func (h *hold) holds() bool {
	if h.over.Load() != nil {
		return false
	}
	if now() >= h.deadline() {
		h.end("expired")
		return false
	}
	return h.over.Load() == nil
}

func (h *hold) remaining() time.Duration {
	if !h.holds() {
		return 0
	}
	return atLeast(h.deadline().sub(now()), 0)
}

// renewed takes an acknowledged renewal: forward only, and no revival.
func (h *hold) renewed(until instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now() >= h.deadline() {
		h.endLocked("expired")
	}
	if h.over.Load() == nil && until > h.deadline() {
		h.until.Store(int64(until))
	}
}

// end: not held from now on. The first reason stays. It tells whether this was it.
func (h *hold) end(code string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.endLocked(code)
}

func (h *hold) endLocked(code string) bool {
	if h.over.Load() != nil {
		return false
	}
	h.over.Store(&code)
	h.alarm.Stop()
	isLoss := code != released && code != handedOver
	if isLoss {
		close(h.lost)
	}
	h.ended(isLoss)
	return true
}

// reason is the code of a hold that is over; after a release it is not held.
func (h *hold) reason() string {
	switch over := h.over.Load(); {
	case over == nil:
		return ""
	case *over == released:
		return "not_held"
	default:
		return *over
	}
}
