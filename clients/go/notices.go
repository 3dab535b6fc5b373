package palisade

import (
	"errors"
	"log"
	"runtime/debug"
	"sync"
	"time"
)

// A NoticeKind is the kind of a Notice. Later versions may have more.
type NoticeKind string

const (
	// Suspended: a renewal failed. The lease is still held, for Notice.Remaining if no renewal is acknowledged until then.
	Suspended NoticeKind = "suspended"
	// Restored: renewals are acknowledged again.
	Restored NoticeKind = "restored"
	// Wanted: Notice.Waiters requests wait for the lock.
	Wanted NoticeKind = "wanted"
	// Unwanted: no request waits any more.
	Unwanted NoticeKind = "unwanted"
	// Lost: the lease is over, for the reason in Notice.Err. It is the last notice.
	Lost NoticeKind = "lost"
)

// A Notice tells a holder about its lease; see Lease.Listen.
type Notice struct {
	Kind NoticeKind
	// Remaining, of Suspended, is how long the lease is held without a renewal.
	Remaining time.Duration
	// Waiters, of Wanted, is how many requests wait. For several locks it is the largest number for any of them.
	Waiters int
	// Err, of Lost, says why the lease is over.
	Err *LostError
}

// Listen calls tell for each Notice of the lease, from the present state on: a lease that is suspended, wanted or lost says so
// at once. After a release or an export there are no more notices.
//
// The calls for one listener never overlap, and delay no renewal and no other listener. A listener that takes long is told the
// state at its next call, and not what was in between. A panic in tell is logged, with its stack. After stop no further call
// begins.
func (l *Lease) Listen(tell func(Notice)) (stop func()) {
	if tell == nil {
		panic("palisade: Listen needs a function, and got nil")
	}
	one := &listener{tell: tell}
	n := &l.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = map[*listener]bool{}
	}
	n.listeners[one] = true
	l.informLocked(one)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.listeners, one)
	}
}

// Wanted is how many requests are known to wait for the lock; 0: none. For several locks it is the largest number for any of
// them.
func (l *Lease) Wanted() int {
	l.notices.mu.Lock()
	defer l.notices.mu.Unlock()
	return l.notices.now.waiters
}

// A condition is what the listeners of a lease are told about.
type condition struct {
	suspended bool
	waiters   int
	lost      bool
}

type notices struct {
	mu  sync.Mutex
	now condition
	// How many requests wait, by lock.
	waiting map[string]int
	// The lease was released or handed over.
	closed    bool
	listeners map[*listener]bool
}

type listener struct {
	tell func(Notice)
	// The condition that the calls so far amount to.
	told condition
	// A goroutine calls tell, which is only while there is something to tell.
	busy bool
}

// become changes the condition, and returns at once.
func (l *Lease) become(change func(*condition)) {
	n := &l.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.now
	change(&n.now)
	if n.now == before {
		return
	}
	for one := range n.listeners {
		l.informLocked(one)
	}
}

func (l *Lease) isSuspended(yes bool) { l.become(func(now *condition) { now.suspended = yes }) }

// isWantedBy records how many requests wait for one of the locks. It tells whether that is news.
func (l *Lease) isWantedBy(lock string, waiters int) (news bool) {
	l.become(func(now *condition) {
		n := &l.notices
		if n.waiting == nil {
			n.waiting = map[string]int{}
		}
		news = n.waiting[lock] != waiters
		n.waiting[lock] = waiters
		now.waiters = 0
		for _, each := range n.waiting {
			now.waiters = max(now.waiters, each)
		}
	})
	return news
}

// knownWaiters is how many requests are known to wait for one of the locks.
func (l *Lease) knownWaiters(lock string) int {
	l.notices.mu.Lock()
	defer l.notices.mu.Unlock()
	return l.notices.waiting[lock]
}

// isOver is called once, when the lease is lost, released or handed over.
func (l *Lease) isOver(lost bool) {
	l.client.listening.remove(l)
	if lost {
		l.become(func(now *condition) { now.lost = true })
		return
	}
	l.notices.mu.Lock()
	defer l.notices.mu.Unlock()
	l.notices.closed = true
}

func (l *Lease) informLocked(one *listener) {
	if !one.busy {
		one.busy = true
		go l.inform(one)
	}
}

// inform calls a listener until it knows the present condition.
func (l *Lease) inform(one *listener) {
	for {
		kind, waiters := l.next(one)
		if kind == "" {
			return
		}
		notice := Notice{Kind: kind, Waiters: waiters}
		switch kind {
		case Suspended:
			notice.Remaining = l.Remaining()
		case Lost:
			errors.As(l.Check(), &notice.Err)
		}
		one.call(notice)
	}
}

// next is what the listener is to be told now; "": nothing.
func (l *Lease) next(one *listener) (kind NoticeKind, waiters int) {
	n := &l.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	now, told := n.now, &one.told
	switch {
	case !n.listeners[one], n.closed, told.lost:
	case now.lost:
		told.lost = true
		return Lost, 0
	case now.suspended != told.suspended:
		told.suspended = now.suspended
		if now.suspended {
			return Suspended, 0
		}
		return Restored, 0
	case now.waiters != told.waiters:
		told.waiters = now.waiters
		if now.waiters > 0 {
			return Wanted, now.waiters
		}
		return Unwanted, 0
	}
	one.busy = false
	return "", 0
}

func (one *listener) call(notice Notice) {
	defer func() {
		if mistake := recover(); mistake != nil {
			log.Printf("palisade: a listener panicked at the notice %q: %v\n%s", notice.Kind, mistake, debug.Stack())
		}
	}()
	one.tell(notice)
}
