package palisade

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A deadlineCase is a line of vectors/deadline.json, which every client is compared with.
type deadlineCase struct {
	Sent     int64 `json:"sent_ns"`
	Lease    int64 `json:"lease_duration_ms"`
	Waited   int64 `json:"waited_ms"`
	ValidFor int64 `json:"valid_for_ms"`
	Drift    int   `json:"drift_ppm"`
	Margin   int64 `json:"margin_ms"`
	Deadline int64 `json:"deadline_ns"`
}

func deadlineCases(t *testing.T) []deadlineCase {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "vectors", "deadline.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []deadlineCase
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

// deadlineOf is as from the answer to an acquire.
func deadlineOf(t *testing.T, one deadlineCase, validFor int64) int64 {
	t.Helper()
	body := fmt.Sprintf(`{"fencing_token": 1, "lock_token": "k", "authority": "a", "valid_for_ms": %d, "waited_ms": %d}`,
		validFor, one.Waited)
	grant, failed := readGrant(instant(one.Sent), reply{200, []byte(body)}, &wish{})
	if failed != nil {
		t.Fatal(failed.message)
	}
	return int64(deadline(grant.t0, grant.validFor, time.Duration(one.Margin)*millisecond))
}

func TestEveryVectorHasThisDeadline(t *testing.T) {
	for _, one := range deadlineCases(t) {
		// A client may stop earlier by its rounding.
		early := one.Deadline - deadlineOf(t, one, one.ValidFor)
		if early < 0 || early >= int64(millisecond) || one.Drift != 10_000 {
			t.Errorf("%+v: %d ns earlier", one, early)
		}
	}
}

// A client that takes the lease's length for the time that is left.
func TestAnotherRuleForTheDeadlineIsFound(t *testing.T) {
	found := 0
	for _, one := range deadlineCases(t) {
		if deadlineOf(t, one, one.Lease) > one.Deadline {
			found++
		}
	}
	if found < 9 {
		t.Errorf("%d vectors tell the difference", found)
	}
}

// The last attempt of a call has the least time, and may get none at all on a busy machine.
func TestASilentAttemptDoesNotHideWhatAnotherOneHeard(t *testing.T) {
	says := func(faults ...*fault) string {
		pauses := newBackoff(now().add(time.Hour))
		for _, one := range faults[:len(faults)-1] {
			if err := pauses.pause(context.Background(), one); err != nil {
				t.Fatal(err)
			}
		}
		pauses.until = now()
		return pauses.pause(context.Background(), faults[len(faults)-1]).Error()
	}
	for _, unknown := range []bool{false, true} {
		heard := []*fault{{"heard first", unknown, false}, {"heard last", unknown, false}}
		silent := []*fault{{"silent first", unknown, true}, {"silent last", unknown, true}}
		for want, got := range map[string]string{
			"heard last":   says(heard...),
			"silent first": says(silent...),
			"heard first":  says(heard[0], silent[0]),
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%s instead of %s", got, want)
			}
		}
		if got := says(silent[0], heard[1]); !strings.Contains(got, "heard last") {
			t.Error(got)
		}
	}
	// An unknown outcome outweighs a certain failure.
	if got := says(&fault{"silent", true, true}, &fault{"heard", false, false}); !strings.Contains(got, "silent") {
		t.Error(got)
	}
}
