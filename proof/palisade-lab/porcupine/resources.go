package main

import (
	"maps"
	"slices"

	"github.com/anishathalye/porcupine"
)

// access is a call to a resource.
type access struct {
	kind    string
	token   uint64
	content string
	outcome string
	highest uint64
	text    string
}

// resourceState is the fence's mark, and the write that made the content.
type resourceState struct {
	mark    uint64
	content string
}

// apply: an operation with a token is admitted if no higher token was before it, and raises the mark to it.
func (s resourceState) apply(in *access) (bool, resourceState) {
	next := s
	if in.token != 0 {
		next.mark = max(s.mark, in.token)
	}
	if in.kind == "write" {
		next.content = in.content
	}
	stale := in.token != 0 && in.token < s.mark
	switch in.outcome {
	case "admitted":
		return !stale && (in.kind != "read" || in.content == s.content), next
	case "rejected":
		return stale && (in.highest == 0 || in.highest == s.mark), s
	}
	// Without an answer it may have been rejected, or not have arrived: then its instant is the last one of all.
	if stale {
		return true, s
	}
	return true, next
}

var resourceModel = porcupine.Model{
	Init: func() any { return resourceState{} },
	Step: func(state, input, _ any) (bool, any) { return state.(resourceState).apply(input.(*access)) },
}

// resourceParts are the parts of a history of resources: each by itself.
func resourceParts(h *history) []part {
	type seen struct{ resource, content string }
	read := map[seen]bool{}
	type mark struct {
		resource string
		token    uint64
	}
	named := map[mark]bool{}
	for _, c := range h.calls {
		switch {
		case c.is("rejected"):
			// Without a number it may be any token's.
			named[mark{c.lock, c.answered.highest}] = true
		case c.is("admitted") && c.kind == "read":
			read[seen{c.lock, c.answered.content}] = true
		}
	}
	parts := map[string]*part{}
	for _, c := range h.calls {
		in := &access{kind: c.kind, token: c.token, content: c.content, text: c.String()}
		if c.answered != nil {
			in.outcome, in.highest = c.answered.kind, c.answered.highest
			if c.kind == "read" {
				in.content = c.answered.content
			}
		}
		// Nothing depends on whether it happened.
		told := named[mark{c.lock, c.token}] || named[mark{c.lock, 0}] || c.kind == "write" && read[seen{c.lock, c.content}]
		if c.answered == nil && !told {
			continue
		}
		one := parts[c.lock]
		if one == nil {
			one = &part{name: c.lock, model: resourceModel}
			parts[c.lock] = one
		}
		one.operations = append(one.operations, porcupine.Operation{Input: in, Call: c.sent, Return: c.until()})
	}
	var all []part
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		all = append(all, *parts[name])
	}
	return all
}
