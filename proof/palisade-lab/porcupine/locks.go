package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/anishathalye/porcupine"
)

// part is a piece of a history that is judged by itself.
type part struct {
	name       string
	model      porcupine.Model
	operations []porcupine.Operation
}

// wish is an acquire with all its attempts: they have one effect.
type wish struct {
	first   *call
	granted *call
	ended   *call
	// open: an attempt may have taken effect without an answer.
	open     bool
	abandons []*call
}

// grant is one grant, at each of its locks.
type grant struct {
	step
	under bool
	locks []string
	// It was made in this time.
	sent, by int64
	// ttlMS is the shortest time to live of the lease that it opened, or nothing under an older one.
	ttlMS    int64
	abandons []*call
}

type leaseName struct {
	lock  string
	lease uint64
}

// builder makes operations out of a history of locks.
type builder struct {
	h       *history
	wishes  []*wish
	grants  []*grant
	byToken map[string]map[uint64]*grant
	// wishesOf are those of a client, callsAt the calls that name a lock first.
	wishesOf map[string][]*wish
	callsAt  map[string][]*call
	// hidden is, by lock, the time at which the first reader asked that no answer mentions.
	hidden map[string]int64
	// due is when a lease ends at the earliest, ttl the shortest time that it was ever given. A lease whose beginning
	// nobody saw has neither: it may end at any time.
	due, ttl map[leaseName]int64
	parts    map[string]*part
}

// lockParts are the parts of a history of locks: each lock by itself, and the counter of all tokens.
func lockParts(h *history) []part {
	b := &builder{
		h: h, byToken: map[string]map[uint64]*grant{}, due: map[leaseName]int64{}, ttl: map[leaseName]int64{},
		wishesOf: map[string][]*wish{}, callsAt: map[string][]*call{}, hidden: map[string]int64{},
		parts: map[string]*part{},
	}
	b.gather()
	b.known()
	b.seenByOthers()
	b.leases()
	for _, g := range b.grants {
		for _, lock := range g.locks {
			one := g.step
			hidden, ok := b.hidden[lock]
			one.unseen = ok && hidden <= g.by
			b.add(lock, one, g.sent, g.by)
		}
	}
	for _, c := range h.calls {
		b.observe(c)
	}
	b.ends()
	var all []part
	for _, lock := range slices.Sorted(maps.Keys(b.parts)) {
		all = append(all, *b.parts[lock])
	}
	if !h.perLock {
		counter := part{name: "all tokens", model: counterModel}
		for _, g := range b.grants {
			one := g.step
			counter.operations = append(counter.operations, operation(&one, g.sent, g.by))
		}
		all = append(all, counter)
	}
	return all
}

func operation(in *step, from, to int64) porcupine.Operation {
	return porcupine.Operation{Input: in, Call: from, Return: to}
}

func (b *builder) add(lock string, in step, from, to int64) {
	one := b.parts[lock]
	if one == nil {
		one = &part{name: lock, model: lockModel}
		b.parts[lock] = one
	}
	one.operations = append(one.operations, operation(&in, from, to))
}

// gather puts the attempts of each wish together.
func (b *builder) gather() {
	type key struct{ lock, client, request string }
	known := map[key]*wish{}
	name := func(c *call) key {
		if c.request == "" {
			return key{c.lock, c.client, "id " + c.id}
		}
		return key{c.lock, c.client, c.request}
	}
	for _, c := range b.h.calls {
		b.callsAt[c.lock] = append(b.callsAt[c.lock], c)
		if c.kind != "acquire" {
			continue
		}
		w := known[name(c)]
		if w == nil {
			w = &wish{first: c}
			known[name(c)] = w
			b.wishes = append(b.wishes, w)
			b.wishesOf[c.client] = append(b.wishesOf[c.client], w)
		}
		w.take(b, c)
	}
	for _, c := range b.h.calls {
		if w := known[name(c)]; c.kind == "abandon" && w != nil {
			w.abandons = append(w.abandons, c)
		}
	}
	for _, w := range b.wishes {
		if reads := w.first.mode == shared || w.first.mode == update; w.unseen() && reads {
			sent, ok := b.hidden[w.first.lock]
			if !ok || w.first.sent < sent {
				b.hidden[w.first.lock] = w.first.sent
			}
		}
	}
}

// unseen says whether it may have been granted although no answer says so.
func (w *wish) unseen() bool { return w.open && w.granted == nil }

func (w *wish) take(b *builder, c *call) {
	if c.sent < w.first.sent {
		w.first = c
	}
	switch {
	case c.answered == nil || c.is("abandoned"):
		w.open = true
	case c.is("ended"):
		w.ended = c
	case c.is("granted") && w.granted == nil:
		w.granted = c
	case c.is("granted"):
		one, other := *w.granted.answered, *c.answered
		if one.token != other.token || one.phase != other.phase || one.slots != other.slots {
			b.add(c.lock, step{kind: impossible, text: "a repeated request got another grant: " + c.String()}, c.sent, other.at)
		}
		if other.at < one.at {
			w.granted = c
		}
	}
}

// known makes the grants that their holders were told of.
func (b *builder) known() {
	for _, w := range b.wishes {
		c := w.granted
		plain := w.first.mode == exclusive && w.first.under == 0
		switch {
		case c != nil:
		case w.ended != nil && plain:
			// It was granted, and is over.
			c = w.ended
		default:
			continue
		}
		told := c.answered
		g := &grant{
			step: step{
				kind: granted, token: told.token, lease: cmp.Or(told.lease, told.token), phase: told.phase,
				client: c.client, mode: c.mode, slots: told.slots, wanted: c.permits, of: c.of, text: c.String(),
			},
			under: c.under != 0, locks: c.locks(), sent: w.first.sent, by: told.at, ttlMS: c.ttlMS, abandons: w.abandons,
		}
		if g.under {
			// A request under a lease that has the lock is answered with the grant that it has.
			for _, other := range b.wishesOf[c.client] {
				if other.open && other.first.lock == c.lock && other.first.under == c.under {
					g.sent = min(g.sent, other.first.sent)
				}
			}
		}
		b.put(g)
	}
}

// put adds a grant, unless it is one that another request under the same lease was answered with.
func (b *builder) put(g *grant) {
	before := b.byToken[g.locks[0]][g.token]
	if before != nil && (before.under || g.under) && before.client == g.client && before.lease == g.lease &&
		before.phase == g.phase {
		before.sent, before.by = min(before.sent, g.sent), min(before.by, g.by)
		before.abandons = append(before.abandons, g.abandons...)
		return
	}
	b.grants = append(b.grants, g)
	for _, lock := range g.locks {
		b.name(lock, g)
	}
}

func (b *builder) name(lock string, g *grant) {
	if b.byToken[lock] == nil {
		b.byToken[lock] = map[uint64]*grant{}
	}
	if b.byToken[lock][g.token] == nil {
		b.byToken[lock][g.token] = g
	}
}

// seenByOthers makes the grants that only the answers to others name.
func (b *builder) seenByOthers() {
	for _, c := range b.h.calls {
		if !c.is("held") || len(c.also) > 0 {
			continue
		}
		told := c.answered
		if g := b.byToken[c.lock][told.token]; g != nil {
			g.by = min(g.by, told.at)
			continue
		}
		g := &grant{
			step: step{
				kind: granted, token: told.token, lease: told.token, client: told.holder, foreign: true, text: c.String(),
			},
			locks: []string{c.lock}, sent: never, by: told.at,
		}
		g.ttlMS = never
		ofPermits := false
		for _, w := range b.wishesOf[told.holder] {
			first := w.first
			asked := w.open && slices.Contains(first.locks(), c.lock)
			ofPermits = ofPermits || asked && first.mode == permits
			if asked && (first.mode == exclusive || first.mode == upgrade) {
				g.sent, g.ttlMS = min(g.sent, first.sent), min(g.ttlMS, first.ttlMS)
				g.abandons = append(g.abandons, w.abandons...)
			}
		}
		// The slots of an unseen grant of permits are not known.
		if ofPermits || b.joins(g) {
			continue
		}
		if g.sent == never || g.sent > g.by {
			b.add(c.lock, step{kind: impossible, text: "nobody can have that token: " + c.String()}, c.sent, told.at)
			continue
		}
		b.put(g)
	}
}

// joins adds the lock of a grant that only others saw to a set of which they saw another lock before.
func (b *builder) joins(g *grant) bool {
	for _, set := range b.grants {
		if set.foreign && set.token == g.token && set.client == g.client && g.sent != never {
			set.locks = append(set.locks, g.locks...)
			set.by = min(set.by, g.by)
			b.name(g.locks[0], set)
			return true
		}
	}
	return false
}

func (b *builder) lease(lock string, g *grant) leaseName {
	if b.h.perLock {
		return leaseName{lock, g.step.lease}
	}
	return leaseName{"", g.step.lease}
}

// leases finds when each lease ends at the earliest: its full time after the last acknowledged call that began it.
func (b *builder) leases() {
	const million = 1_000_000
	span := func(ms int64) int64 { return ms * (million - b.h.driftPPM) }
	for _, g := range b.grants {
		if g.ttlMS == 0 {
			continue
		}
		name := b.lease(g.locks[0], g)
		if ttl, ok := b.ttl[name]; !ok || g.ttlMS < ttl {
			b.ttl[name] = g.ttlMS
		}
		b.due[name] = max(b.due[name], g.sent+span(g.ttlMS))
	}
	for _, c := range b.h.calls {
		if c.kind == "renew" && c.ttlMS != 0 {
			if g := b.byToken[c.lock][c.token]; g != nil {
				if name := b.lease(c.lock, g); c.ttlMS < b.ttl[name] {
					b.ttl[name] = c.ttlMS
				}
			}
		}
	}
	for _, c := range b.h.calls {
		g := b.byToken[c.lock][c.token]
		if !c.is("renewed") || g == nil {
			continue
		}
		name := b.lease(c.lock, g)
		if ttl, ok := b.ttl[name]; ok {
			b.due[name] = max(b.due[name], c.sent+span(cmp.Or(c.ttlMS, ttl)))
		}
	}
}

// observe adds an answer's statements about grants.
func (b *builder) observe(c *call) {
	if c.answered == nil {
		return
	}
	told := c.answered
	text := c.String()
	g := b.byToken[c.lock][c.token]
	say := func(in step) {
		in.text = text
		b.add(c.lock, in, c.sent, told.at)
	}
	switch told.kind {
	case "renewed", "released", "revoked":
		if g == nil || told.token != c.token {
			say(step{kind: impossible})
			return
		}
		in := step{kind: alive, token: c.token, client: c.client}
		if told.kind != "renewed" {
			in.kind, in.how = ends, told.kind
		}
		if told.kind == "revoked" {
			in.client = ""
		}
		say(in)
	case "ended":
		token := told.token
		if g = b.byToken[c.lock][token]; g != nil && len(c.also) == 0 {
			say(step{kind: over, token: token, how: told.how})
		}
	case "not_held":
		if g != nil {
			say(step{kind: over, token: c.token})
		}
	case "stale":
		if b.byToken[c.lock][told.token] != nil {
			say(step{kind: named, token: told.token})
		}
	case "held":
		if len(c.also) == 0 && b.byToken[c.lock][told.token] != nil {
			from := c.sent
			// A denial is remembered: another attempt of the same wish gets it again.
			for _, w := range b.wishesOf[c.client] {
				same := c.kind == "acquire" && c.request != "" && w.first.request == c.request
				if same && w.first.lock == c.lock {
					from = w.first.sent
				}
			}
			b.add(c.lock, step{kind: named, token: told.token, client: told.holder, text: text}, from, told.at)
		}
	case "free":
		say(step{kind: free})
	}
}

// ends adds the operations that may end a grant without an answer about it. Nobody sees which of several did it, so
// they are one operation, from the first instant at which one may. If an answer tells how the grant ended, it is of
// these alone.
func (b *builder) ends() {
	for _, g := range b.grants {
		for _, lock := range g.locks {
			first := map[string]int64{"expired": b.due[b.lease(lock, g)]}
			end := func(how string, sent int64) {
				if known, ok := first[how]; !ok || sent < known {
					first[how] = sent
				}
			}
			b.unanswered(lock, g, end)
			for _, c := range g.abandons {
				end("released", c.sent)
				if by := c.until(); by != never {
					in := step{kind: mayEnd, token: g.token, how: "released", text: c.String()}
					b.add(lock, in, max(c.sent, g.sent), max(by, g.by))
				}
			}
			by, told := b.endedBy(lock, g)
			from := int64(never)
			for how, sent := range first {
				if told == "" || told == how {
					from = min(from, max(sent, g.sent))
				}
			}
			// A call after the end was seen did not cause it.
			if from <= by && from != never {
				text := fmt.Sprintf("an end of token %d that nobody saw", g.token)
				b.add(lock, step{kind: mayEnd, token: g.token, how: told, text: text}, from, by)
			}
		}
	}
}

// unanswered tells of the calls without an answer that may have ended a grant.
func (b *builder) unanswered(lock string, g *grant, end func(string, int64)) {
	for _, c := range b.callsAt[lock] {
		if c.answered == nil && c.token == g.token {
			switch c.kind {
			case "release":
				end("released", c.sent)
			case "revoke":
				end("revoked", c.sent)
			}
		}
	}
	for _, w := range b.wishesOf[g.client] {
		if !slices.Contains(w.first.locks(), lock) {
			continue
		}
		// Such a request may have been answered with the grant that the lease had.
		if w.first.under == g.step.lease {
			for _, c := range w.abandons {
				end("released", c.sent)
			}
		}
		// A client's next grant takes the place of one that it has alone, or in mode update.
		if takes := w.unseen() && w.first.mode != permits; takes && (g.mode == update || g.phase == 0 && g.slots == 0) {
			end("superseded", w.first.sent)
		}
	}
}

// endedBy is the first instant by which a grant was seen to be over, and the way in which it ended, if an answer says
// so.
func (b *builder) endedBy(lock string, g *grant) (int64, string) {
	by, how := int64(never), ""
	for _, c := range b.callsAt[lock] {
		if c.answered == nil {
			continue
		}
		told := c.answered
		switch told.kind {
		case "released", "revoked", "not_held":
			if c.token == g.token {
				by = min(by, told.at)
			}
		case "ended":
			if told.token == g.token && len(c.also) == 0 {
				by, how = min(by, told.at), told.how
			}
		case "free":
			if c.sent > g.by {
				by = min(by, told.at)
			}
		}
	}
	for _, next := range b.grants {
		if next.token <= g.token || !slices.Contains(next.locks, lock) {
			continue
		}
		if h := (holder{phase: g.phase, slots: g.slots, mode: g.mode, of: g.of}); !mayStand(h, &next.step) {
			by = min(by, next.by)
		}
	}
	return by, how
}
