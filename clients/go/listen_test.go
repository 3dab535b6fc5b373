package palisade_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"palisade.example/palisade"
)

// A listened is one request of a client that listens.
type listened struct {
	grants  []listenedGrant
	waitMs  int
	at      time.Time
	stopped bool
}

type listenedGrant struct {
	Lock     string `json:"resource_id"`
	LeaseKey string `json:"lock_token"`
	Number   uint64 `json:"fencing_token"`
	Waiters  int    `json:"waiters"`
}

// A listenServer grants everything, and answers requests that listen as the test says; without an answer they wait.
type listenServer struct {
	*liar
	url string
	// Whether renewals say how many requests wait.
	newer bool

	// Answers to upgrades wait for it; nil: they do not.
	upgrades chan struct{}

	mu     sync.Mutex
	answer func(w http.ResponseWriter, r *http.Request, grants []listenedGrant) (answered bool)
	asked  []*listened
	// Closed when those that wait are told that there is nothing to say.
	over chan struct{}
}

func newListenServer(t *testing.T, newer bool) *listenServer {
	t.Helper()
	s := &listenServer{liar: newLiar(t), newer: newer, over: make(chan struct{})}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	s.url = server.URL
	return s
}

func (s *listenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/v1/listen":
		s.listen(w, r)
	case strings.HasSuffix(r.URL.Path, "/acquire") && s.upgrades != nil:
		s.acquire(w, r)
	case strings.HasSuffix(r.URL.Path, "/renew") && s.isNewer():
		s.liar.ServeHTTP(&withWaiters{w}, r)
	default:
		s.liar.ServeHTTP(w, r)
	}
}

func (s *listenServer) isNewer() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newer
}

type withWaiters struct{ http.ResponseWriter }

func (w *withWaiters) Write(text []byte) (int, error) {
	return w.ResponseWriter.Write([]byte(strings.Replace(string(text), "{", `{"waiters": 0, `, 1)))
}

func (s *listenServer) listen(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Grants []listenedGrant `json:"grants"`
		Wait   int             `json:"wait_ms"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	one := &listened{grants: body.Grants, waitMs: body.Wait, at: time.Now()}
	s.mu.Lock()
	s.asked = append(s.asked, one)
	answer, over := s.answer, s.over
	s.mu.Unlock()
	w.Header().Set(nonceHeader, r.Header.Get(nonceHeader))
	if answer == nil || !answer(w, r, body.Grants) {
		select {
		case <-r.Context().Done():
		case <-over:
			say(w)
		}
	}
	s.mu.Lock()
	one.stopped = true
	s.mu.Unlock()
}

func (s *listenServer) answers(answer func(http.ResponseWriter, *http.Request, []listenedGrant) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *listenServer) acquire(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(text))
	if strings.Contains(string(text), `"upgrade"`) {
		s.upgrades <- struct{}{}
		<-s.upgrades
	}
	s.liar.ServeHTTP(w, r)
}

// answerAll ends the requests that wait: there is nothing to say.
func (s *listenServer) answerAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.over)
	s.over = make(chan struct{})
}

// open are the requests that wait.
func (s *listenServer) open() (open []*listened) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.asked {
		if !one.stopped {
			open = append(open, one)
		}
	}
	return open
}

func (s *listenServer) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

// until waits for a state that has no event.
func until(t *testing.T, what string, there func() bool) {
	t.Helper()
	for ctx := within(t); !there(); {
		if ctx.Err() != nil {
			t.Fatal("never: " + what)
		}
		// real time: only a pause between two looks.
		time.Sleep(time.Millisecond)
	}
}

// say writes an answer with these notices.
func say(w http.ResponseWriter, notices ...map[string]any) bool {
	if notices == nil {
		notices = []map[string]any{}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"notices": notices})
	return true
}

func about(grant listenedGrant, event string, more ...any) map[string]any {
	notice := map[string]any{"resource_id": grant.Lock, "fencing_token": grant.Number, "event": event}
	for n := 0; n < len(more); n += 2 {
		notice[more[n].(string)] = more[n+1]
	}
	return notice
}

func refuse(w http.ResponseWriter, status int, code string) bool {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error": {"code": %q, "message": "m"}}`, code)
	return true
}

// However a server answers, it is asked at a bounded rate, and only renewals decide whether the lease is suspended.
func TestAServerThatAnswersAtOnceIsNotAskedInALoop(t *testing.T) {
	const doubled = -1
	for name, one := range map[string]struct {
		// The shortest time between two requests; doubled: half a second, and longer each time.
		pause  time.Duration
		answer func(w http.ResponseWriter, r *http.Request, grants []listenedGrant) bool
	}{
		"nothing to say": {doubled, func(w http.ResponseWriter, _ *http.Request, _ []listenedGrant) bool { return say(w) }},
		"no news": {doubled, func(w http.ResponseWriter, _ *http.Request, grants []listenedGrant) bool {
			return say(w, about(grants[0], "wanted", "waiters", grants[0].Waiters))
		}},
		"an event of a later version": {doubled, func(w http.ResponseWriter, _ *http.Request, grants []listenedGrant) bool {
			return say(w, about(grants[0], "praised"))
		}},
		"news each time": {50 * time.Millisecond, func(w http.ResponseWriter, _ *http.Request, grants []listenedGrant) bool {
			return say(w, about(grants[0], "wanted", "waiters", grants[0].Waiters+1))
		}},
		"the end of another grant, too": {doubled, func(w http.ResponseWriter, _ *http.Request, grants []listenedGrant) bool {
			other := grants[0]
			other.Number++
			return say(w, about(grants[0], "ended", "how", "revoked"), about(other, "ended", "how", "revoked"))
		}},
		"no notices": {doubled, func(w http.ResponseWriter, _ *http.Request, _ []listenedGrant) bool { fmt.Fprint(w, "{}"); return true }},
		"too many":   {doubled, func(w http.ResponseWriter, _ *http.Request, _ []listenedGrant) bool { return refuse(w, 429, "busy") }},
		"unavailable": {doubled, func(w http.ResponseWriter, _ *http.Request, _ []listenedGrant) bool {
			return refuse(w, 503, "unavailable")
		}},
		"forbidden": {doubled, func(w http.ResponseWriter, _ *http.Request, _ []listenedGrant) bool {
			return refuse(w, 403, "forbidden")
		}},
		"a proxy's 504": {doubled, func(w http.ResponseWriter, _ *http.Request, _ []listenedGrant) bool {
			w.Header().Del(nonceHeader)
			http.Error(w, "<html>Gateway Timeout</html>", http.StatusGatewayTimeout)
			return true
		}},
		"a closed connection": {doubled, func(http.ResponseWriter, *http.Request, []listenedGrant) bool { panic(http.ErrAbortHandler) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newListenServer(t, true)
			s.answers(one.answer)
			client := newClient(t, palisade.Endpoints(s.url))
			s.liar.does(field("valid_for_ms", 3_000))
			lease := mustLock(t, client, "orders")
			notices := heard(t, lease)
			most := 3
			if one.pause != doubled {
				most = 10
			}
			until(t, "several requests", func() bool { return s.requests() >= most && s.liar.count("renew") > 1 })
			s.mu.Lock()
			defer s.mu.Unlock()
			pause := one.pause
			for at := 1; at < len(s.asked); at++ {
				if one.pause == doubled {
					pause = min(500*time.Millisecond<<(at-1), 8*time.Second)
				}
				// The earlier time is from before its answer, so a slow machine only adds to the pause.
				if between := s.asked[at].at.Sub(s.asked[at-1].at); between < pause {
					t.Errorf("request %d came %v after the one before, and not %v", at, between, pause)
				}
			}
			if err := lease.Check(); err != nil {
				t.Error(err)
			}
			for len(notices) > 0 {
				if notice := <-notices; notice.Kind != palisade.Wanted && notice.Kind != palisade.Unwanted {
					t.Errorf("%+v", notice)
				}
			}
		})
	}
}

func TestARequestThatIsEndedTooEarlyGetsShorter(t *testing.T) {
	t.Parallel()
	s := newListenServer(t, true)
	s.answers(func(w http.ResponseWriter, _ *http.Request, _ []listenedGrant) bool {
		// real time: of a proxy that ends requests after a second and a half.
		time.Sleep(1500 * time.Millisecond)
		w.Header().Del(nonceHeader)
		http.Error(w, "<html>Gateway Timeout</html>", http.StatusGatewayTimeout)
		return true
	})
	client := newClient(t, palisade.Endpoints(s.url))
	mustLock(t, client, "orders")
	until(t, "four requests", func() bool { return s.requests() >= 4 })
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, expected := range []int{20_000, 10_000, 5_000, 2_500} {
		if waits := s.asked[at].waitMs; waits != expected {
			t.Errorf("request %d lets the server wait %d ms, and not %d", at, waits, expected)
		}
	}
}

func TestAServerOfBeforeIsAskedOnce(t *testing.T) {
	s := newListenServer(t, false)
	s.answers(func(w http.ResponseWriter, _ *http.Request, _ []listenedGrant) bool {
		return refuse(w, 404, "not_found")
	})
	client := newClient(t, palisade.Endpoints(s.url))
	s.liar.does(field("valid_for_ms", 1_500))
	first := mustLock(t, client, "orders")
	notices := heard(t, first)
	until(t, "a request", func() bool { return s.requests() == 1 })
	mustLock(t, client, "other")
	renewals := s.liar.count("renew")
	until(t, "more renewals", func() bool { return s.liar.count("renew") > renewals+3 })
	if n := s.requests(); n != 1 || len(notices) > 0 {
		t.Errorf("%d requests, %d notices", n, len(notices))
	}
	// A newer server has taken its place: its renewals say who waits.
	s.answers(nil)
	s.mu.Lock()
	s.newer = true
	s.mu.Unlock()
	until(t, "both leases are listened for", func() bool {
		open := s.open()
		return len(open) == 1 && len(open[0].grants) == 2
	})
	// One that says so, and knows no notices, is asked once more.
	s.answers(func(w http.ResponseWriter, _ *http.Request, _ []listenedGrant) bool {
		return refuse(w, 404, "not_found")
	})
	before := s.requests()
	mustLock(t, client, "third")
	until(t, "a request", func() bool { return s.requests() == before+1 })
	renewals = s.liar.count("renew")
	until(t, "more renewals", func() bool { return s.liar.count("renew") > renewals+5 })
	if n := s.requests(); n != before+1 {
		t.Errorf("%d requests after %d", n, before)
	}
}

// A program in between may know less than the server, whose renewals say who waits.
func TestAPathThatIsNotThereIsAskedForOnce(t *testing.T) {
	s := newListenServer(t, true)
	s.answers(func(w http.ResponseWriter, _ *http.Request, _ []listenedGrant) bool {
		return refuse(w, 404, "not_found")
	})
	client := newClient(t, palisade.Endpoints(s.url))
	s.liar.does(field("valid_for_ms", 1_500))
	mustLock(t, client, "orders")
	until(t, "renewals", func() bool { return s.liar.count("renew") > 4 })
	if n := s.requests(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestWithoutNoticesNothingIsAsked(t *testing.T) {
	s := newListenServer(t, true)
	client := newClient(t, palisade.Endpoints(s.url), palisade.WithoutNotices())
	// The control listens.
	control := newClient(t, palisade.Endpoints(s.url))
	s.liar.does(field("valid_for_ms", 1_500))
	mustLock(t, client, "orders")
	mustLock(t, control, "control")
	until(t, "the control's request", func() bool { return s.requests() == 1 })
	until(t, "renewals", func() bool { return s.liar.count("renew") > 5 })
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.asked {
		if one.grants[0].Lock != "control" {
			t.Errorf("%+v", one.grants)
		}
	}
}

func TestAThousandLeasesAreTenRequests(t *testing.T) {
	s := newListenServer(t, true)
	client := newClient(t, palisade.Endpoints(s.url))
	var leases []*palisade.Lease
	for n := range 1000 {
		leases = append(leases, mustLock(t, client, fmt.Sprintf("lock-%03d", n)))
	}
	named := func() (grants map[string]bool, requests int) {
		grants = map[string]bool{}
		open := s.open()
		for _, one := range open {
			if len(one.grants) > 100 {
				t.Fatalf("a request names %d grants", len(one.grants))
			}
			for _, grant := range one.grants {
				if grants[grant.Lock] {
					return nil, 0 // One that ends, and its successor.
				}
				grants[grant.Lock] = true
			}
		}
		return grants, len(open)
	}
	until(t, "1000 grants in 10 requests", func() bool {
		grants, requests := named()
		return len(grants) == 1000 && requests == 10
	})
	// An end, and a release, leave the other requests alone.
	before := s.requests()
	ended := make(chan bool, 1)
	s.answers(func(w http.ResponseWriter, _ *http.Request, grants []listenedGrant) bool {
		for _, grant := range grants {
			if grant.Lock == "new" {
				ended <- true
				return say(w, about(grant, "ended", "how", "expired"))
			}
		}
		return false
	})
	if err := leases[0].Release(within(t)); err != nil {
		t.Fatal(err)
	}
	fresh := mustLock(t, client, "new")
	if lost := next(t, heard(t, fresh), palisade.Lost).Err; lost.Err.Code != "expired" {
		t.Errorf("%v", lost)
	}
	<-ended
	if n := s.requests() - before; n > 2 {
		t.Errorf("%d more requests", n)
	}
	for _, lease := range leases[1:] {
		if err := lease.Check(); err != nil {
			t.Fatal(err)
		}
	}
	// Few leases are few requests again, once those under way are answered.
	s.answers(nil)
	for n, lease := range leases[1:] {
		if n%50 == 0 {
			continue // Two of each request.
		}
		if err := lease.Release(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	s.answerAll()
	until(t, "one request", func() bool {
		open := s.open()
		return len(open) == 1 && len(open[0].grants) == 20
	})
}

// Grants that come together are named together, in one request that takes the place of the last one.
func TestNewGrantsAreGathered(t *testing.T) {
	s := newListenServer(t, true)
	client := newClient(t, palisade.Endpoints(s.url))
	start := time.Now()
	for n := range 50 {
		mustLock(t, client, fmt.Sprint(n))
	}
	for range 100 {
		// Held so shortly that nobody need listen.
		if err := mustLock(t, client, "short").Release(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "one request with all", func() bool {
		open := s.open()
		return len(open) == 1 && len(open[0].grants) >= 50
	})
	if n, most := s.requests(), int(time.Since(start)/(100*time.Millisecond))+1; n > most {
		t.Errorf("%d requests in %v", n, time.Since(start))
	}
}

func TestTheListenerEndsWithTheLastLease(t *testing.T) {
	s := newListenServer(t, true)
	client := newClient(t, palisade.Endpoints(s.url))
	for _, close := range []bool{false, true} {
		lease := mustLock(t, client, "orders")
		until(t, "a request", func() bool { return len(s.open()) == 1 })
		start := time.Now()
		if close {
			_ = client.Close()
		} else if err := lease.Release(within(t)); err != nil {
			t.Fatal(err)
		}
		until(t, "the request is ended", func() bool { return len(s.open()) == 0 })
		// real time: the request asks for 20 s, and is not answered.
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("ended after %v", took)
		}
	}
}

// A node that does not lead names the leader, and one that does not answer is left; renewals stay where they were.
func TestTheListenerFindsItsOwnWay(t *testing.T) {
	leader, other := newListenServer(t, true), newListenServer(t, true)
	other.answers(func(w http.ResponseWriter, _ *http.Request, _ []listenedGrant) bool {
		w.WriteHeader(503)
		fmt.Fprintf(w, `{"error": {"code": "not_leader", "message": "m", "leader": %q}}`, leader.url)
		return true
	})
	client := newClient(t, palisade.Endpoints(other.url, leader.url))
	mustLock(t, client, "orders")
	until(t, "the leader is asked", func() bool { return len(leader.open()) == 1 })
	// The leader goes, and the other one knows no other.
	leader.answers(func(http.ResponseWriter, *http.Request, []listenedGrant) bool { panic(http.ErrAbortHandler) })
	other.answers(nil)
	mustLock(t, client, "restarts")
	until(t, "the other is asked", func() bool { return len(other.open()) == 1 && len(other.open()[0].grants) == 2 })
	if n := leader.liar.count("acquire"); n != 0 {
		t.Errorf("%d requests followed the listener", n)
	}
}

// Both leases have the one grant, and the server takes each grant once.
func TestAGrantOfTwoLeasesIsNamedOnce(t *testing.T) {
	s := newListenServer(t, true)
	client := newClient(t, palisade.Endpoints(s.url))
	text, err := mustLock(t, client, "orders").Export()
	if err != nil {
		t.Fatal(err)
	}
	var leases []*palisade.Lease
	for range 2 {
		lease, err := client.Adopt(within(t), text)
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	s.answers(func(w http.ResponseWriter, _ *http.Request, grants []listenedGrant) bool {
		if len(grants) != 1 {
			return refuse(w, 400, "invalid")
		}
		return say(w, about(grants[0], "ended", "how", "unknown"))
	})
	for _, lease := range leases {
		lost := next(t, heard(t, lease), palisade.Lost).Err
		if !errors.Is(lost, palisade.ErrLost) || lost.Err.Code != "not_held" {
			t.Errorf("%v", lost)
		}
	}
}

// The server says that the reader's grant is superseded before the answer to its upgrade is here.
func TestAnUpgradeThatIsOnItsWayIsNoLoss(t *testing.T) {
	s := newListenServer(t, true)
	s.upgrades = make(chan struct{})
	s.liar.does(field("grant_id", 7))
	client := newClient(t, palisade.Endpoints(s.url))
	reader := mustLock(t, client, "orders", palisade.Update())
	until(t, "a request", func() bool { return len(s.open()) == 1 })
	done := make(chan error)
	go func() {
		writer, err := reader.Upgrade(within(t), time.Minute)
		if err == nil {
			err = writer.Check()
		}
		done <- err
	}()
	<-s.upgrades
	said := make(chan struct{}, 1)
	s.answers(func(w http.ResponseWriter, _ *http.Request, grants []listenedGrant) bool {
		defer func() { said <- struct{}{} }()
		return say(w, about(grants[0], "ended", "how", "superseded"))
	})
	s.answerAll()
	<-said
	// Another lease shows that the notice was read: with the first one's it would be two grants.
	s.answers(nil)
	mustLock(t, client, "other")
	until(t, "the next request", func() bool { return len(s.open()) == 1 && len(s.open()[0].grants) == 1 })
	if err := reader.Check(); err != nil {
		t.Errorf("the reader was lost: %v", err)
	}
	s.upgrades <- struct{}{}
	if err := <-done; err != nil {
		t.Error(err)
	}
	select {
	case <-reader.Lost():
		t.Error("the upgrade was announced as a loss")
	default:
	}
}
