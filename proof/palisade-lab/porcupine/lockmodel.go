package main

import (
	"fmt"
	"hash/fnv"
	"math/bits"
	"strings"

	"github.com/anishathalye/porcupine"
)

// A step of one lock, which takes effect at one instant.
type step struct {
	kind   stepKind
	token  uint64
	lease  uint64
	phase  uint64
	client string
	mode   mode
	slots  uint64
	wanted int
	of     int
	how    string
	// unseen: a grant without an answer may have been there besides; of readers, or in mode update.
	unseen bool
	// foreign: only others saw the grant, so its lease is not known.
	foreign bool
	text    string
}

type stepKind int

const (
	// granted: the lock, or slots of it, goes to the client.
	granted stepKind = iota
	// alive: the client has the grant.
	alive
	// ends: the grant was live, and this ends it.
	ends
	// mayEnd ends the grant if it is live: a lease's end by time, or an unanswered call. Nobody sees whether it does.
	mayEnd
	// over: the grant is not live, and ended this way if an answer says so.
	over
	// named: the lock is held with this token, by this client if one is named.
	named
	// free: nobody holds the lock.
	free
	// impossible: nothing explains the answer.
	impossible
)

// lockState is the state of a lock between two steps. It is never changed.
type lockState struct {
	live  []holder
	ended []ending
	// high is the highest number of a grant, fence the highest fencing token.
	high, fence uint64
	// key is the same for equal states, and only for these.
	key string
}

type holder struct {
	token, lease, phase, slots uint64
	client                     string
	mode                       mode
	of                         int
}

type ending struct {
	token uint64
	how   string
}

// shares: it is a reader's.
func (h holder) shares() bool { return h.phase != 0 }

func (s lockState) sealed() lockState {
	var key strings.Builder
	fmt.Fprintf(&key, "%d %d", s.high, s.fence)
	for _, holder := range s.live {
		fmt.Fprintf(&key, " +%d", holder.token)
	}
	for _, ended := range s.ended {
		fmt.Fprintf(&key, " -%d%s", ended.token, ended.how)
	}
	s.key = key.String()
	return s
}

func (s lockState) find(token uint64) (holder, bool) {
	for _, holder := range s.live {
		if holder.token == token {
			return holder, true
		}
	}
	return holder{}, false
}

// without ends the grants for which this holds.
func (s lockState) without(how string, ends func(holder) bool) lockState {
	next := lockState{high: s.high, fence: s.fence, ended: s.ended}
	for _, h := range s.live {
		if !ends(h) {
			next.live = append(next.live, h)
			continue
		}
		// In the order of tokens, so that the order of the ends makes no other state.
		at := 0
		for at < len(next.ended) && next.ended[at].token < h.token {
			at++
		}
		ended := append([]ending{}, next.ended[:at]...)
		ended = append(ended, ending{h.token, how})
		next.ended = append(ended, next.ended[at:]...)
	}
	return next.sealed()
}

func (s lockState) apply(in *step) (bool, lockState) {
	h, live := s.find(in.token)
	switch in.kind {
	case granted:
		return s.grant(in)
	case alive:
		return live && h.client == in.client, s
	case ends:
		own := in.client == "" || h.client == in.client
		return live && own, s.without(in.how, func(h holder) bool { return h.token == in.token })
	case mayEnd:
		if !live {
			return true, s
		}
		return true, s.without(in.how, func(h holder) bool { return h.token == in.token })
	case over:
		return !live && (in.how == "" || s.endedAs(in.token, in.how)), s
	case named:
		return live && (in.client == "" || h.client == in.client), s
	case free:
		return len(s.live) == 0, s
	default:
		return false, s
	}
}

func (s lockState) endedAs(token uint64, how string) bool {
	for _, ended := range s.ended {
		if ended.token == token {
			return ended.how == how
		}
	}
	return false
}

func (s lockState) grant(in *step) (bool, lockState) {
	if in.token <= s.high {
		return false, s
	}
	writes := in.mode == exclusive || in.mode == upgrade
	upgraded := false
	next := s.without("superseded", func(h holder) bool {
		if h.client != in.client || in.mode == permits {
			return false
		}
		becomes := h.mode == update && writes && (h.lease == in.lease || in.foreign)
		upgraded = upgraded || becomes
		return becomes || !h.shares() && h.slots == 0
	})
	if in.mode == upgrade && !upgraded && !in.unseen {
		return false, s
	}
	for _, h := range next.live {
		if !mayStand(h, in) {
			return false, s
		}
	}
	fence := in.token
	switch in.mode {
	case shared, update:
		fence = in.phase
		opens := fence == in.token || in.unseen && fence > s.fence
		if len(next.live) == 0 && !opens && !(in.unseen && fence == s.fence) {
			return false, s
		}
	case permits:
		if bits.OnesCount64(in.slots) != in.wanted || in.slots>>in.of != 0 {
			return false, s
		}
	}
	next.high, next.fence = in.token, max(fence, s.fence)
	// A copy: states share nothing that grows.
	next.live = append(append([]holder{}, next.live...), holder{
		token: in.token, lease: in.lease, phase: in.phase, slots: in.slots, client: in.client, mode: in.mode, of: in.of,
	})
	return true, next.sealed()
}

// mayStand says whether a live grant may be there beside a new one.
func mayStand(h holder, in *step) bool {
	switch in.mode {
	case shared, update:
		return h.shares() && h.phase == in.phase && !(h.mode == update && in.mode == update)
	case permits:
		return h.mode == permits && h.slots&in.slots == 0 && h.of == in.of
	default:
		return false
	}
}

var lockModel = porcupine.Model{
	Init: func() any { return lockState{}.sealed() },
	Step: func(state, input, _ any) (bool, any) { return state.(lockState).apply(input.(*step)) },
	Equal: func(a, b any) bool {
		return a.(lockState).key == b.(lockState).key
	},
	Hash: func(state any) uint64 {
		sum := fnv.New64a()
		sum.Write([]byte(state.(lockState).key))
		return sum.Sum64()
	},
}

// counterModel: one counter serves all locks, and each grant has a higher number than every one before it.
var counterModel = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, input, _ any) (bool, any) {
		token := input.(*step).token
		return token > state.(uint64), token
	},
}
