package palisade_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"palisade.example/palisade"
)

const nonceHeader = "Palisade-Nonce"

// A liar is a server that grants everything, and may change an answer on its way.
type liar struct {
	url string
	// lie changes the answer to a request; nil: none.
	lie func(map[string]any, *told)

	mu    sync.Mutex
	conns map[string]int
	seen  map[string]bool
	asked []string
}

// told is an answer.
type told struct {
	nonce  string
	status int
	body   map[string]any
}

func newLiar(t *testing.T) *liar {
	t.Helper()
	l := &liar{conns: map[string]int{}, seen: map[string]bool{}}
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)
	l.url = server.URL
	return l
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var asked map[string]any
	_ = json.NewDecoder(r.Body).Decode(&asked)
	parts := strings.Split(r.URL.Path, "/")
	answer := told{r.Header.Get(nonceHeader), 200, map[string]any{"resource_id": parts[min(3, len(parts)-1)], "authority": "a", "fencing_token": 7}}
	switch verb := parts[len(parts)-1]; verb {
	case "acquire":
		answer.body["lock_acquired"], answer.body["lock_token"] = true, "k"
		answer.body["valid_for_ms"], answer.body["waited_ms"] = 30_000, 0
	case "renew":
		answer.body["valid_for_ms"] = 30_000
	case "release":
		answer.body["released"] = true
	case "abandon":
		answer.body = map[string]any{"request_id": parts[3]}
	case "listen":
		answer.status, answer.body = 404, map[string]any{"error": map[string]any{"code": "not_found", "message": "m"}}
	default:
		answer.body["waiters"] = 0
	}
	l.mu.Lock()
	l.conns[r.RemoteAddr]++
	if l.seen[answer.nonce] {
		answer.status, answer.body = 400, map[string]any{"error": map[string]any{"code": "invalid", "message": "a nonce came again"}}
	}
	l.seen[answer.nonce] = true
	l.asked = append(l.asked, parts[len(parts)-1])
	if l.lie != nil {
		l.lie(asked, &answer)
	}
	l.mu.Unlock()
	if answer.nonce != "" {
		w.Header().Set(nonceHeader, answer.nonce)
	}
	w.WriteHeader(answer.status)
	_ = json.NewEncoder(w).Encode(answer.body)
}

func (l *liar) does(lie func(map[string]any, *told)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lie = lie
}

func (l *liar) count(verb string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, asked := range l.asked {
		if asked == verb {
			n++
		}
	}
	return n
}

func field(name string, value any) func(map[string]any, *told) {
	return func(_ map[string]any, answer *told) { answer.body[name] = value }
}

// Every way in which an answer to an acquire belongs to another request.
func TestAGrantOfAnotherRequestIsNotBelieved(t *testing.T) {
	l := newLiar(t)
	client := newClient(t, palisade.Endpoints(l.url), palisade.Patience(300*time.Millisecond))
	for name, lie := range map[string]func(map[string]any, *told){
		"another lock":    field("resource_id", "other"),
		"no lock":         field("resource_id", nil),
		"a renewal":       field("lock_acquired", nil),
		"a denial":        field("lock_acquired", false),
		"no nonce":        func(_ map[string]any, answer *told) { answer.nonce = "" },
		"another nonce":   func(_ map[string]any, answer *told) { answer.nonce = "AAAAAAAAAAAAAAAAAAAAAA" },
		"it waits, twice": func(_ map[string]any, answer *told) { answer.status = 202 },
		"a redirect":      func(_ map[string]any, answer *told) { answer.status, answer.nonce = 302, "" },
		"another denial": func(_ map[string]any, answer *told) {
			answer.status = 409
			answer.body = map[string]any{"resource_id": "other", "error": map[string]any{"code": "held", "message": "m"}}
		},
		"a proxy's refusal": func(_ map[string]any, answer *told) {
			answer.status, answer.nonce = 403, ""
			answer.body = map[string]any{"error": map[string]any{"code": "forbidden", "message": "m"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l.does(lie)
			if lease, err := client.Lock(within(t), "orders", palisade.Wait(0)); !errors.Is(err, palisade.ErrUnknownOutcome) {
				t.Errorf("%v, %v", lease, err)
			}
		})
	}
	// A control: without a lie it is granted.
	l.does(nil)
	patient := newClient(t, palisade.Endpoints(l.url))
	if lease, err := patient.Lock(within(t), "orders", palisade.Wait(0)); err != nil || lease.Token() != 7 {
		t.Errorf("%v, %v", lease, err)
	}
}

func TestAnAnswerWithoutAListIsNoEmptyList(t *testing.T) {
	l := newLiar(t)
	client := newClient(t, palisade.Endpoints(l.url), palisade.Patience(300*time.Millisecond))
	if locks := client.List(within(t), ""); locks.Next() || !errors.Is(locks.Err(), palisade.ErrUnknownOutcome) {
		t.Errorf("%v", locks.Err())
	}
	// A control: an empty list is believed.
	l.does(field("locks", []any{}))
	if locks := client.List(within(t), ""); locks.Next() || locks.Err() != nil {
		t.Errorf("%v", locks.Err())
	}
}

// The next answer on such a connection is wrong, too.
func TestAStrayAnswerEndsItsConnection(t *testing.T) {
	for name, lie := range map[string]func(map[string]any, *told){
		"by its nonce": func(_ map[string]any, answer *told) { answer.nonce = "late" },
		"by its lock":  field("resource_id", "other"),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLiar(t)
			client := newClient(t, palisade.Endpoints(l.url))
			requests := 0
			l.does(func(asked map[string]any, answer *told) {
				if requests++; requests <= 3 {
					lie(asked, answer)
				}
			})
			if shown, err := client.Show(within(t), "orders"); err != nil || shown.Name != "orders" {
				t.Errorf("%v, %v", shown, err)
			}
			// A control: a good answer keeps its connection.
			show(t, client, "orders")
			l.mu.Lock()
			defer l.mu.Unlock()
			if len(l.conns) != 4 {
				t.Errorf("5 requests on %d connections", len(l.conns))
			}
		})
	}
}

// A renewal is believed only if it is that of this lease. The deadline does not move, and ends the lease.
func TestARenewalOfAnotherRequestDoesNotMoveTheDeadline(t *testing.T) {
	// There is time for two renewals, also on a machine that does much else.
	const ttl = time.Second
	before := ""
	for name, lie := range map[string]func(map[string]any, *told){
		"another lock":      field("resource_id", "other"),
		"another token":     field("fencing_token", 8),
		"another authority": field("authority", "b"),
		"no authority":      field("authority", nil),
		"a grant":           field("lock_acquired", true),
		"a release":         field("released", true),
		"no nonce":          func(_ map[string]any, answer *told) { answer.nonce = "" },
		// Also the answers to the same lease's earlier requests.
		"late by one": func(_ map[string]any, answer *told) { before, answer.nonce = answer.nonce, before },
		"the end of another grant": func(_ map[string]any, answer *told) {
			answer.status = 410
			answer.body = map[string]any{"error": map[string]any{"code": "expired", "message": "m", "fencing_token": 8}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLiar(t)
			client := newClient(t, palisade.Endpoints(l.url), palisade.Patience(500*time.Millisecond))
			l.does(field("valid_for_ms", ttl.Milliseconds()))
			lease := mustLock(t, client, "orders", palisade.TTL(ttl))
			l.does(lie)
			var lost *palisade.LostError
			<-lease.Lost()
			if err := lease.Check(); !errors.As(err, &lost) || lost.Err.Code != "expired" {
				t.Errorf("%v", err)
			}
			if n := l.count("renew"); n < 2 {
				t.Errorf("%d renewals", n)
			}
		})
	}
	t.Run("a control: its own", func(t *testing.T) {
		l := newLiar(t)
		client := newClient(t, palisade.Endpoints(l.url))
		l.does(field("valid_for_ms", ttl.Milliseconds()))
		lease := mustLock(t, client, "orders", palisade.TTL(ttl))
		l.does(nil)
		for ctx := within(t); lease.Remaining() < 10*time.Second; {
			if err := lease.Check(); err != nil || ctx.Err() != nil {
				t.Fatalf("not renewed: %v", err)
			}
		}
	})
}

// An answer that says only that the request waits is asked for again, in time, with the same request id and less to wait.
func TestAWaitIsPolled(t *testing.T) {
	l := newLiar(t)
	client := newClient(t, palisade.Endpoints(l.url))
	var asked []map[string]any
	l.does(func(request map[string]any, answer *told) {
		if request["request_id"] == nil {
			return
		}
		if asked = append(asked, request); len(asked) < 4 {
			answer.status = 202
			answer.body = map[string]any{"resource_id": "orders", "lock_acquired": false, "waiting": true}
			return
		}
		answer.body["waited_ms"] = 5
	})
	lease := mustLock(t, client, "orders", palisade.Wait(time.Minute))
	// Three answers that come at once are not asked for in a loop: 10 ms lie between them.
	if waited := lease.Waited(); len(asked) != 4 || waited < 35*time.Millisecond || waited > time.Minute {
		t.Errorf("%d attempts, waited %v", len(asked), waited)
	}
	for at, request := range asked {
		// An address that did not answer yet may be dead.
		if poll := []any{1_000.0, 10_000.0}[min(at, 1)]; request["poll_ms"] != poll || request["request_id"] != asked[0]["request_id"] {
			t.Errorf("attempt %d asks %v", at, request)
		}
		if at > 0 && request["wait_ms"].(float64) >= asked[at-1]["wait_ms"].(float64) {
			t.Errorf("attempt %d waits for %v after %v", at, request["wait_ms"], asked[at-1]["wait_ms"])
		}
	}
}

// A stand-in for an address at which nothing answers as it should.
func address(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			go serve(conn)
		}
	}()
	return "http://" + listener.Addr().String()
}

// silent takes everything and answers nothing.
func silent(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// halfOpen sends the head of an answer and never its body.
func halfOpen(conn net.Conn) {
	request, err := http.ReadRequest(bufio.NewReader(conn))
	if err == nil {
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n%s: %s\r\n\r\n{", nonceHeader, request.Header.Get(nonceHeader))
	}
	silent(conn)
}

// slow sends a byte at a time: each of them comes in time, and the answer never does.
func slow(conn net.Conn) {
	go silent(conn)
	for _, err := fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nX-Long: "); err == nil; _, err = conn.Write([]byte("x")) {
		// real time: its own slowness.
		time.Sleep(50 * time.Millisecond)
	}
}

// givesUp is a control: the same Lock without a good address, which gives up when the wait and the patience are over. Its
// client is not closed, because that would wait for its patience.
func givesUp(t *testing.T, urls []string, patience time.Duration) <-chan struct{} {
	t.Helper()
	client, err := palisade.New(palisade.Endpoints(urls...), palisade.Patience(patience))
	if err != nil {
		t.Fatal(err)
	}
	ctx, gaveUp := within(t), make(chan struct{})
	go func() {
		defer close(gaveUp)
		_, _ = client.Lock(ctx, "orders", palisade.Wait(3*time.Second))
	}()
	return gaveUp
}

// Every call asks the next address in time, also an acquire that waits, and the release.
func TestAnAddressThatIsSilentIsLeftInTime(t *testing.T) {
	const patience = 2 * time.Second
	for name, serve := range map[string]func(net.Conn){"silent": silent, "half open": halfOpen, "slow": slow} {
		for _, many := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, %d of %d", name, many, many+1), func(t *testing.T) {
				t.Parallel()
				_, server := served(t)
				urls := []string{address(t, serve), address(t, serve), server.URL}[2-many:]
				client := newClient(t, palisade.Endpoints(urls...), palisade.Patience(patience))
				gaveUp := givesUp(t, urls[:many], patience)
				lease, err := client.Lock(within(t), "orders", palisade.Wait(3*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				// A second for each address to say that it waits, and half of the patience.
				select {
				case <-gaveUp:
					t.Error("granted after the control had given up")
				default:
				}
				if err := lease.Release(within(t)); err != nil {
					t.Error(err)
				}
				fresh := newClient(t, palisade.Endpoints(urls...), palisade.Patience(patience))
				if _, err := fresh.Show(within(t), "orders"); err != nil {
					t.Error(err)
				}
				if name == "half open" {
					return // A stream that is open and silent is left after 45 s.
				}
				watch := newClient(t, palisade.Endpoints(urls...), palisade.Patience(patience)).Watch(within(t), "", palisade.After(0))
				if !watch.Next() {
					t.Error(watch.Err())
				}
				watch.Close()
			})
		}
	}
}

// A program in between that answers itself is left, too.
func TestAnAddressWithAnotherProgramIsLeft(t *testing.T) {
	_, server := served(t)
	for name, handler := range map[string]http.HandlerFunc{
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, server.URL+r.URL.Path, http.StatusFound)
		},
		"a 502": func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "<html>Bad gateway</html>", http.StatusBadGateway)
		},
		"unavailable": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(nonceHeader, r.Header.Get(nonceHeader))
			http.Error(w, `{"error": {"code": "unavailable", "message": "m"}}`, http.StatusServiceUnavailable)
		},
	} {
		t.Run(name, func(t *testing.T) {
			other := httptest.NewServer(handler)
			t.Cleanup(other.Close)
			client := newClient(t, palisade.Endpoints(other.URL, server.URL))
			lease := mustLock(t, client, "orders")
			if err := lease.Release(within(t)); err != nil {
				t.Error(err)
			}
			// A control: alone, it is reported, with its address.
			alone := newClient(t, palisade.Endpoints(other.URL), palisade.Patience(200*time.Millisecond))
			if _, err := alone.Show(within(t), "orders"); err == nil {
				t.Error("another program was believed")
			}
		})
	}
}

// A lease that nobody renews any more is lost at its deadline, and says so.
func TestALeaseOfAClosedClientAnnouncesItsLoss(t *testing.T) {
	l := newLiar(t)
	client := newClient(t, palisade.Endpoints(l.url))
	l.does(field("valid_for_ms", 400))
	lease := mustLock(t, client, "orders")
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lease.Lost():
	case <-within(t).Done():
		t.Error("the loss was never announced")
	}
	<-lease.Context().Done()
	if _, err := client.Lock(within(t), "orders"); !errors.Is(err, palisade.ErrInvalid) {
		t.Errorf("%v", err)
	}
}
