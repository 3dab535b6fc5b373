package palisadetest

import (
	"fmt"
	"sort"
	"time"
)

const (
	// The place of a request whose connection broke is kept for so long.
	keptFor = 2 * time.Second
	// So long is a lease that nobody renews.
	forever = 1000 * 24 * time.Hour

	keptEvents = 4096
	timeFormat = "2006-01-02T15:04:05.000Z"
)

// A lease is what is renewed: all its grants live and end together.
type lease struct {
	key    string
	ttl    time.Duration
	until  time.Time
	grants []*grant
}

func (l *lease) names() (names []string) {
	for _, g := range l.grants {
		names = append(names, g.lock.name)
	}
	return names
}

// A grant is a lock of one holder.
type grant struct {
	lease *lease
	lock  *lock
	// number names the grant; a reader's token is its phase's.
	token, number       uint64
	clientID, metadata  string
	mode                string
	slots               []int
	at                  time.Time
	lockDelay, openFrom time.Duration
}

func (g *grant) reads() bool { return g.mode != "" }

func (g *grant) grantID() uint64 {
	if g.reads() {
		return g.number
	}
	return 0
}

// A lock that nobody knows is free.
type lock struct {
	name string
	// In the order of their grants: one, or readers, or holders of permits.
	grants []*grant
	// How many permits it has while it is a semaphore that is in use; else 0.
	of          int
	closedUntil time.Time
	last        uint64
}

func (l *lock) holders() []*grant { return append([]*grant(nil), l.grants...) }

// An ending names a grant that is over.
type ending struct {
	key, lock string
	number    uint64
}

type event struct {
	revision uint64
	kind     string
	lock     string
	data     map[string]any
}

// A pending is a request for locks, and its outcome.
type pending struct {
	body acquireBody
	// The first one is that of the path.
	names []string
	// Under this lease: the grant that it takes the place of.
	under *grant

	// The latest attempt: when it came, and until when it waits.
	attempt        int
	arrived, until time.Time
	// Nobody is connected: until when its place is kept.
	kept time.Time

	grants []*grant
	denied *refusal
}

func (p *pending) isOver() bool { return p.grants != nil || p.denied != nil }

// A refusal is an answer that is no 200.
type refusal struct {
	status        int
	code, message string
	// May be nil.
	holder  *grant
	wait    time.Duration
	highest uint64
	token   uint64
}

func invalid(format string, arguments ...any) *refusal {
	return &refusal{status: 400, code: "invalid", message: fmt.Sprintf(format, arguments...)}
}

func (s *Server) lock(name string) *lock {
	found := s.locks[name]
	if found == nil {
		found = &lock{name: name}
		s.locks[name] = found
	}
	return found
}

// settle does what is due: leases expire, places end, and whoever can be granted is granted. It wakes those who wait if
// anything has changed since the last time, and only then: else two of them would wake each other for ever.
func (s *Server) settle() {
	now := s.now()
	for _, name := range s.names() {
		for _, g := range s.locks[name].holders() {
			if !now.Before(g.lease.until) {
				s.end(g, "expired", "")
			}
		}
	}
	waits := s.queue[:0:0]
	for _, p := range s.queue {
		if p.kept.IsZero() || now.Before(p.kept) {
			waits = append(waits, p)
		} else {
			delete(s.requests, p.body.RequestID)
		}
	}
	if len(waits) < len(s.queue) {
		s.queue = waits
		s.broadcast()
	}
	for s.grantOne(now) {
		// A grant that is superseded may free other locks.
	}
	for _, l := range s.locks {
		if l.of > 0 && len(l.grants) == 0 && !s.isWanted(l) {
			l.of = 0
		}
	}
	if s.announced != s.revision {
		s.announced = s.revision
		s.broadcast()
	}
}

func (s *Server) names() []string {
	var names []string
	for name := range s.locks {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func (s *Server) isWanted(l *lock) bool {
	for _, p := range s.queue {
		if p.body.Permits != nil && p.names[0] == l.name {
			return true
		}
	}
	return false
}

// grantOne grants the first request that can be granted. Upgrades go ahead of the queue; whoever waits behind another one for
// one of its locks is not granted before it.
func (s *Server) grantOne(now time.Time) bool {
	var ordered []*pending
	for _, ahead := range []bool{true, false} {
		for _, p := range s.queue {
			if (p.body.Mode == "upgrade") == ahead {
				ordered = append(ordered, p)
			}
		}
	}
	awaited := map[string]bool{}
	for _, p := range ordered {
		free := p.kept.IsZero()
		for _, name := range p.names {
			l := s.lock(name)
			behind := awaited[name] && p.under == nil && !l.isHeldBy(p)
			free = free && !behind && s.admits(l, p)
		}
		if free {
			s.leave(p)
			s.grant(p)
			return true
		}
		for _, name := range p.names {
			awaited[name] = true
		}
	}
	return false
}

// isHeldBy tells whether the request comes from the client that has the lock alone, and takes its own grant over.
func (l *lock) isHeldBy(p *pending) bool {
	return len(l.grants) == 1 && !l.grants[0].reads() && l.grants[0].slots == nil && p.body.Permits == nil &&
		p.body.Mode == "" && l.grants[0].clientID == p.body.ClientID
}

// admits tells whether the holders, and a time after a grant, leave room for the request.
func (s *Server) admits(l *lock, p *pending) bool {
	switch {
	case p.body.Mode == "upgrade":
		return len(l.grants) == 1
	case p.under != nil, l.isHeldBy(p):
		return true
	case s.now().Before(l.closedUntil):
		return false
	case p.body.Permits != nil:
		return len(l.free(p.body.Permits.Of)) >= p.body.Permits.Count
	case len(l.grants) == 0:
		return true
	case p.body.Mode == "", l.of > 0 || !l.grants[0].reads():
		return false
	}
	for _, g := range l.grants {
		if p.body.Mode == "update" && g.mode == "update" {
			return false
		}
	}
	return true
}

// free are the slots of a semaphore that nobody has.
func (l *lock) free(of int) (slots []int) {
	if l.of > 0 {
		of = l.of
	}
	taken := map[int]bool{}
	for _, g := range l.grants {
		for _, slot := range g.slots {
			taken[slot] = true
		}
	}
	for slot := 1; slot <= of; slot++ {
		if !taken[slot] {
			slots = append(slots, slot)
		}
	}
	return slots
}

func (s *Server) draw() uint64 {
	s.token++
	return s.token
}

// grant gives all locks of a request in one step, under one lease and one token.
func (s *Server) grant(p *pending) {
	now, b := s.now(), p.body
	number := s.draw()
	token := number
	one := &lease{key: randomText(), ttl: time.Duration(b.TTL) * time.Millisecond}
	if p.under != nil {
		one = p.under.lease
	}
	if until := now.Add(one.ttl); until.After(one.until) {
		one.until = until
	}
	s.leases[one.key] = one
	mode := b.Mode
	if mode == "upgrade" {
		mode = ""
	}
	for _, name := range p.names {
		l := s.lock(name)
		if mode != "" && p.under == nil && len(l.grants) > 0 {
			token = l.grants[0].token
		}
		if l.isHeldBy(p) {
			s.end(l.grants[0], "superseded", "")
		}
		if p.under != nil {
			s.end(p.under, "superseded", "")
			s.leases[one.key] = one
		}
		g := &grant{
			lease: one, lock: l, token: token, number: number, clientID: b.ClientID, metadata: b.Metadata, mode: mode, at: now,
			lockDelay: time.Duration(b.LockDelay) * time.Millisecond, openFrom: time.Duration(b.AtLeastFor) * time.Millisecond,
		}
		if b.Permits != nil {
			g.slots = l.free(b.Permits.Of)[:b.Permits.Count]
			if l.of == 0 {
				l.of = b.Permits.Of
			}
		}
		one.grants = append(one.grants, g)
		l.grants, l.last = append(l.grants, g), token
		p.grants = append(p.grants, g)
		s.tokens[name] = append(s.tokens[name], token)
		s.tell("granted", g, map[string]any{"lease_duration_ms": one.ttl.Milliseconds()})
	}
}

// end records why a grant is over: not_held is a release.
func (s *Server) end(g *grant, code, reason string) {
	l := g.lock
	for at, held := range l.grants {
		if held != g {
			continue
		}
		l.grants = append(l.grants[:at:at], l.grants[at+1:]...)
		was := ending{g.lease.key, l.name, g.number}
		s.ended[was] = code
		if reason != "" {
			s.reasons[was] = reason
		}
		g.lease.grants = without(g.lease.grants, g)
		if len(g.lease.grants) == 0 {
			delete(s.leases, g.lease.key)
		}
		closed := g.at.Add(g.openFrom)
		if delayed := s.now().Add(g.lockDelay); (code == "expired" || code == "revoked") && delayed.After(closed) {
			closed = delayed
		}
		if code != "superseded" && closed.After(l.closedUntil) && (g.lockDelay > 0 || g.openFrom > 0) {
			l.closedUntil = closed
		}
		more := map[string]any{}
		if reason != "" {
			more["reason"] = reason
		}
		s.tell(kindOf(code), g, more)
		// The reader that waited to become the writer has this answer.
		for _, p := range append([]*pending(nil), s.queue...) {
			if p.under == g && code != "superseded" {
				p.denied = over(code, g.number)
				s.leave(p)
			}
		}
		return
	}
}

func (s *Server) leave(p *pending) {
	before := len(s.queue)
	if s.queue = without(s.queue, p); len(s.queue) < before {
		s.broadcast()
	}
}

func without[T comparable](all []T, one T) []T {
	left := all[:0:0]
	for _, each := range all {
		if each != one {
			left = append(left, each)
		}
	}
	return left
}

func (s *Server) tell(kind string, g *grant, more map[string]any) {
	s.revision++
	data := map[string]any{"revision": s.revision, "time": time.Now().UTC().Format(timeFormat), "resource_id": g.lock.name,
		"client_id": g.clientID, "fencing_token": g.token}
	if g.reads() {
		data["grant_id"] = g.number
	}
	for name, value := range more {
		data[name] = value
	}
	s.events = append(s.events, event{s.revision, kind, g.lock.name, data})
	if len(s.events) > keptEvents {
		s.events = s.events[len(s.events)-keptEvents:]
	}
}

// denial is why a request is not granted now.
func (s *Server) denial(p *pending) *refusal {
	for _, name := range p.names {
		l := s.lock(name)
		for _, g := range l.grants {
			if g == p.under {
				continue
			}
			left := s.until(g.lease.until)
			message := fmt.Sprintf("held by %q with fencing token %d for another %v unless renewed", g.clientID, g.token, left.Round(time.Second))
			return &refusal{status: 409, code: "held", message: message, holder: g, wait: left}
		}
		if left := s.until(l.closedUntil); left > 0 {
			message := fmt.Sprintf("closed for another %v by its last grant", left.Round(time.Second))
			return &refusal{status: 409, code: "delayed", message: message, wait: left, highest: l.last}
		}
	}
	return &refusal{status: 409, code: "held", message: "another request waits, and comes first"}
}

// over is the answer about a grant that has ended.
func over(code string, number uint64) *refusal {
	status := 410
	if code == "not_held" {
		status = 409
	}
	how := map[string]string{"not_held": "was released", "expired": "has expired", "revoked": "was revoked by an operator"}[code]
	if how == "" {
		how = "was superseded"
	}
	return &refusal{status: status, code: code, message: fmt.Sprintf("the grant with fencing token %d %s", number, how), token: number}
}

// find is the grant that a request names.
func (s *Server) find(name string, n named) (*grant, *refusal) {
	var held *grant
	for _, g := range s.lock(name).grants {
		if g.lease.key == n.LeaseKey {
			held = g
			if n.Token == 0 || g.number == n.Token {
				return g, nil
			}
		}
	}
	if code := s.ended[ending{n.LeaseKey, name, n.Token}]; code != "" {
		return nil, over(code, n.Token)
	}
	if held != nil {
		return nil, &refusal{status: 412, code: "stale", message: "the lock is held with another token", highest: held.number}
	}
	return nil, &refusal{status: 409, code: "not_held", message: "there is no such grant of this lock"}
}

// next is how long nothing happens by itself, at most a second.
func (s *Server) next() time.Duration {
	soon := time.Second
	at := func(t time.Time) {
		if left := s.until(t); !t.IsZero() && left < soon {
			soon = max(left, 0)
		}
	}
	for _, l := range s.leases {
		at(l.until)
	}
	for _, l := range s.locks {
		if s.until(l.closedUntil) > 0 {
			at(l.closedUntil)
		}
	}
	for _, p := range s.queue {
		if at(p.kept); p.kept.IsZero() {
			at(p.until)
		}
	}
	return soon + time.Millisecond
}
