package palisade

import (
	"encoding/json"
	"fmt"
	"time"
)

// maxToken is the largest fencing token, 2^53 − 1. Other numbers of the protocol end there, too.
const maxToken = 1<<53 - 1

// A reply is an answer whose body is a JSON object.
type reply struct {
	status int
	body   []byte
}

// A fault is why an attempt is to be repeated.
type fault struct {
	message string
	// The request may have happened.
	unknown bool
	// The time of the attempt ended. A shorter one after it has less to say.
	silent bool
}

// The server's reason for a refusal.
type problem struct {
	Code         string `json:"code"`
	Message      string `json:"message"`
	Leader       string `json:"leader"`
	RetryAfterMS uint64 `json:"retry_after_ms"`
}

// readReply accepts only answers of a Palisade server. Anything else leaves the outcome unknown.
func readReply(status int, body []byte) (reply, *fault) {
	var object map[string]json.RawMessage
	expected := status == 200 || status == 202 || (status >= 400 && status < 600)
	if !expected || json.Unmarshal(body, &object) != nil || object == nil {
		return reply{}, &fault{message: fmt.Sprintf("the answer (status %d) is not one of a Palisade server", status), unknown: true}
	}
	return reply{status, body}, nil
}

func (r reply) fields() map[string]json.RawMessage {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(r.body, &fields)
	return fields
}

// waits tells whether the server says that the request waits: it is to be asked again.
func (r reply) waits() bool { return r.status == 202 }

// is tells whether a field of an answer has this value.
func is[T comparable](fields map[string]json.RawMessage, name string, value T) bool {
	var found T
	return json.Unmarshal(fields[name], &found) == nil && found == value
}

// has tells whether a field is there, and says something.
func has(fields map[string]json.RawMessage, name string) bool {
	return fields[name] != nil && string(fields[name]) != "null"
}

// isAbout tells why a good answer is not about the request.
func isAbout(name, wanted string) func(reply) string {
	return func(r reply) string {
		if r.status != 200 || is(r.fields(), name, wanted) {
			return ""
		}
		return differs(r, name, wanted)
	}
}

func differs(r reply, name string, wanted any) string {
	found := "missing"
	if value := r.fields()[name]; value != nil {
		found = string(value)
	}
	return fmt.Sprintf("the answer is that of another request: %s is %s, and not %v", name, found, wanted)
}

func (r reply) problem() problem {
	var object struct {
		Error json.RawMessage `json:"error"`
	}
	var found problem
	if json.Unmarshal(r.body, &object) == nil && json.Unmarshal(object.Error, &found) != nil {
		// A later server may write another field in another form; only the code decides.
		var code struct {
			Code string `json:"code"`
		}
		_ = json.Unmarshal(object.Error, &code)
		return problem{Code: code.Code}
	}
	return found
}

func (r reply) problemFields() map[string]json.RawMessage {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(r.fields()["error"], &fields)
	return fields
}

func (r reply) code() string {
	switch code := r.problem().Code; {
	case code != "":
		return code
	case r.status >= 500:
		return "internal"
	default:
		return "invalid"
	}
}

// fault tells whether the request is to be repeated: the rows of the table of codes (docs/reference/protocol.md) that say so.
func (r reply) fault() *fault {
	if r.status == 200 {
		return nil
	}
	message := r.message()
	switch code := r.code(); code {
	case "unavailable", "request_timeout", "not_leader":
		return &fault{message: message}
	case "unknown_outcome", "internal":
		return &fault{message: message, unknown: true}
	case "tokens_exhausted", "storage_full":
		return nil
	default:
		if r.status >= 500 {
			return &fault{message: message, unknown: true}
		}
		return nil
	}
}

func (r reply) message() string {
	if message := r.problem().Message; message != "" {
		return message
	}
	return fmt.Sprintf("status %d", r.status)
}

// over tells whether the answer says that a grant is over.
func (r reply) over() bool {
	switch r.code() {
	case "expired", "revoked", "superseded", "not_held", "stale":
		return r.status != 200
	}
	return false
}

// err is the error for an answer that is not repeated.
func (r reply) err() error {
	code, message := r.code(), r.message()
	switch {
	case code == "held", code == "delayed":
		return r.held(code, message)
	case code == "queue_full", code == "too_many_locks", code == "over_quota", code == "abandoned", r.over():
		return &Error{code, message, ErrNotAcquired}
	case code == "tokens_exhausted":
		return &Error{code, message, ErrOperator}
	default:
		return &Error{code, message, ErrInvalid}
	}
}

func (r reply) held(code, message string) *HeldError {
	var answer struct {
		Holder *wireHolder `json:"holder"`
	}
	// The holder is for people: an acquire is denied whether it can be read or not.
	_ = json.Unmarshal(r.body, &answer)
	holder, _ := answer.Holder.value()
	return &HeldError{
		Err:        &Error{code, message, ErrHeld},
		Holder:     holder,
		RetryAfter: milliseconds(r.problem().RetryAfterMS),
	}
}

// granted is a grant, with the clock's reading from before the request that it answers.
type granted struct {
	t0    instant
	token uint64
	// Names the grant: the token, or a reader's grant id.
	number    uint64
	leaseKey  string
	authority string
	validFor  time.Duration
	waited    time.Duration
	slots     []int
}

func readGrant(t0 instant, r reply, w *wish) (granted, *fault) {
	var answer struct {
		Token     *uint64 `json:"fencing_token"`
		GrantID   *uint64 `json:"grant_id"`
		LeaseKey  string  `json:"lock_token"`
		Authority string  `json:"authority"`
		ValidFor  *uint64 `json:"valid_for_ms"`
		Waited    *uint64 `json:"waited_ms"`
		Slots     []int   `json:"slots"`
	}
	err := json.Unmarshal(r.body, &answer)
	switch {
	case err != nil:
		return granted{}, broken(err.Error())
	case !isToken(answer.Token):
		return granted{}, broken("fencing_token is missing or out of range")
	case w.mode.isReader() && !isToken(answer.GrantID):
		return granted{}, broken("grant_id is missing or out of range")
	case !w.hasSlots(answer.Slots):
		return granted{}, broken("slots are missing, or not those that were asked for")
	case answer.LeaseKey == "", answer.Authority == "":
		return granted{}, broken("lock_token or authority is missing")
	case !isNumber(answer.ValidFor), !isNumber(answer.Waited):
		return granted{}, broken("valid_for_ms or waited_ms is missing or out of range")
	}
	number := *answer.Token
	if w.mode.isReader() {
		number = *answer.GrantID
	}
	return granted{
		t0:        t0,
		token:     *answer.Token,
		number:    number,
		leaseKey:  answer.LeaseKey,
		authority: answer.Authority,
		validFor:  milliseconds(*answer.ValidFor),
		waited:    milliseconds(*answer.Waited),
		slots:     answer.Slots,
	}, nil
}

// hasSlots tells whether slots are as many as were wanted, in order.
func (w *wish) hasSlots(slots []int) bool {
	wanted, before := 0, 0
	if w.permits != nil {
		wanted = w.permits.Count
	}
	for _, slot := range slots {
		if slot <= before || slot > maxPermits {
			return false
		}
		before = slot
	}
	return len(slots) == wanted
}

func readRenewal(r reply) (validFor time.Duration, ok bool) {
	var answer struct {
		ValidFor *uint64 `json:"valid_for_ms"`
	}
	if json.Unmarshal(r.body, &answer) != nil || !isNumber(answer.ValidFor) {
		return 0, false
	}
	return milliseconds(*answer.ValidFor), true
}

// readWaiters is how many requests wait for a lock that was renewed; nil if the server does not say so.
func readWaiters(r reply) *int {
	var waiters *int
	if json.Unmarshal(r.fields()["waiters"], &waiters) != nil || waiters == nil || *waiters < 0 {
		return nil
	}
	return waiters
}

func broken(why string) *fault { return &fault{message: "a broken answer: " + why, unknown: true} }

func isToken(n *uint64) bool  { return isNumber(n) && *n >= 1 }
func isNumber(n *uint64) bool { return n != nil && *n <= maxToken }

// milliseconds reads a duration. No wait and no lease is longer than a day; a bound keeps the results of computations in
// range, and a shorter time is always safe.
func milliseconds(n uint64) time.Duration {
	if longest := uint64(4 * day / millisecond); n > longest {
		n = longest
	}
	return time.Duration(n) * millisecond
}
