// Package vectors reads the repository's vectors/fence.json: the decision of a fence as data (vectors/README.md).
package vectors

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/internal/testserver"
)

// A Case is one decision.
type Case struct {
	Rule      fence.Rule
	Record    fence.Record
	Holder    fence.Holder // nil: code without a token
	Operation fence.Operation
	// Verdict is admit, repeat, or the code of a rejection.
	Verdict string
	// Next is the record that the resource stores from then on.
	Next fence.Record
	// Told are the details of a rejection beside its code.
	Told fence.Rejection
	// Text is the line of the file.
	Text string
}

type record struct {
	Authority string  `json:"authority"`
	Lock      string  `json:"lock"`
	Token     uint64  `json:"token"`
	Written   bool    `json:"written"`
	Sequence  *uint64 `json:"sequence"`
	Digest    *string `json:"digest"`
	Result    *string `json:"result"`
}

type line struct {
	Mode      string `json:"mode"`
	MaxJump   uint64 `json:"max_jump"`
	Record    record `json:"record"`
	Operation struct {
		record
		Kind  string  `json:"kind"`
		Token *uint64 `json:"token"`
	} `json:"operation"`
	Verdict   string  `json:"verdict"`
	Next      *record `json:"next"`
	Highest   uint64  `json:"highest"`
	Last      uint64  `json:"last"`
	Bound     uint64  `json:"bound"`
	Authority string  `json:"authority"`
	Lock      string  `json:"lock"`
}

var kinds = map[string]fence.Kind{"claim": fence.KindClaim, "read": fence.KindRead, "write": fence.KindWrite}

// All returns every case.
func All(t testing.TB) []Case {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testserver.Root(), "vectors", "fence.json"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []json.RawMessage
	if err := json.Unmarshal(text, &lines); err != nil {
		t.Fatal(err)
	}
	if len(lines) < 1000 {
		t.Fatalf("only %d vectors", len(lines))
	}
	cases := make([]Case, len(lines))
	for at, raw := range lines {
		var one line
		if err := json.Unmarshal(raw, &one); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		cases[at] = one.read(t)
		cases[at].Text = string(raw)
	}
	return cases
}

func (l line) read(t testing.TB) Case {
	t.Helper()
	kind, known := kinds[l.Operation.Kind]
	if !known {
		t.Fatalf("a vector has the kind %q", l.Operation.Kind)
	}
	presented := l.Operation.read(t)
	found := Case{
		Rule:   fence.Rule{Strict: l.Mode == "strict", MaxJump: l.MaxJump},
		Record: l.Record.read(t),
		Operation: fence.Operation{
			Kind: kind, Numbered: presented.Numbered, Sequence: presented.Sequence,
			HasDigest: presented.HasDigest, Digest: presented.Digest,
		},
		Verdict: l.Verdict,
		Told:    fence.Rejection{Highest: l.Highest, Last: l.Last, Bound: l.Bound, Authority: l.Authority, Lock: l.Lock},
	}
	if l.Verdict == "stale" {
		found.Told.Token = *l.Operation.Token
	}
	found.Next = found.Record
	if l.Next != nil {
		found.Next = l.Next.read(t)
	}
	if l.Operation.Token != nil {
		found.Holder = fence.NewPass(*l.Operation.Token, presented.Authority, presented.Lock)
	}
	return found
}

func (r record) read(t testing.TB) fence.Record {
	t.Helper()
	found := fence.Record{Authority: r.Authority, Lock: r.Lock, Token: r.Token, Written: r.Written}
	if r.Sequence != nil {
		found.Numbered, found.Sequence = true, *r.Sequence
	}
	if r.Digest != nil {
		digest, err := strconv.ParseUint(*r.Digest, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		found.HasDigest, found.Digest = true, digest
	}
	if r.Result != nil {
		found.Result = []byte(*r.Result)
	}
	return found
}
