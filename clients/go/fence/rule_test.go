package fence

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strconv"
	"testing"
)

type vectorRecord struct {
	Authority string  `json:"authority"`
	Lock      string  `json:"lock"`
	Token     uint64  `json:"token"`
	Written   bool    `json:"written"`
	Sequence  *uint64 `json:"sequence"`
	Digest    *string `json:"digest"`
	Result    *string `json:"result"`
}

type vector struct {
	Mode      string       `json:"mode"`
	MaxJump   uint64       `json:"max_jump"`
	Record    vectorRecord `json:"record"`
	Operation struct {
		Kind      string  `json:"kind"`
		Token     *uint64 `json:"token"`
		Authority string  `json:"authority"`
		Lock      string  `json:"lock"`
		Sequence  *uint64 `json:"sequence"`
		Digest    *string `json:"digest"`
	} `json:"operation"`
	Verdict   string        `json:"verdict"`
	Next      *vectorRecord `json:"next"`
	Highest   uint64        `json:"highest"`
	Last      uint64        `json:"last"`
	Bound     uint64        `json:"bound"`
	Authority string        `json:"authority"`
	Lock      string        `json:"lock"`
}

func number(t *testing.T, digest *string) (uint64, bool) {
	t.Helper()
	if digest == nil {
		return 0, false
	}
	n, err := strconv.ParseUint(*digest, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n, true
}

func (v vectorRecord) record(t *testing.T) Record {
	t.Helper()
	r := Record{Authority: v.Authority, Lock: v.Lock, Token: v.Token, Written: v.Written}
	r.Digest, r.HasDigest = number(t, v.Digest)
	if v.Sequence != nil {
		r.Numbered, r.Sequence = true, *v.Sequence
	}
	if v.Result != nil {
		r.Result = []byte(*v.Result)
	}
	return r
}

func (v vector) presented(t *testing.T) (Holder, Operation) {
	t.Helper()
	kinds := map[string]Kind{"claim": KindClaim, "read": KindRead, "write": KindWrite}
	kind, known := kinds[v.Operation.Kind]
	if !known {
		t.Fatalf("a vector has the kind %q", v.Operation.Kind)
	}
	operation := Operation{Kind: kind}
	operation.Digest, operation.HasDigest = number(t, v.Operation.Digest)
	if v.Operation.Sequence != nil {
		operation.Numbered, operation.Sequence = true, *v.Operation.Sequence
	}
	if v.Operation.Token == nil {
		return nil, operation
	}
	return NewPass(*v.Operation.Token, v.Operation.Authority, v.Operation.Lock), operation
}

// differs tells whether the decision is another one than the vector's.
func (v vector) differs(t *testing.T) bool {
	t.Helper()
	before := v.Record.record(t)
	holder, operation := v.presented(t)
	next, repeat, rejected := Rule{v.Mode == "strict", v.MaxJump}.Decide(before, holder, operation)
	verdict, expected := "admit", before
	if repeat {
		verdict = "repeat"
	}
	var told Rejection
	if rejected != nil {
		verdict, told = rejected.Code, *rejected
		told.Code = ""
	}
	if v.Next != nil {
		expected = v.Next.record(t)
	}
	return verdict != v.Verdict || !reflect.DeepEqual(next, expected) ||
		told != Rejection{"", v.Highest, v.Last, v.Bound, v.Authority, v.Lock}
}

func vectors(t *testing.T) []vector {
	t.Helper()
	text, err := os.ReadFile("../../../vectors/fence.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []vector
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 1000 {
		t.Fatalf("only %d vectors", len(cases))
	}
	return cases
}

func TestEveryVectorIsDecidedAlike(t *testing.T) {
	for _, one := range vectors(t) {
		if one.differs(t) {
			t.Errorf("decided otherwise: %+v", one)
		}
	}
}

func TestAWrongVectorIsFound(t *testing.T) {
	found := 0
	for _, one := range vectors(t) {
		if one.Verdict == "stale" {
			one.Highest++
			if !one.differs(t) {
				t.Errorf("not found: %+v", one)
			}
			found++
		}
	}
	if found == 0 {
		t.Error("no vector is stale")
	}
}

func TestErrors(t *testing.T) {
	var stale error = &Rejection{Code: "stale", Highest: 8}
	if !errors.Is(stale, ErrStale) || !errors.Is(stale, ErrRejected) {
		t.Error("a stale token is ErrStale and ErrRejected")
	}
	if want := "palisade: a newer holder has claimed this resource: give up, and write nothing more (highest: 8)"; stale.Error() != want {
		t.Errorf("%q", stale)
	}
	if errors.Is(&Rejection{Code: "jump"}, ErrStale) {
		t.Error("a jump is not stale")
	}
	for _, token := range []uint64{0, MaxToken + 1} {
		if CheckToken(token) == nil {
			t.Errorf("%d is no token", token)
		}
	}
	for _, name := range []string{"", "ä", "a\n", string(make([]byte, 256))} {
		if CheckResource(name) == nil {
			t.Errorf("%q is no name", name)
		}
	}
}
