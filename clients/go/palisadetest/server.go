// Package palisadetest has a lock server in memory, for the unit tests of programs that use package palisade. It needs no
// binary, no socket and no folder:
//
//	server := palisadetest.NewServer()
//	client, err := server.Client()
//	…
//	server.Revoke("orders", "the test") // and see what the program does
//
// The client is the real one, with its renewals, deadlines and refusals; only the way to the server is another. Tokens rise
// by one over all locks, as the real server's do, and waiting requests are granted in the order of their arrival.
//
// The double does not promise what a test of one program does not need: nothing survives the process, everybody may do
// everything, and there are no certificates, clusters, quotas, signed tokens or audit files. The tests of the client run
// against the double and against the program.
package palisadetest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"palisade.example/palisade"
)

// A Server is an authority in memory. All its methods may be used by several goroutines. It has nothing to close.
type Server struct {
	mu sync.Mutex
	// Closed and replaced when something changes: whoever waits looks again.
	changed chan struct{}
	state   state

	authority string
	token     uint64
	locks     map[string]*lock
	leases    map[string]*lease
	requests  map[string]*pending
	// Those that wait, in the order of their arrival.
	queue []*pending
	// Why grants are over.
	ended   map[ending]string
	reasons map[ending]string
	tokens  map[string][]uint64

	// The latest changes; the last one has the number revision.
	events   []event
	revision uint64
	// The time; tests of the double move it.
	now func() time.Time
	// Those who wait know of the changes up to this one.
	announced uint64
	// How many requests listen.
	listening int
}

type state int

const (
	up state = iota
	down
	stalled
)

// NewServer makes a server that has granted nothing yet: its first token is 1.
func NewServer() *Server {
	return &Server{
		changed:   make(chan struct{}),
		now:       time.Now,
		authority: randomText(),
		locks:     map[string]*lock{},
		leases:    map[string]*lease{},
		requests:  map[string]*pending{},
		ended:     map[ending]string{},
		reasons:   map[ending]string{},
		tokens:    map[string][]uint64{},
	}
}

// Client makes a client of this server. Options about addresses, tokens and certificates have no effect.
func (s *Server) Client(options ...palisade.Option) (*palisade.Client, error) {
	return palisade.New(append(append([]palisade.Option(nil), options...), palisade.Through(wire{s}))...)
}

// Expire ends every grant of a lock, as if no renewal had come in time. Its holder learns of it from a notice, in a moment; one
// without notices from its next renewal, after a third of its TTL: a test gives the lock a short one.
func (s *Server) Expire(lock string) { s.endAll(lock, "expired", "") }

// Revoke takes a lock from everybody who holds it, as Client.Break does. A holder learns of it as with Expire.
func (s *Server) Revoke(lock, reason string) { s.endAll(lock, "revoked", reason) }

func (s *Server) endAll(name, code, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.lock(name).holders() {
		s.end(g, code, reason)
	}
	s.settle()
}

// Held is a lock that another client has: see Hold.
type Held struct {
	server *Server
	grant  *grant
}

// Hold gives a free lock to another client, which keeps it until it is released, revoked or expired by the test. The error
// says who has it, if it is not free.
func (s *Server) Hold(lock, clientID string) (*Held, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	p := &pending{body: acquireBody{ClientID: clientID, TTL: int64(forever / time.Millisecond)}, names: []string{lock}}
	if found := s.lock(lock); !s.admits(found, p) {
		return nil, fmt.Errorf("palisadetest: %q is not free: %s", lock, s.denial(p).message)
	}
	s.grant(p)
	s.settle()
	return &Held{s, p.grants[0]}, nil
}

// Token is the fencing token with which it is held.
func (h *Held) Token() uint64 { return h.grant.token }

// Release frees the lock. Releasing again is harmless.
func (h *Held) Release() {
	h.server.mu.Lock()
	defer h.server.mu.Unlock()
	h.server.end(h.grant, "not_held", "")
	h.server.settle()
}

// Down: from now on every request is answered that the server is not available, and nothing happens.
func (s *Server) Down() { s.become(down) }

// Stall: from now on nothing is answered. Requests that still wait for their answers get them after Up.
func (s *Server) Stall() { s.become(stalled) }

// Up ends Down and Stall.
func (s *Server) Up() { s.become(up) }

func (s *Server) become(state state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
	s.broadcast()
}

// Tokens are all tokens under which a lock was granted so far, in order.
func (s *Server) Tokens(lock string) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]uint64(nil), s.tokens[lock]...)
}

// Holder is the client that has a lock now, the oldest of several; nil if it is free.
func (s *Server) Holder(lock string) *palisade.Holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	for _, g := range s.lock(lock).holders() {
		return &palisade.Holder{
			ClientID:   g.clientID,
			Token:      g.token,
			Remaining:  s.until(g.lease.until),
			Metadata:   g.metadata,
			AcquiredAt: g.at.UTC().Format(timeFormat),
			GrantID:    g.grantID(),
			Slots:      append([]int(nil), g.slots...),
		}
	}
	return nil
}

func (s *Server) until(t time.Time) time.Duration { return t.Sub(s.now()) }

func (s *Server) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func randomText() string {
	var random [16]byte
	// It never fails.
	_, _ = rand.Read(random[:])
	return hex.EncodeToString(random[:])
}
