package palisade

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"palisade.example/palisade/internal/exchange"
)

const (
	// The server takes no more grants in a request.
	maxListened = 100
	// The server answers after this time, if it has nothing to say before; less, where something on the way ends requests.
	longestListen, shortestListen = 20 * time.Second, 2 * time.Second
	// A request that ends earlier did not wait.
	hasWaited = time.Second
	// How much later an answer may come.
	listenPatience = 5 * time.Second
	// New grants are named together, and a lease that is released sooner is never named.
	gatherTime = 100 * millisecond
	// After an answer with news.
	shortestRest, longestRest = 50 * millisecond, 150 * millisecond
	// After requests without a good answer, doubled each time.
	firstRest, lastRest = 500 * millisecond, 8 * time.Second
	// When no lease is left, the server may still say so: that keeps the connection.
	lastAnswer = 500 * millisecond
)

// A listening hears from the server what becomes of the client's leases: one request for up to 100 grants is always under way,
// while there are any. Only renewals decide whether a lease is suspended: when nothing is heard, nothing happens.
type listening struct {
	// It has an order of addresses of its own, so its failures change nothing for renewals.
	transport *transport
	// Its end is that of the client.
	base context.Context
	off  bool

	mu     sync.Mutex
	shards []*shard
	// The addresses that said that they know no notices.
	mute map[string]bool
	// No address knows them.
	deaf bool
	// The last renewal did not say how many requests wait, so its server is an older one.
	old bool
}

func newListening(base context.Context, t *transport, off bool) *listening {
	own := &endpoints{urls: t.endpoints.urls, secret: t.endpoints.secret}
	return &listening{transport: &transport{own, unreset{t.exchange}, t.tls}, base: base, off: off, mute: map[string]bool{}}
}

// An unreset exchange keeps the connections of others when an answer to a long request does not come.
type unreset struct{ exchange.Exchange }

func (unreset) Reset() {}

// A shard is the grants of one request.
type shard struct {
	ctx  context.Context
	stop context.CancelFunc
	// Whether the request under way names the grant.
	grants map[listened]bool
	// Ends the request under way, if there is one.
	restart context.CancelFunc
	// New grants are being gathered; without any, an end is near.
	gathering, ending bool
}

// A listened grant is one lock of a lease.
type listened struct {
	lease *Lease
	lock  string
}

// add names the grants of a lease soon.
func (g *listening) add(l *Lease) {
	g.mu.Lock()
	if !g.off && !g.deaf && !l.listened {
		l.listened = true
		for _, lock := range l.wish.names {
			g.addLocked(listened{l, lock})
		}
	}
	g.mu.Unlock()
	if l.hold.over.Load() != nil {
		g.remove(l)
	}
}

func (g *listening) addLocked(one listened) {
	s := g.withRoomLocked()
	s.grants[one] = false
	if s.restart == nil || s.gathering {
		return // The next request names it.
	}
	s.gathering = true
	time.AfterFunc(gatherTime, func() { g.gathered(s) })
}

// withRoomLocked is a shard with room for one more; a new one begins to listen.
func (g *listening) withRoomLocked() *shard {
	for _, s := range g.shards {
		if len(s.grants) < maxListened && s.ctx.Err() == nil {
			return s
		}
	}
	s := &shard{grants: map[listened]bool{}}
	s.ctx, s.stop = context.WithCancel(g.base)
	g.shards = append(g.shards, s)
	go g.run(s)
	return s
}

// gathered ends the request under way if it lacks a grant that is still held.
func (g *listening) gathered(s *shard) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.gathering = false
	for _, named := range s.grants {
		if !named && s.restart != nil {
			s.restart()
			return
		}
	}
}

// remove forgets the grants of a lease. The request under way goes on for the others.
func (g *listening) remove(l *Lease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.shards {
		for _, lock := range l.wish.names {
			s.forgetLocked(g, listened{l, lock})
		}
	}
}

func (g *listening) forget(s *shard, one listened) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.forgetLocked(g, one)
}

func (s *shard) forgetLocked(g *listening, one listened) {
	if _, known := s.grants[one]; !known {
		return
	}
	delete(s.grants, one)
	if len(s.grants) > 0 || s.ending {
		return
	}
	s.ending = true
	time.AfterFunc(lastAnswer, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		s.ending = false
		if len(s.grants) == 0 {
			s.stop()
		}
	})
}

// renewed is told of each renewal, and whether its answer said how many requests wait. An older server does not; when one
// does that did not, a newer server has taken its place, which may know notices.
func (g *listening) renewed(l *Lease, says bool) {
	g.mu.Lock()
	if says && g.old {
		g.deaf = false
		clear(g.mute)
	}
	g.old = !says
	again := !g.deaf && !l.listened
	g.mu.Unlock()
	if again {
		g.add(l)
	}
}

// run asks until no grant is left.
func (g *listening) run(s *shard) {
	defer s.stop()
	rest := newPace()
	for pause := gatherTime; ; {
		// An end of the shard is seen when it begins.
		_ = sleepUntil(s.ctx, now().add(pause))
		ctx, named, ok := g.begin(s)
		if !ok {
			return
		}
		pause = g.ask(ctx, s, named, rest)
	}
}

// begin names the grants of the next request. Without any, the shard ends, and so it does if another one can take the rest.
func (g *listening) begin(s *shard) (context.Context, []listened, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.restart != nil {
		s.restart()
		s.restart = nil
	}
	if s.ctx.Err() != nil || len(s.grants) == 0 {
		g.endLocked(s)
		return nil, nil, false
	}
	for _, other := range g.shards {
		// A half: then a few new grants do not part them again.
		if other != s && other.ctx.Err() == nil && len(other.grants)+len(s.grants) <= maxListened/2 {
			g.endLocked(s)
			for one := range s.grants {
				g.addLocked(one)
			}
			return nil, nil, false
		}
	}
	named := make([]listened, 0, len(s.grants))
	for one := range s.grants {
		s.grants[one] = true
		named = append(named, one)
	}
	var ctx context.Context
	ctx, s.restart = context.WithCancel(s.ctx)
	return ctx, named, true
}

func (g *listening) endLocked(ended *shard) {
	left := g.shards[:0:0]
	for _, s := range g.shards {
		if s != ended {
			left = append(left, s)
		}
	}
	g.shards = left
}

// ask makes one request, and returns how long to wait before the next one.
func (g *listening) ask(ctx context.Context, s *shard, named []listened, rest *pace) time.Duration {
	sent, address := now(), g.transport.endpoints.current()
	answer, follow, failed := g.transport.attempt(ctx, address, listenRequest(named, rest.wait), sent.add(rest.wait+listenPatience))
	switch {
	case ctx.Err() != nil, follow:
		return 0
	case failed == nil && answer.status == 404:
		g.isMute(address)
		return rest.longer()
	case failed != nil, answer.status != 200:
		if now().sub(sent) >= hasWaited {
			rest.wait = max(rest.wait/2, shortestListen)
		}
		return rest.longer()
	}
	g.isNotMute(address)
	told, _ := readNotices(answer, named)
	switch {
	case g.take(s, named, told):
		rest.reset()
		return shortestRest + rand.N(longestRest-shortestRest)
	case len(told) > 0, now().sub(sent) < rest.wait/2:
		// A server that always answers at once is not asked in a loop.
		return rest.longer()
	}
	rest.reset()
	rest.wait = atMost(rest.wait+time.Second, longestListen)
	return 0
}

// isMute records that an address knows no notices. When none does, nobody is asked any more.
func (g *listening) isMute(address string) {
	g.transport.endpoints.failed(address)
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.mute[address]
	g.mute[address] = true
	if !known && len(g.mute) < len(g.transport.endpoints.urls) {
		return
	}
	g.deaf = true
	for _, s := range g.shards {
		for one := range s.grants {
			one.lease.listened = false
		}
		clear(s.grants)
		s.stop()
	}
	g.shards = nil
}

func (g *listening) isNotMute(address string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.mute, address)
}

// take tells the leases what was heard. It returns false if all of it was known.
func (g *listening) take(s *shard, named []listened, told []wireNotice) (news bool) {
	for _, each := range told {
		for _, one := range named {
			switch {
			case !each.isAbout(one):
			case each.Event == "ended":
				news = true
				g.forget(s, one)
				one.lease.endedAtServer(one.lock, each.How, each.Reason)
			case each.Event == "wanted":
				news = one.lease.isWantedBy(one.lock, each.Waiters) || news
			}
		}
	}
	return news
}

// endedAtServer: the server says that a grant is over, as it would answer a renewal.
func (l *Lease) endedAtServer(lock, how, reason string) {
	switch {
	case !l.parts.holds(lock): // It was released here.
	case l.upgrading.Load() && how == "superseded": // By its own upgrade, whose answer is on its way.
	case how == "expired", how == "revoked", how == "superseded":
		l.loseBecause(lock, how, reason)
	default:
		l.loseBecause(lock, "not_held", reason)
	}
}

type wireListened struct {
	Lock     string `json:"resource_id"`
	LeaseKey string `json:"lock_token"`
	Number   uint64 `json:"fencing_token"`
	Waiters  int    `json:"waiters"`
}

type wireNotice struct {
	Lock    string `json:"resource_id"`
	Number  uint64 `json:"fencing_token"`
	Event   string `json:"event"`
	How     string `json:"how"`
	Reason  string `json:"reason"`
	Waiters int    `json:"waiters"`
}

func (n wireNotice) isAbout(one listened) bool {
	return n.Lock == one.lock && n.Number == one.lease.grant.number
}

func listenRequest(named []listened, wait time.Duration) request {
	type key struct {
		lock   string
		number uint64
	}
	asked := map[key]bool{}
	var grants []wireListened
	for _, one := range named {
		grant := one.lease.grant
		// Two leases may be of one grant, of which one adopted it. The server takes each once.
		if k := (key{one.lock, grant.number}); !asked[k] {
			asked[k] = true
			grants = append(grants, wireListened{one.lock, grant.leaseKey, grant.number, one.lease.knownWaiters(one.lock)})
		}
	}
	body := struct {
		Grants []wireListened `json:"grants"`
		Wait   int64          `json:"wait_ms"`
	}{grants, wholeMilliseconds(wait)}
	differs := func(r reply) string {
		_, why := readNotices(r, named)
		return why
	}
	return request{method: "POST", path: "/v1/listen", body: body, differs: differs}
}

// readNotices also tells why an answer is not that of this request.
func readNotices(r reply, named []listened) (told []wireNotice, why string) {
	if r.status != 200 {
		return nil, ""
	}
	var answer struct {
		Notices *[]wireNotice `json:"notices"`
	}
	if json.Unmarshal(r.body, &answer) != nil || answer.Notices == nil {
		return nil, "notices are missing or broken"
	}
	for _, each := range *answer.Notices {
		known := false
		for _, one := range named {
			known = known || each.isAbout(one)
		}
		if !known || each.Waiters < 0 {
			return nil, fmt.Sprintf("it is about a grant of %q that was not named, or a number is out of range", each.Lock)
		}
	}
	return *answer.Notices, ""
}

// A pace is how long the server may wait, and the pauses between requests that brought nothing.
type pace struct{ wait, next time.Duration }

func newPace() *pace { return &pace{longestListen, firstRest} }

func (p *pace) reset() { p.next = firstRest }

// longer is the next pause, with up to a quarter more, so that many clients do not come back at once.
func (p *pace) longer() time.Duration {
	pause := p.next + rand.N(p.next/4)
	p.next = atMost(2*p.next, lastRest)
	return pause
}
