package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
)

// never is the return of an operation whose outcome is unknown: it took effect at any time after its call, or never.
const never = math.MaxInt64

// history contains the clients' calls and answers, about locks (docs/reference/history-format.md) or about resources.
type history struct {
	resources bool
	// perLock: tokens of different locks are not related.
	perLock  bool
	driftPPM int64
	calls    []*call
}

// call is a call and its answer, if it has one.
type call struct {
	id       string
	client   string
	kind     string
	lock     string
	also     []string
	ttlMS    int64
	under    uint64
	token    uint64
	request  string
	mode     mode
	permits  int
	of       int
	content  string
	sent     int64
	answered *answer
}

// answer is the answer that came back.
type answer struct {
	at      int64
	kind    string
	token   uint64
	lease   uint64
	phase   uint64
	slots   uint64
	holder  string
	how     string
	content string
	highest uint64
}

// mode is how a lock is asked for.
type mode int

const (
	exclusive mode = iota
	shared
	update
	upgrade
	permits
)

// fields are those of any line. A history of locks numbers its calls, one of resources names them.
type fields struct {
	Locks     int             `json:"palisade_history"`
	Resources int             `json:"palisade_resources"`
	Tokens    string          `json:"tokens"`
	Expiry    string          `json:"expiry"`
	DriftPPM  int64           `json:"drift_ppm"`
	At        int64           `json:"at"`
	Until     int64           `json:"until"`
	Authority string          `json:"authority"`
	ID        json.RawMessage `json:"id"`
	Client    string          `json:"client"`
	Call      string          `json:"call"`
	Answer    string          `json:"answer"`
	Lock      string          `json:"lock"`
	Also      []string        `json:"also"`
	TTL       int64           `json:"ttl_ms"`
	Under     uint64          `json:"under"`
	Request   string          `json:"request"`
	Shared    bool            `json:"shared"`
	Update    bool            `json:"update"`
	Upgrade   bool            `json:"upgrade"`
	Permits   int             `json:"permits"`
	Of        int             `json:"of"`
	Token     uint64          `json:"token"`
	Lease     uint64          `json:"lease"`
	Phase     uint64          `json:"phase"`
	Slots     []int           `json:"slots"`
	Holder    string          `json:"holder"`
	How       string          `json:"how"`
	Resource  string          `json:"resource"`
	Content   string          `json:"content"`
	Highest   uint64          `json:"highest"`
}

// read reads a history. The error names the line.
func read(from io.Reader) (*history, error) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	h := &history{}
	known := map[string]*call{}
	// The files of several workers may be concatenated, so a line may stand before an earlier one, but not an answer
	// before its call.
	for number := 1; lines.Scan(); number++ {
		var f fields
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&f); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if err := h.take(number, &f, known); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(h.calls) == 0 {
		return nil, fmt.Errorf("the history has no calls")
	}
	return h, nil
}

func (h *history) take(number int, f *fields, known map[string]*call) error {
	switch {
	case number == 1:
		if f.Locks != 1 && f.Resources != 1 {
			return fmt.Errorf(`expected the header {"palisade_history":1} or {"palisade_resources":1}`)
		}
		h.resources = f.Resources == 1
		h.perLock = f.Tokens == "per_lock"
		h.driftPPM = f.DriftPPM
	case f.Authority != "":
		// An absence only prolongs leases, and the model has no latest end of a lease.
	case f.Call != "":
		c := &call{
			id: string(f.ID), client: f.Client, kind: f.Call, lock: f.Lock + f.Resource, also: f.Also, ttlMS: f.TTL,
			under: f.Under, token: f.Token, request: f.Request, mode: f.mode(), permits: f.Permits, of: f.Of,
			content: f.Content, sent: f.At,
		}
		if known[c.id] != nil {
			return fmt.Errorf("`id` %s already names another call", c.id)
		}
		if c.lock == "" {
			return fmt.Errorf("call %s names no lock and no resource", c.id)
		}
		known[c.id] = c
		h.calls = append(h.calls, c)
	case f.Answer != "":
		c := known[string(f.ID)]
		if c == nil || c.answered != nil || f.At < c.sent {
			return fmt.Errorf("no call without an answer has the id %s, or it was sent later", f.ID)
		}
		c.answered = &answer{
			at: f.At, kind: f.Answer, token: f.Token, lease: f.Lease, phase: f.Phase, slots: slotSet(f.Slots),
			holder: f.Holder, how: f.How, content: f.Content, highest: f.Highest,
		}
		if f.Answer == "granted" && f.Lease == 0 {
			c.answered.lease = f.Token
		}
	default:
		return fmt.Errorf("expected `call`, `answer` or `authority`")
	}
	return nil
}

func (f *fields) mode() mode {
	switch {
	case f.Shared:
		return shared
	case f.Update:
		return update
	case f.Upgrade:
		return upgrade
	case f.Permits > 0:
		return permits
	}
	return exclusive
}

func slotSet(slots []int) uint64 {
	var all uint64
	for _, slot := range slots {
		all |= 1 << (slot - 1)
	}
	return all
}

// locks are all locks of an acquire.
func (c *call) locks() []string {
	return append([]string{c.lock}, c.also...)
}

// until is when the answer arrived.
func (c *call) until() int64 {
	if c.answered == nil {
		return never
	}
	return c.answered.at
}

// is says whether the call has this answer.
func (c *call) is(kind string) bool {
	return c.answered != nil && c.answered.kind == kind
}

func (c *call) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s of %s", c.kind, c.lock, c.client)
	if c.token != 0 {
		fmt.Fprintf(&text, " with token %d", c.token)
	}
	if a := c.answered; a != nil {
		fmt.Fprintf(&text, ": %s", a.kind)
		if a.token != 0 {
			fmt.Fprintf(&text, " %d", a.token)
		}
		fmt.Fprintf(&text, " [%d, %d]", c.sent, a.at)
	}
	return text.String()
}

// copied is a history that can be changed without the original.
func (h *history) copied() *history {
	other := *h
	other.calls = make([]*call, len(h.calls))
	for i, c := range h.calls {
		one := *c
		if c.answered != nil {
			back := *c.answered
			one.answered = &back
		}
		other.calls[i] = &one
	}
	return &other
}
