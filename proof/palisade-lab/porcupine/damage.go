package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// damage makes a history illegal in one way, at a random place where this is certain. It returns a description of the
// change, or nothing if the history has no such place.
type damage struct {
	name string
	make func(h *history, random *rand.Rand) string
}

// tryDamages damages a history in every way, and expects each to be found.
func tryDamages(h *history, times int, seed uint64, timeout time.Duration) int {
	kinds := lockDamages
	if h.resources {
		kinds = resourceDamages
	}
	random := rand.New(rand.NewPCG(seed, 0))
	worst := explained
	for _, kind := range kinds {
		made := 0
		for range times {
			broken := h.copied()
			text := kind.make(broken, random)
			if text == "" {
				break
			}
			made++
			if v := judge(broken, timeout); v.result != porcupine.Illegal {
				fmt.Printf("   %s: NOT FOUND: %s: %s\n", kind.name, text, v)
				worst = max(worst, unexplained)
			}
		}
		fmt.Printf("   %s: %d tried\n", kind.name, made)
	}
	return worst
}

// pick returns a random one of the calls for which this holds.
func pick(calls []*call, random *rand.Rand, fits func(*call) bool) *call {
	var all []*call
	for _, c := range calls {
		if fits(c) {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[random.IntN(len(all))]
}

// locked is a grant of one lock that ended with an acknowledged release: it was live from the answer of the one to the
// call of the other.
type locked struct {
	grant, release *call
}

// held are all such grants of a mode.
func held(h *history, asked mode) []locked {
	var all []locked
	for _, c := range h.calls {
		if !c.is("granted") || c.mode != asked || len(c.also) > 0 {
			continue
		}
		for _, end := range h.calls {
			if end.is("released") && end.lock == c.lock && end.token == c.answered.token && end.sent > c.answered.at+2 {
				all = append(all, locked{c, end})
				break
			}
		}
	}
	return all
}

// within adds an answered call while the grant was live.
func (one locked) within(h *history, c call) {
	c.id, c.lock = fmt.Sprintf("planted %d", len(h.calls)), one.grant.lock
	c.sent = one.grant.answered.at + 1
	c.answered.at = one.release.sent - 1
	h.calls = append(h.calls, &c)
}

func ofHeld(asked mode, make func(*history, locked, *rand.Rand) string) func(*history, *rand.Rand) string {
	return func(h *history, random *rand.Rand) string {
		all := held(h, asked)
		if len(all) == 0 {
			return ""
		}
		return make(h, all[random.IntN(len(all))], random)
	}
}

// after are the grants that were asked for after another one of another request was known.
func after(h *history, first *call) func(*call) bool {
	return func(c *call) bool {
		other := c.client != first.client || c.request != first.request
		return c.is("granted") && other && c.under == 0 && firstSent(h, c) > first.answered.at
	}
}

func firstSent(h *history, c *call) int64 {
	sent := c.sent
	for _, other := range h.calls {
		if c.request != "" && other.kind == c.kind && other.request == c.request && other.client == c.client {
			sent = min(sent, other.sent)
		}
	}
	return sent
}

func isGrant(c *call) bool { return c.is("granted") && c.under == 0 }

// rename gives a grant another token wherever its answers name it; later calls of its holder name the new one too.
func rename(h *history, c *call, token uint64) {
	old := c.answered.token
	swap := func(number *uint64) {
		if *number == old {
			*number = token
		}
	}
	for _, other := range h.calls {
		if other.client != c.client {
			continue
		}
		swap(&other.token)
		swap(&other.under)
		if a := other.answered; a != nil {
			swap(&a.token)
			swap(&a.lease)
			swap(&a.phase)
		}
	}
}

var lockDamages = []damage{
	{"a token is repeated", func(h *history, random *rand.Rand) string {
		first := pick(h.calls, random, isGrant)
		if first == nil {
			return ""
		}
		second := pick(h.calls, random, after(h, first))
		if second == nil {
			return repeatAny(h)
		}
		token := first.answered.token
		text := fmt.Sprintf("%s, and token %d again", second, token)
		rename(h, second, token)
		return text
	}},
	{"two tokens are swapped", func(h *history, random *rand.Rand) string {
		for range 100 {
			first := pick(h.calls, random, isGrant)
			if first == nil {
				return ""
			}
			second := pick(h.calls, random, func(c *call) bool {
				return after(h, first)(c) && c.client != first.client
			})
			if second == nil {
				continue
			}
			text := fmt.Sprintf("%s and %s", first, second)
			low, high := first.answered.token, second.answered.token
			rename(h, first, high)
			rename(h, second, low)
			return text
		}
		return ""
	}},
	{"a grant comes while another client holds the lock", ofHeld(exclusive, func(h *history, one locked, random *rand.Rand) string {
		next := pick(h.calls, random, func(c *call) bool {
			return c.is("granted") && c.lock == one.grant.lock && c.client != one.grant.client &&
				c.answered.token > one.grant.answered.token && firstSent(h, c) == c.sent
		})
		if next == nil {
			// A client that appears nowhere else.
			told := *one.grant.answered
			told.token++
			told.lease = told.token
			one.within(h, call{client: "planted", kind: "acquire", ttlMS: 1000, answered: &told})
			return fmt.Sprintf("another grant during %s", one.grant)
		}
		text := fmt.Sprintf("%s, but earlier, during %s", next, one.grant)
		next.sent, next.answered.at = one.grant.answered.at+1, one.release.sent-1
		return text
	})},
	{"a renewal is acknowledged after the release", ofHeld(exclusive, func(h *history, one locked, _ *rand.Rand) string {
		token, at := one.grant.answered.token, one.release.answered.at
		h.calls = append(h.calls, &call{
			id: "planted", client: one.grant.client, kind: "renew", lock: one.grant.lock, token: token, sent: at + 1,
			answered: &answer{at: at + 2, kind: "renewed", token: token},
		})
		return fmt.Sprintf("a renewal after %s", one.release)
	})},
	{"a release is acknowledged to another client", ofHeld(exclusive, func(_ *history, one locked, _ *rand.Rand) string {
		text := one.release.String()
		one.release.client = "planted"
		return text
	})},
	{"a release is acknowledged under another token", ofHeld(exclusive, func(_ *history, one locked, _ *rand.Rand) string {
		text := one.release.String()
		one.release.answered.token++
		return text
	})},
	{"a live grant is said to have expired", ofHeld(exclusive, func(h *history, one locked, _ *rand.Rand) string {
		token := one.grant.answered.token
		one.within(h, call{
			client: one.grant.client, kind: "renew", token: token,
			answered: &answer{kind: "ended", token: token, how: "expired"},
		})
		return fmt.Sprintf("expired during %s", one.grant)
	})},
	{"a lock is shown as free while it is held", ofHeld(exclusive, func(h *history, one locked, _ *rand.Rand) string {
		one.within(h, call{client: "planted", kind: "show", answered: &answer{kind: "free"}})
		return fmt.Sprintf("free during %s", one.grant)
	})},
	{"a slot is granted twice", ofHeld(permits, func(h *history, one locked, _ *rand.Rand) string {
		told := *one.grant.answered
		told.token++
		told.lease = told.token
		again := *one.grant
		again.client, again.request, again.answered = "planted", "", &told
		one.within(h, again)
		return fmt.Sprintf("once more: %s", one.grant)
	})},
}

// repeatAny repeats the token of one grant in that of any later one.
func repeatAny(h *history) string {
	var first *call
	for _, c := range h.calls {
		if !isGrant(c) {
			continue
		}
		if first != nil && after(h, first)(c) {
			text := fmt.Sprintf("%s, and token %d again", c, first.answered.token)
			rename(h, c, first.answered.token)
			return text
		}
		if first == nil {
			first = c
		}
	}
	return ""
}

// before are the admitted calls to the same resource whose answer came before this call was sent.
func before(h *history, c *call, fits func(*call) bool) *call {
	var last *call
	for _, other := range h.calls {
		known := other.is("admitted") && other.lock == c.lock && other.answered.at < c.sent
		if known && fits(other) && (last == nil || other.answered.at > last.answered.at) {
			last = other
		}
	}
	return last
}

func isWrite(c *call) bool { return c.is("admitted") && c.kind == "write" }

var resourceDamages = []damage{
	{"an acknowledged write is lost", func(h *history, random *rand.Rand) string {
		c := pick(h.calls, random, func(c *call) bool {
			// Its content was read, so the one before it was not there any more.
			return isWrite(c) && slices.ContainsFunc(h.calls, func(read *call) bool {
				return read.is("admitted") && read.kind == "read" && read.lock == c.lock && read.answered.content == c.content
			})
		})
		if c == nil {
			return ""
		}
		h.calls = slices.DeleteFunc(h.calls, func(other *call) bool { return other == c })
		return fmt.Sprintf("%s of %s", c, c.content)
	}},
	{"a read misses an acknowledged write", func(h *history, random *rand.Rand) string {
		for range 100 {
			c := pick(h.calls, random, func(c *call) bool { return c.is("admitted") && c.kind == "read" })
			if c == nil {
				return ""
			}
			old := c.answered.content
			write := before(h, c, func(w *call) bool { return isWrite(w) && w.content == old })
			if write == nil {
				continue
			}
			older := before(h, write, isWrite)
			if older == nil {
				continue
			}
			c.answered.content = older.content
			return fmt.Sprintf("%s reads %s, not %s", c, older.content, old)
		}
		return ""
	}},
	{"a stale operation is admitted", func(h *history, random *rand.Rand) string {
		for range 100 {
			c := pick(h.calls, random, func(c *call) bool {
				return c.is("admitted") && c.token > 1 && before(h, c, func(o *call) bool { return o.token != 0 }) != nil
			})
			if c == nil {
				return ""
			}
			other := before(h, c, func(o *call) bool { return o.token != 0 })
			if other.token < 2 {
				continue
			}
			text := fmt.Sprintf("%s with token %d, after %s", c, other.token-1, other)
			c.token = other.token - 1
			return text
		}
		return ""
	}},
	{"a stale write is admitted instead of rejected", func(h *history, random *rand.Rand) string {
		c := pick(h.calls, random, func(c *call) bool {
			return c.is("rejected") && c.token != 0 && before(h, c, func(o *call) bool { return o.token > c.token }) != nil
		})
		if c == nil {
			return ""
		}
		text := c.String()
		c.kind, c.content = "write", "planted"
		c.answered = &answer{at: c.answered.at, kind: "admitted"}
		return text
	}},
	{"the newest holder is rejected", func(h *history, random *rand.Rand) string {
		c := pick(h.calls, random, func(c *call) bool {
			newest := !slices.ContainsFunc(h.calls, func(o *call) bool { return o.lock == c.lock && o.token > c.token })
			return c.is("admitted") && c.kind == "claim" && newest
		})
		if c == nil {
			return ""
		}
		text := c.String()
		c.answered = &answer{at: c.answered.at, kind: "rejected", highest: c.token}
		return text
	}},
	{"a claim comes before its predecessor's write", func(h *history, random *rand.Rand) string {
		for range 100 {
			write := pick(h.calls, random, isWrite)
			if write == nil {
				return ""
			}
			claim := pick(h.calls, random, func(c *call) bool {
				return c.is("admitted") && c.kind == "claim" && c.lock == write.lock && c.token > write.token
			})
			if claim == nil {
				continue
			}
			text := fmt.Sprintf("%s, but before %s", claim, write)
			claim.sent, claim.answered.at = write.sent-2, write.sent-1
			return text
		}
		return ""
	}},
}
