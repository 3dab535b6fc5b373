package palisade

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// A server writes a comment each 15 s.
	watchSilence = 45 * time.Second
	maxLineBytes = 1 << 20
)

// An Event is one change of a lock. An event is news, not proof: a holder learns of a loss from its own deadline.
type Event struct {
	// Kind is granted, proclaimed, opened, released, expired, revoked or superseded, or else missed: changes that did not
	// arrive, so list the locks again.
	Kind string
	// Revision is where to go on after this event; 0 if that is not known.
	Revision uint64
	Name     string
	ClientID string
	Token    uint64
	Reason   string
	// Missed is the number of changes that did not arrive; 0 if nobody knows how many.
	Missed uint64
	// GrantID is the number that names a shared grant; else 0.
	GrantID uint64
	// Time is the server's wall clock at the change, for people.
	Time string
}

// A WatchOption sets up a watch.
type WatchOption func(*Watch)

// After begins after a revision, with the changes that the server still remembers; 0 is before the first one. Without
// this option a watch begins with the next change.
func After(revision uint64) WatchOption {
	return func(w *Watch) { w.after, w.positioned = revision, true }
}

// Watch returns the changes of the locks whose names start with prefix. It goes on across broken connections, after the
// last event that it saw, until the context ends:
//
//	watch := client.Watch(ctx, "orders/")
//	defer watch.Close()
//	for watch.Next() {
//		fmt.Println(watch.Event().Kind, watch.Event().Name)
//	}
//	return watch.Err()
func (c *Client) Watch(ctx context.Context, prefix string, options ...WatchOption) *Watch {
	w := &Watch{client: c, prefix: prefix, pause: firstPause}
	if w.err = checkContext(ctx); w.err != nil {
		ctx = c.base
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	for _, option := range options {
		if option == nil {
			w.err = invalid("an option is nil: leave it out")
			continue
		}
		option(w)
	}
	return w
}

// A Watch goes through the changes. It is for one goroutine; Close may be called by others.
type Watch struct {
	noCopy noCopy
	client *Client
	prefix string
	ctx    context.Context
	cancel context.CancelFunc

	// The last revision that was seen, if one was.
	after      uint64
	positioned bool
	// A connection was open before.
	opened bool
	pause  time.Duration

	stream *stream
	event  Event
	err    error
}

// Next waits for the next event. It returns false when the context ends, after Close, and after an error that connecting
// again does not cure.
func (w *Watch) Next() bool {
	for w.err == nil {
		if w.err = w.ctx.Err(); w.err != nil {
			break
		}
		if w.stream == nil {
			if w.connect() {
				return true
			}
			continue
		}
		event, ok := w.read()
		if ok {
			w.event = event
			return true
		}
	}
	w.disconnect()
	return false
}

// begin connects, if it is not connected, and waits until the first connection is there. It returns false where Next would.
func (w *Watch) begin() bool {
	for w.err == nil {
		if w.err = w.ctx.Err(); w.err != nil || w.opened {
			break
		}
		w.connect()
	}
	return w.err == nil
}

// Event is the one to which Next went on.
func (w *Watch) Event() Event { return w.event }

// Err is the reason why Next returned false: the context's error, or the server's refusal.
func (w *Watch) Err() error { return w.err }

// Close ends the watch.
func (w *Watch) Close() error {
	w.cancel()
	return nil
}

// connect opens the stream. It returns true if that is an event of its own: something may have been missed.
func (w *Watch) connect() bool {
	address := w.client.transport.endpoints.current()
	if !w.openAt(address) {
		return false
	}
	again := w.opened
	w.opened = true
	if again && !w.positioned {
		w.event = Event{Kind: "missed"}
		return true
	}
	return false
}

func (w *Watch) openAt(address string) bool {
	if err := w.client.open(w.ctx); err != nil {
		w.err = err
		return false
	}
	query := url.Values{"prefix": {w.prefix}}
	if w.positioned {
		query.Set("after_revision", strconv.FormatUint(w.after, 10))
	}
	// A server sends the head at once.
	stream := newStream(w.ctx, attemptTime(0, w.client.patience, w.client.patience))
	answer, err := w.client.transport.open(stream.ctx, address, request{method: "GET", path: "/v1/watch?" + query.Encode()})
	if err != nil {
		stream.close()
		w.broken(address)
		return false
	}
	stream.read(answer.Body)
	if answer.Status != 200 {
		defer stream.close()
		content, _ := io.ReadAll(io.LimitReader(answer.Body, maxLineBytes))
		w.refused(address, answer.Status, content)
		return false
	}
	w.stream, stream.address = stream, address
	return true
}

// refused: connecting again may help, and if not, the error is for the caller.
func (w *Watch) refused(address string, status int, content []byte) {
	answer, failed := readReply(status, content)
	switch {
	case failed != nil:
		w.broken(address)
	case w.client.transport.endpoints.answered(address, answer):
	case answer.fault() != nil:
		w.broken(address)
	case w.positioned && answer.code() == "invalid":
		// The revision is of another authority: begin anew, and say that something was missed.
		w.positioned, w.opened = false, true
	default:
		w.err = answer.err()
	}
}

func (w *Watch) broken(address string) {
	w.client.transport.endpoints.failed(address)
	w.client.transport.exchange.Reset()
	// The context's error is for Next to find.
	_ = sleepUntil(w.ctx, now().add(w.pause))
	w.pause = atMost(2*w.pause, longestPause)
}

func (w *Watch) disconnect() {
	if w.stream != nil {
		w.stream.close()
		w.stream = nil
	}
}

// read takes lines up to the end of an event that the caller is to see.
func (w *Watch) read() (Event, bool) {
	var block eventBlock
	for w.stream.next() {
		w.pause = firstPause
		line := w.stream.line()
		if line != "" {
			block.take(line)
			continue
		}
		if revision, err := strconv.ParseUint(block.id, 10, 64); err == nil {
			w.after, w.positioned = revision, true
		}
		if event, ok := block.event(w.after); ok {
			return event, true
		}
		block = eventBlock{}
	}
	address := w.stream.address
	w.disconnect()
	w.broken(address)
	return Event{}, false
}

// A stream is one connection, which ends after 45 s of silence.
type stream struct {
	ctx     context.Context
	cancel  context.CancelFunc
	silence *time.Timer
	body    io.ReadCloser
	lines   *bufio.Scanner
	address string
}

func newStream(ctx context.Context, head time.Duration) *stream {
	s := &stream{}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.silence = time.AfterFunc(head, s.cancel)
	return s
}

func (s *stream) read(body io.ReadCloser) {
	s.silence.Reset(watchSilence)
	s.body = body
	s.lines = bufio.NewScanner(body)
	s.lines.Buffer(nil, maxLineBytes)
}

func (s *stream) next() bool {
	ok := s.lines.Scan()
	s.silence.Reset(watchSilence)
	return ok
}

func (s *stream) line() string { return s.lines.Text() }

func (s *stream) close() {
	s.silence.Stop()
	s.cancel()
	if s.body != nil {
		s.body.Close()
	}
}

// An eventBlock is the lines between two empty ones.
type eventBlock struct{ kind, id, data string }

func (b *eventBlock) take(line string) {
	name, value, _ := strings.Cut(line, ":")
	value = strings.TrimPrefix(value, " ")
	switch name {
	case "event":
		b.kind = value
	case "id":
		b.id = value
	case "data":
		b.data += value
	}
}

// event returns false for events that the caller must not see, such as the kinds of later servers.
func (b *eventBlock) event(revision uint64) (Event, bool) {
	var told struct {
		Name     string `json:"resource_id"`
		ClientID string `json:"client_id"`
		Token    uint64 `json:"fencing_token"`
		Reason   string `json:"reason"`
		Missed   uint64 `json:"missed"`
		GrantID  uint64 `json:"grant_id"`
		Time     string `json:"time"`
	}
	if b.data == "" || json.Unmarshal([]byte(b.data), &told) != nil {
		return Event{}, false
	}
	switch b.kind {
	case "missed":
		return Event{Kind: b.kind, Revision: revision, Missed: told.Missed}, true
	case "granted", "proclaimed", "opened", "released", "expired", "revoked", "superseded":
		return Event{b.kind, revision, told.Name, told.ClientID, told.Token, told.Reason, 0, told.GrantID, told.Time}, isToken(&told.Token)
	}
	return Event{}, false
}
