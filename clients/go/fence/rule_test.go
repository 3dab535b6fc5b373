package fence_test

import (
	"errors"
	"reflect"
	"testing"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/internal/vectors"
)

// differs tells whether the decision is another one than the vector's.
func differs(one vectors.Case) bool {
	next, repeat, rejected := one.Rule.Decide(one.Record, one.Holder, one.Operation)
	verdict, told := "admit", fence.Rejection{}
	if repeat {
		verdict = "repeat"
	}
	if rejected != nil {
		verdict, told = rejected.Code, *rejected
		told.Code = ""
	}
	return verdict != one.Verdict || !reflect.DeepEqual(next, one.Next) || told != one.Told
}

func TestEveryVectorIsDecidedAlike(t *testing.T) {
	for _, one := range vectors.All(t) {
		if differs(one) {
			t.Errorf("decided otherwise: %s", one.Text)
		}
	}
}

func TestAWrongVectorIsFound(t *testing.T) {
	found := 0
	for _, one := range vectors.All(t) {
		if one.Verdict == "stale" {
			one.Told.Highest++
			if !differs(one) {
				t.Errorf("not found: %s", one.Text)
			}
			found++
		}
	}
	if found == 0 {
		t.Error("no vector is stale")
	}
}

func TestErrors(t *testing.T) {
	var stale error = &fence.Rejection{Code: "stale", Token: 7, Highest: 8}
	if !errors.Is(stale, fence.ErrStale) || !errors.Is(stale, fence.ErrRejected) {
		t.Error("a stale token is ErrStale and ErrRejected")
	}
	if want := "palisade: token 7 is stale: 7 < 8; a newer holder has claimed this resource: give up, and write nothing more"; stale.Error() != want {
		t.Errorf("%q", stale)
	}
	if errors.Is(&fence.Rejection{Code: "jump"}, fence.ErrStale) {
		t.Error("a jump is not stale")
	}
	for _, token := range []uint64{0, fence.MaxToken + 1} {
		if fence.CheckToken(token) == nil {
			t.Errorf("%d is no token", token)
		}
	}
	for _, name := range []string{"", "ä", "a\n", string(make([]byte, 256))} {
		if fence.CheckResource(name) == nil {
			t.Errorf("%q is no name", name)
		}
	}
}
