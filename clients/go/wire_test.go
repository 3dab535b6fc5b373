package palisade

import (
	"testing"
	"time"
)

func TestTheDeadlineOfTheProtocolsExample(t *testing.T) {
	const t0 = instant(100_000 * millisecond)
	until := deadline(t0, 10*time.Second, 0)
	if early := t0 + instant(9_801*millisecond); until < early || until > early+instant(millisecond) {
		t.Errorf("%v after t0", until.sub(t0))
	}
	// Rounded down: 101 ns · 99 / 101 is exact, and one nanosecond less must not give more.
	if deadline(t0, 101, 0) != t0+99 || deadline(t0, 100, 0) > t0+98 {
		t.Error("rounded up")
	}
	if deadline(t0, 10*time.Second, time.Second) != until-instant(time.Second) {
		t.Error("the margin is not taken off")
	}
	if deadline(t0, time.Second, time.Hour) != t0 {
		t.Error("a margin longer than the lease leaves time")
	}
}

func TestAHold(t *testing.T) {
	ended := 0
	h := newHold(now().add(time.Hour), func(bool) { ended++ })
	later := now().add(2 * time.Hour)
	h.renewed(later)
	h.renewed(now().add(time.Hour))
	if h.deadline() != later {
		t.Error("the deadline moved back")
	}
	h.end("revoked")
	h.end("expired")
	h.renewed(now().add(3 * time.Hour))
	if h.holds() || h.reason() != "revoked" || h.remaining() != 0 || ended != 1 {
		t.Errorf("%v, %q, %v, %d", h.holds(), h.reason(), h.remaining(), ended)
	}
	over := newHold(now(), func(bool) {})
	over.renewed(now().add(time.Hour))
	if over.holds() || over.reason() != "expired" {
		t.Error("a late renewal revived it")
	}
}

func TestALossIsAnnouncedThoughNobodyAsks(t *testing.T) {
	ended := make(chan struct{})
	h := newHold(now().add(20*millisecond), func(bool) { close(ended) })
	for _, announced := range []<-chan struct{}{h.lost, ended} {
		select {
		case <-announced:
		case <-time.After(30 * time.Second):
			t.Fatal("nothing was announced")
		}
	}
	if h.reason() != "expired" {
		t.Errorf("%q", h.reason())
	}
}

func TestAnswersThatAreNoGrant(t *testing.T) {
	good := `"lock_token": "k", "authority": "a", "valid_for_ms": 5, "waited_ms": 0`
	if _, failed := readGrant(0, reply{200, []byte(`{"fencing_token": 9007199254740991, ` + good + `}`)}, &wish{}); failed != nil {
		t.Error(failed.message)
	}
	for _, body := range []string{
		`{` + good + `}`,
		`{"fencing_token": 0, ` + good + `}`,
		`{"fencing_token": -1, ` + good + `}`,
		`{"fencing_token": 1.5, ` + good + `}`,
		`{"fencing_token": "1", ` + good + `}`,
		`{"fencing_token": 9007199254740992, ` + good + `}`,
		`{"fencing_token": 1, "lock_token": "k", "authority": "a", "waited_ms": 0}`,
		`{"fencing_token": 1, "authority": "a", "valid_for_ms": 5, "waited_ms": 0}`,
	} {
		if _, failed := readGrant(0, reply{200, []byte(body)}, &wish{}); failed == nil || !failed.unknown {
			t.Errorf("a grant: %s", body)
		}
	}
	for status, body := range map[int]string{200: "[]", 204: "{}", 307: "{}", 500: "<html>", 404: "null"} {
		if _, failed := readReply(status, []byte(body)); failed == nil || !failed.unknown {
			t.Errorf("an answer: %d %s", status, body)
		}
	}
}

// The rows of the table of codes, by the client's next step.
func TestTheTableOfCodes(t *testing.T) {
	const again, unknown, tell = "again", "unknown", "tell"
	for _, row := range []struct {
		status int
		code   string
		does   string
		kind   error
	}{
		{503, "not_leader", again, nil},
		{503, "unavailable", again, nil},
		{408, "request_timeout", again, nil},
		{504, "unknown_outcome", unknown, nil},
		{500, "internal", unknown, nil},
		{502, "of_a_later_server", unknown, nil},
		{409, "held", tell, ErrHeld},
		{429, "queue_full", tell, ErrNotAcquired},
		{429, "too_many_locks", tell, ErrNotAcquired},
		{410, "expired", tell, ErrNotAcquired},
		{412, "stale", tell, ErrNotAcquired},
		{409, "abandoned", tell, ErrNotAcquired},
		{507, "tokens_exhausted", tell, ErrOperator},
		{400, "invalid", tell, ErrInvalid},
		{409, "refused", tell, ErrInvalid},
		{418, "of_a_later_server", tell, ErrInvalid},
	} {
		r := reply{row.status, []byte(`{"error": {"code": "` + row.code + `", "message": "m"}}`)}
		does := tell
		if f := r.fault(); f != nil {
			does = map[bool]string{false: again, true: unknown}[f.unknown]
		}
		if does != row.does {
			t.Errorf("%s: %s instead of %s", row.code, does, row.does)
		}
		if err := r.err(); row.kind != nil && !isKind(err, row.kind) {
			t.Errorf("%s is %v", row.code, err)
		}
	}
	if code := (reply{503, []byte(`{"error": {"code": "unavailable", "message": 7}}`)}).code(); code != "unavailable" {
		t.Errorf("a message of another form hides the code: %s", code)
	}
}

func isKind(err, kind error) bool {
	switch told := err.(type) {
	case *HeldError:
		return told.Err.Is(kind)
	case *Error:
		return told.Is(kind)
	}
	return false
}

func TestALeaderIsFollowedOnlyWhereItIsSafe(t *testing.T) {
	not := func(leader string) reply {
		return reply{503, []byte(`{"error": {"code": "not_leader", "leader": "` + leader + `"}}`)}
	}
	e, err := newEndpoints([]string{"https://a:1", "https://b:1"}, false)
	if err != nil {
		t.Fatal(err)
	}
	if e.answered("https://a:1", not("http://c:1")) || e.current() != "https://b:1" {
		t.Errorf("from https to %s", e.current())
	}
	if !e.answered("https://b:1", not("https://c:1")) || e.current() != "https://c:1" {
		t.Errorf("not followed: %s", e.current())
	}
	e.failed("https://c:1")
	if e.current() != "https://a:1" {
		t.Errorf("not back in its own list: %s", e.current())
	}
}

func TestALeaderWithoutTLSDoesNotGetTheToken(t *testing.T) {
	named := reply{503, []byte(`{"error": {"code": "not_leader", "leader": "http://a:1"}}`)}
	for _, secret := range []bool{false, true} {
		e, err := newEndpoints([]string{"http://127.0.0.1:1"}, secret)
		if err != nil {
			t.Fatal(err)
		}
		if e.answered("http://127.0.0.1:1", named) == secret || (e.current() == "http://a:1") == secret {
			t.Errorf("with a token %v: now at %s", secret, e.current())
		}
	}
}

// Two servers that name each other.
func TestALeaderIsFollowedFiveTimesInARow(t *testing.T) {
	e, err := newEndpoints([]string{"http://a:1"}, false)
	if err != nil {
		t.Fatal(err)
	}
	other := map[string]string{"http://a:1": "http://b:1", "http://b:1": "http://a:1"}
	follows := 0
	for {
		at := e.current()
		if !e.answered(at, reply{503, []byte(`{"error": {"code": "not_leader", "leader": "` + other[at] + `"}}`)}) {
			break
		}
		if follows++; follows > 5 {
			t.Fatal("without end")
		}
	}
	if follows != 5 {
		t.Errorf("followed %d times", follows)
	}
}

func TestEventsAreReadLineByLine(t *testing.T) {
	block := eventBlock{}
	for _, line := range []string{":", "event: missed", "id: 9", "unknown", `data: {"missed":`, "data: 5}"} {
		block.take(line)
	}
	if e, ok := block.event(9); !ok || e.Kind != "missed" || e.Missed != 5 || block.id != "9" {
		t.Errorf("%+v, %v, %+v", e, ok, block)
	}
	later := eventBlock{kind: "later", data: "{}"}
	if _, ok := later.event(9); ok {
		t.Error("a kind of a later server was told")
	}
}
