package palisadetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"time"

	"palisade.example/palisade/internal/exchange"
)

// A wire is the way from a client to the server: the paths of docs/reference/protocol.md.
type wire struct{ server *Server }

// Reset does nothing: there are no connections.
func (wire) Reset() {}

type acquireBody struct {
	ClientID  string `json:"client_id"`
	TTL       int64  `json:"lease_duration_ms"`
	Wait      int64  `json:"wait_ms"`
	Poll      int64  `json:"poll_ms"`
	RequestID string `json:"request_id"`
	Metadata  string `json:"metadata"`
	Mode      string `json:"mode"`
	LeaseKey  string `json:"lock_token"`

	Permits    *permits `json:"permits"`
	LockDelay  int64    `json:"lock_delay_ms"`
	AtLeastFor int64    `json:"at_least_for_ms"`
	Also       []string `json:"also"`
}

type permits struct {
	Count int `json:"count"`
	Of    int `json:"of"`
}

// named is a grant by both of its names.
type named struct {
	LeaseKey string `json:"lock_token"`
	Token    uint64 `json:"fencing_token"`
	TTL      int64  `json:"lease_duration_ms"`
	Value    string `json:"value"`
}

type fields map[string]any

// Send carries a request out.
func (w wire) Send(ctx context.Context, r exchange.Request) (*exchange.Answer, error) {
	s := w.server
	if err := s.untilAnswering(ctx); err != nil {
		return nil, &exchange.Failure{Err: err, Sent: true}
	}
	path, query, _ := strings.Cut(r.Path, "?")
	if path == "/v1/watch" {
		return s.watch(ctx, query)
	}
	status, body, err := s.answer(ctx, r.Method, path, query, r.Body)
	if err == nil {
		// The server may have been stalled while the request was carried out.
		err = s.untilAnswering(ctx)
	}
	if err != nil {
		return nil, &exchange.Failure{Err: err, Sent: true}
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return &exchange.Answer{Status: status, Body: io.NopCloser(bytes.NewReader(text))}, nil
}

// untilAnswering returns the context's error if it ends first.
func (s *Server) untilAnswering(ctx context.Context) error {
	for {
		s.mu.Lock()
		state, changed := s.state, s.changed
		s.mu.Unlock()
		if state != stalled {
			return ctx.Err()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wait returns the context's error if it ends first. The lock is given up meanwhile, at most for so long.
func (s *Server) wait(ctx context.Context, longest time.Duration) error {
	changed, timer := s.changed, time.NewTimer(min(s.next(), max(longest, 0)+time.Millisecond))
	s.mu.Unlock()
	defer s.mu.Lock()
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

func (s *Server) answer(ctx context.Context, method, path, query string, text []byte) (int, fields, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == down {
		return s.refused(&refusal{status: 503, code: "unavailable", message: "the double is down"})
	}
	s.settle()
	defer s.settle()
	parts := strings.Split(strings.TrimPrefix(path, "/v1/"), "/")
	name, verb := "", ""
	if len(parts) > 1 {
		unescaped, err := url.PathUnescape(parts[1])
		if err != nil {
			return s.refused(invalid("the path cannot be read"))
		}
		name = unescaped
	}
	if len(parts) > 2 {
		verb = parts[2]
	}
	var n named
	var b struct {
		Reason string `json:"reason"`
		Of     int    `json:"of"`
	}
	if len(text) > 0 && verb != "acquire" && (json.Unmarshal(text, &n) != nil || json.Unmarshal(text, &b) != nil) {
		return s.refused(invalid("the body cannot be read"))
	}
	switch parts[0] + " " + verb {
	case "listen ":
		return s.listen(ctx, text)
	case "status ":
		return 200, fields{"authority": s.authority, "incarnation": s.authority, "next_token": s.token + 1, "locks": s.held(),
			"leases": len(s.leases), "waiters": len(s.queue), "version": "memory"}, nil
	case "requests abandon":
		s.abandon(name)
		return 200, fields{"request_id": name, "abandoned": true}, nil
	case "locks ":
		if name == "" {
			return s.list(query)
		}
		return 200, s.show(s.lock(name), true), nil
	case "locks acquire":
		var body acquireBody
		if err := json.Unmarshal(text, &body); err != nil {
			return s.refused(invalid("the body cannot be read: %v", err))
		}
		return s.acquire(ctx, name, body)
	case "locks renew":
		return s.renew(name, n)
	case "locks release":
		return s.release(name, n)
	case "locks proclaim":
		return s.proclaim(name, n)
	case "locks break":
		return s.breakLock(name, n.Token, b.Reason)
	case "locks rejections":
		return s.refusedLate(name, text)
	case "locks permits":
		l := s.lock(name)
		if l.of == 0 {
			return s.refused(over("not_held", 0))
		}
		l.of = b.Of
		return 200, fields{"resource_id": name, "permits": b.Of}, nil
	case "locks sequencer":
		return s.refused(&refusal{status: 409, code: "refused", message: "the double has no keys: it signs no tokens"})
	}
	return s.refused(&refusal{status: 404, code: "not_found", message: "the double has no " + path})
}

func (s *Server) refused(r *refusal) (int, fields, error) {
	told := fields{"code": r.code, "message": r.message}
	if r.wait > 0 {
		told["retry_after_ms"] = wholeMilliseconds(r.wait)
	}
	if r.highest > 0 {
		told["highest"] = r.highest
	}
	if r.token > 0 {
		told["fencing_token"] = r.token
	}
	answer := fields{"error": told}
	if r.holder != nil {
		answer["holder"] = s.holder(r.holder, false)
	}
	return r.status, answer, nil
}

// wholeMilliseconds rounds up.
func wholeMilliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

func (s *Server) held() (n int) {
	for _, l := range s.locks {
		if len(l.grants) > 0 {
			n++
		}
	}
	return n
}

func (s *Server) holder(g *grant, all bool) fields {
	f := fields{"client_id": g.clientID, "fencing_token": g.token, "remaining_ms": max(s.until(g.lease.until), 0).Milliseconds()}
	if !all {
		return f
	}
	f["acquired_at"] = g.at.UTC().Format(timeFormat)
	if g.metadata != "" {
		f["metadata"] = g.metadata
	}
	if g.reads() {
		f["grant_id"] = g.number
	}
	if g.slots != nil {
		f["slots"] = g.slots
	}
	return f
}

func (s *Server) show(l *lock, all bool) fields {
	f := fields{"resource_id": l.name, "holder": nil, "waiters": s.waiters(l.name)}
	if all {
		f["revision"] = s.revision
	}
	if left := s.until(l.closedUntil); left > 0 {
		f["delayed_ms"] = wholeMilliseconds(left)
	}
	if l.of > 0 {
		f["permits"] = l.of
	}
	if len(l.grants) == 0 {
		return f
	}
	f["holder"] = s.holder(l.grants[0], true)
	if l.of > 0 || l.grants[0].reads() {
		f["reader_count"] = len(l.grants)
		var readers []fields
		for _, g := range l.grants {
			readers = append(readers, s.holder(g, true))
		}
		if all {
			f["readers"] = readers
		}
	}
	return f
}

func (s *Server) list(query string) (int, fields, error) {
	values, _ := url.ParseQuery(query)
	limit, err := strconv.Atoi(values.Get("limit"))
	if err != nil || limit < 1 || limit > 1000 {
		limit = 100
	}
	found, last := []fields{}, ""
	for _, name := range s.names() {
		l := s.locks[name]
		isShown := len(l.grants) > 0 || s.now().Before(l.closedUntil)
		if !isShown || !strings.HasPrefix(name, values.Get("prefix")) || name <= values.Get("cursor") {
			continue
		}
		if len(found) == limit {
			return 200, fields{"locks": found, "next_cursor": last}, nil
		}
		found, last = append(found, s.show(l, false)), name
	}
	return 200, fields{"locks": found, "next_cursor": nil}, nil
}

func (s *Server) acquire(ctx context.Context, name string, b acquireBody) (int, fields, error) {
	p, why := s.begin(name, b)
	if why != nil {
		return s.denied(name, why)
	}
	if p.attempt++; p.attempt > 1 {
		s.broadcast()
	}
	mine, now := p.attempt, s.now()
	p.arrived, p.until, p.kept = now, now.Add(time.Duration(b.Wait)*time.Millisecond), time.Time{}
	// A sign of life is for proxies, whose time is the real one.
	poll := time.Now().Add(time.Duration(b.Poll) * time.Millisecond)
	for {
		s.settle()
		now := s.now()
		switch {
		case p.attempt != mine:
			return s.refused(&refusal{status: 504, code: "unknown_outcome", message: "the same request was sent again"})
		case p.denied != nil:
			return s.denied(name, p.denied)
		case p.grants != nil:
			return s.granted(name, p)
		case s.state == down:
			p.kept = now.Add(keptFor)
			return s.refused(&refusal{status: 503, code: "unavailable", message: "the double is down"})
		case !now.Before(p.until):
			p.denied = s.denial(p)
			s.leave(p)
			continue
		case b.Poll > 0 && !time.Now().Before(poll):
			p.kept = now.Add(keptFor)
			return 202, fields{"resource_id": name, "lock_acquired": false, "waiting": true}, nil
		}
		if err := s.wait(ctx, time.Hour); err != nil {
			if p.attempt == mine && !p.isOver() {
				p.kept = s.now().Add(keptFor)
			}
			return 0, nil, err
		}
	}
}

// begin is the request, which may have been sent before.
func (s *Server) begin(name string, b acquireBody) (*pending, *refusal) {
	names := append([]string{name}, b.Also...)
	if p := s.requests[b.RequestID]; p != nil && b.RequestID != "" {
		switch {
		case p.denied != nil && p.denied.code == "abandoned":
			return nil, p.denied
		case p.names[0] != name || p.body.ClientID != b.ClientID:
			return nil, invalid("one request id belongs to one lock and one client id")
		}
		return p, nil
	}
	p := &pending{body: b, names: names}
	l := s.lock(name)
	switch {
	case b.ClientID == "", b.LeaseKey == "" && b.TTL < 100:
		return nil, invalid("client_id or lease_duration_ms is missing")
	case len(names) > 1 && (b.Mode != "" || b.Permits != nil || b.LockDelay > 0 || b.AtLeastFor > 0):
		return nil, invalid("several locks are exclusive, and have no time after the grant")
	case b.Permits != nil && (b.Permits.Count < 1 || b.Permits.Count > b.Permits.Of || b.Permits.Of > 64 || b.Mode != ""):
		return nil, invalid("permits: 1 – 64, and not more than there are")
	case b.Permits != nil && (l.of == 0 && len(l.grants) > 0 || l.of > 0 && l.of != b.Permits.Of):
		return nil, invalid("the lock is in use, and is not a semaphore of %d permits", b.Permits.Of)
	case b.Permits == nil && l.of > 0:
		return nil, invalid("the lock is a semaphore of %d permits, and is in use", l.of)
	case b.Mode == "upgrade" && b.LeaseKey == "":
		return nil, invalid("an upgrade is under the lease of a reader in mode update")
	}
	if b.LeaseKey != "" {
		under, why := s.ownUnder(l, b)
		if why != nil {
			return nil, why
		}
		p.under = under
	}
	if b.Permits != nil {
		l.of = b.Permits.Of
	}
	if b.RequestID != "" {
		s.requests[b.RequestID] = p
	}
	s.queue = append(s.queue, p)
	s.broadcast()
	return p, nil
}

// ownUnder is the grant that a change of mode is about: a writer's that becomes a reader, or the other way round.
func (s *Server) ownUnder(l *lock, b acquireBody) (*grant, *refusal) {
	for _, g := range l.grants {
		if g.lease.key != b.LeaseKey {
			continue
		}
		down := b.Mode == "shared" && !g.reads() && g.slots == nil
		up := b.Mode == "upgrade" && g.mode == "update"
		if !down && !up {
			return nil, invalid("a writer becomes a reader, and a reader in mode update the writer: nothing else changes its mode")
		}
		for _, p := range s.queue {
			if p.under == g {
				return nil, invalid("an upgrade of this reader waits already")
			}
		}
		return g, nil
	}
	for was, code := range s.ended {
		if was.key == b.LeaseKey && was.lock == l.name {
			return nil, over(code, was.number)
		}
	}
	return nil, over("not_held", 0)
}

func (s *Server) denied(name string, why *refusal) (int, fields, error) {
	status, answer, err := s.refused(why)
	if why.code != "invalid" {
		answer["resource_id"], answer["lock_acquired"] = name, false
	}
	return status, answer, err
}

func (s *Server) granted(name string, p *pending) (int, fields, error) {
	g := p.grants[0]
	if code := s.ended[ending{g.lease.key, name, g.number}]; code != "" {
		return s.denied(name, over(code, g.number))
	}
	left := s.until(g.lease.until).Milliseconds()
	// The rest counts from when this attempt came.
	f := fields{"resource_id": name, "lock_acquired": true, "lock_token": g.lease.key, "fencing_token": g.token,
		"lease_duration_ms": g.lease.ttl.Milliseconds(), "valid_for_ms": g.lease.until.Sub(p.arrived).Milliseconds(),
		"waited_ms": max(g.at.Sub(p.arrived), 0).Milliseconds(), "remaining_ms": left,
		"acquired_at": g.at.UTC().Format(timeFormat), "authority": s.authority}
	if g.reads() {
		f["grant_id"] = g.number
	}
	if g.slots != nil {
		f["slots"] = g.slots
	}
	return 200, f, nil
}

func (s *Server) renew(name string, n named) (int, fields, error) {
	g, why := s.find(name, n)
	if why != nil {
		return s.refused(why)
	}
	if n.TTL > 0 {
		g.lease.ttl = time.Duration(n.TTL) * time.Millisecond
	}
	if until := s.now().Add(g.lease.ttl); until.After(g.lease.until) {
		g.lease.until = until
	}
	left := s.until(g.lease.until).Milliseconds()
	return 200, fields{"resource_id": name, "fencing_token": g.token, "authority": s.authority,
		"lease_duration_ms": g.lease.ttl.Milliseconds(), "valid_for_ms": left, "remaining_ms": left,
		"waiters": s.waiters(g.lease.names()...)}, nil
}

func (s *Server) release(name string, n named) (int, fields, error) {
	g, why := s.find(name, n)
	again := why != nil && s.ended[ending{n.LeaseKey, name, n.Token}] == "not_held"
	if why != nil && !again {
		return s.refused(why)
	}
	if g != nil {
		n.Token = g.number
		s.end(g, "not_held", "")
	}
	return 200, fields{"resource_id": name, "released": true, "already_released": again, "fencing_token": n.Token,
		"authority": s.authority}, nil
}

func (s *Server) proclaim(name string, n named) (int, fields, error) {
	g, why := s.find(name, n)
	switch {
	case why != nil:
		return s.refused(why)
	case g.reads() || g.slots != nil:
		return s.refused(invalid("a reader, and a holder of permits, has no value"))
	case len(n.Value) > 256:
		return s.refused(invalid("value has at most 256 bytes"))
	}
	g.metadata = n.Value
	s.tell("proclaimed", g, nil)
	return 200, fields{"resource_id": name, "fencing_token": g.token, "revision": s.revision}, nil
}

func (s *Server) breakLock(name string, number uint64, reason string) (int, fields, error) {
	holders := s.lock(name).holders()
	for _, g := range holders {
		if g.number == number {
			s.end(g, "revoked", reason)
			return 200, fields{"resource_id": name, "revoked": true, "fencing_token": number}, nil
		}
	}
	if len(holders) == 0 {
		return s.refused(&refusal{status: 409, code: "not_held", message: "nobody holds this lock"})
	}
	return s.refused(&refusal{status: 412, code: "stale", message: "the lock is held with another token", highest: holders[0].number})
}

// refusedLate takes a report of a late write, for a grant that there was.
func (s *Server) refusedLate(name string, text []byte) (int, fields, error) {
	var late struct {
		Token    uint64 `json:"fencing_token"`
		Resource string `json:"resource"`
		Highest  uint64 `json:"highest"`
	}
	if json.Unmarshal(text, &late) != nil || late.Token == 0 || late.Resource == "" || len(late.Resource) > 255 || late.Highest == 0 {
		return s.refused(invalid("fencing_token, resource and highest are needed"))
	}
	recorded := false
	for _, token := range s.tokens[name] {
		recorded = recorded || token == late.Token && token < late.Highest
	}
	return 200, fields{"recorded": recorded}, nil
}

func (s *Server) abandon(id string) {
	p := s.requests[id]
	if p == nil {
		p = &pending{names: []string{""}}
		s.requests[id] = p
	}
	s.leave(p)
	for _, g := range p.grants {
		s.end(g, "not_held", "")
	}
	p.grants = nil
	p.denied = &refusal{status: 409, code: "abandoned", message: "this request_id was abandoned: choose a new one"}
	s.broadcast()
}

// watch answers with the changes, without end.
func (s *Server) watch(ctx context.Context, query string) (*exchange.Answer, error) {
	values, _ := url.ParseQuery(query)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	status, body, _ := 0, fields{}, error(nil)
	after := s.revision
	if given := values.Get("after_revision"); given != "" {
		wanted, err := strconv.ParseUint(given, 10, 64)
		if err != nil || wanted > s.revision {
			status, body, _ = s.refused(invalid("after_revision is not one of this authority"))
		}
		after = wanted
	}
	if s.state == down {
		status, body, _ = s.refused(&refusal{status: 503, code: "unavailable", message: "the double is down"})
	}
	if status != 0 {
		text, err := json.Marshal(body)
		return &exchange.Answer{Status: status, Body: io.NopCloser(bytes.NewReader(text))}, err
	}
	from, to := io.Pipe()
	go func() { to.CloseWithError(s.stream(ctx, to, values.Get("prefix"), after)) }()
	return &exchange.Answer{Status: 200, Body: from}, nil
}

// stream writes events until the context ends, nobody reads, or the server is down.
func (s *Server) stream(ctx context.Context, to io.Writer, prefix string, after uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	written := time.Now()
	for {
		s.settle()
		text := ""
		if len(s.events) > 0 && s.events[0].revision > after+1 {
			text = fmt.Sprintf("event: missed\nid: %d\ndata: {\"missed\": %d}\n\n", s.events[0].revision-1, s.events[0].revision-1-after)
			after = s.events[0].revision - 1
		}
		for _, e := range s.events[sort.Search(len(s.events), func(i int) bool { return s.events[i].revision > after }):] {
			after = e.revision
			if strings.HasPrefix(e.lock, prefix) {
				data, _ := json.Marshal(e.data)
				text += fmt.Sprintf("event: %s\nid: %d\ndata: %s\n\n", e.kind, e.revision, data)
			}
		}
		if text == "" && time.Since(written) > 15*time.Second {
			text = ":\n\n"
		}
		if s.state == down {
			return io.EOF
		}
		if s.state == up && text != "" {
			s.mu.Unlock()
			_, err := io.WriteString(to, text)
			s.mu.Lock()
			if err != nil {
				return err
			}
			written = time.Now()
			continue
		}
		if err := s.wait(ctx, time.Hour); err != nil {
			return err
		}
	}
}
