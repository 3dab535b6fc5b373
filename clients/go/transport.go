package palisade

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

const (
	connectTimeout = 5 * time.Second
	maxIdle        = 16
	maxAnswerBytes = 16 << 20

	// An attempt with less time than this would only turn "nothing happened" into "unknown".
	leastTime = 50 * millisecond

	// A request has a nonce of its own in this header, and its answer has the same one.
	nonceHeader = "Palisade-Nonce"
)

// A transport makes attempts, at the address that leads.
type transport struct {
	endpoints *endpoints
	bearer    *bearer
	http      *http.Client
	pool      *http.Transport
	// The settings of the next connection over TLS.
	tls func() *tls.Config
}

func newTransport(endpoints *endpoints, bearer *bearer, config *tls.Config) *transport {
	pool := &http.Transport{
		// A proxy of the environment would keep connections and time-outs of its own.
		Proxy:               nil,
		DialContext:         (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSHandshakeTimeout: connectTimeout,
		MaxIdleConnsPerHost: maxIdle,
		IdleConnTimeout:     90 * time.Second,
		// HTTP/1.1 only: a request that gets no answer in time then ends its connection, so the next one is sent on
		// another. With HTTP/2 it would share the connection on which nothing comes back.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	if config != nil {
		pool.TLSClientConfig = config.Clone()
	}
	return &transport{
		endpoints: endpoints,
		bearer:    bearer,
		pool:      pool,
		// A redirect would carry the lease key elsewhere.
		http: &http.Client{Transport: pool, CheckRedirect: noRedirect},
		tls:  func() *tls.Config { return pool.TLSClientConfig },
	}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// A request can be sent again as it is.
type request struct {
	method string
	path   string
	// nil: none.
	body any
	// Tells why an answer belongs to another request; "" if it may be that of this one. nil: the nonce says enough.
	differs func(reply) string
	// The server may say that it waits.
	mayWait bool
}

// send makes one attempt, which ends at the latest after the time given. It follows a leader at once.
func (t *transport) send(ctx context.Context, r request, limit time.Duration) (reply, *fault) {
	until := now().add(limit)
	for {
		answer, follow, failed := t.attempt(ctx, t.endpoints.current(), r, until)
		if failed != nil || !follow || now().add(leastTime) >= until {
			return answer, failed
		}
	}
}

// attempt asks one address, and tells whether the leader that it names is to be asked at once.
func (t *transport) attempt(
	caller context.Context, address string, r request, until instant,
) (answer reply, follow bool, failed *fault) {
	ctx, cancel := context.WithTimeout(caller, until.sub(now()))
	defer cancel()
	var used connection
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: used.got})
	response, err := t.open(ctx, address, r)
	if err != nil {
		return reply{}, false, t.failed(caller, address, err, used.isThere())
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err != nil {
		return reply{}, false, t.failed(caller, address, err, true)
	}
	answer, failed = readReply(response.StatusCode, content)
	if failed == nil && answer.waits() && !r.mayWait {
		failed = broken("it says that a request waits, which did not ask to wait")
	}
	if failed == nil && r.differs != nil {
		if why := r.differs(answer); why != "" {
			failed = broken(why)
		}
	}
	if failed != nil {
		used.end()
		t.endpoints.failed(address)
		return reply{}, false, &fault{address + ": " + failed.message, failed.unknown}
	}
	return answer, t.endpoints.answered(address, answer), nil
}

// A connection is that of an attempt, once there is one.
type connection struct{ inner atomic.Pointer[net.Conn] }

func (c *connection) got(info httptrace.GotConnInfo) { c.inner.Store(&info.Conn) }

func (c *connection) isThere() bool { return c.inner.Load() != nil }

// end closes the connection, even if it is back in the pool: its next answers would be wrong, too.
func (c *connection) end() {
	if inner := c.inner.Load(); inner != nil {
		(*inner).Close()
	}
}

// A strayError is an answer that does not have the nonce of its request.
type strayError struct{ status int }

func (e *strayError) Error() string {
	return fmt.Sprintf("the answer (status %d) is not that of this request: perhaps a program in between sent it", e.status)
}

// open sends a request and returns when the head of its answer is there. The head of another answer is an error, and ends
// the connection.
//
// If a server does not know the caller, the certificate of the connection may have expired. Nothing happened, and a new
// connection uses the current files.
func (t *transport) open(ctx context.Context, address string, r request) (*http.Response, error) {
	answer, used, err := t.openOnce(ctx, address, r)
	if err != nil || answer.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(address, "https:") {
		return answer, err
	}
	answer.Body.Close()
	used.end()
	t.pool.CloseIdleConnections()
	answer, _, err = t.openOnce(ctx, address, r)
	return answer, err
}

func (t *transport) openOnce(ctx context.Context, address string, r request) (*http.Response, *connection, error) {
	used := &connection{}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: used.got})
	nonce, err := newNonce()
	if err != nil {
		return nil, nil, err
	}
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, nil, err
		}
		body = bytes.NewReader(text)
	}
	sent, err := http.NewRequestWithContext(ctx, r.method, address+r.path, body)
	if err != nil {
		return nil, nil, err
	}
	if r.body != nil {
		sent.Header.Set("Content-Type", "application/json")
	}
	if token := t.bearer.current(); token != "" {
		sent.Header.Set("Authorization", "Bearer "+token)
	}
	sent.Header.Set(nonceHeader, nonce)
	answer, err := t.http.Do(sent)
	if err != nil {
		return nil, nil, err
	}
	if got := answer.Header[nonceHeader]; len(got) != 1 || got[0] != nonce {
		used.end()
		answer.Body.Close()
		return nil, nil, &strayError{answer.StatusCode}
	}
	return answer, used, nil
}

func newNonce() (string, error) {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", fmt.Errorf("palisade: no random numbers for a nonce: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(random[:]), nil
}

// failed notes that an attempt got no answer: without a connection nothing can have happened.
func (t *transport) failed(caller context.Context, address string, err error, connected bool) *fault {
	if caller.Err() != nil {
		// The caller left. That says nothing about the address.
		return &fault{caller.Err().Error(), connected}
	}
	t.endpoints.failed(address)
	// The attempt's own connection is closed already. Others that are idle may be as silent, and look alive.
	t.pool.CloseIdleConnections()
	why := err
	var request *url.Error
	if errors.As(err, &request) {
		why = request.Err // Without the path of the request.
	}
	message := address + ": " + why.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		message = address + " did not answer in time"
	}
	if !connected {
		server := "a server"
		if strings.HasPrefix(address, "https:") {
			server = "a server with TLS"
		}
		message += ". Is " + server + " running there? If not, start one with `palisade serve`, or name another address (PALISADE_URL)"
	}
	if strings.HasPrefix(address, "https:") {
		message += ended(t.tls())
	}
	return &fault{message, connected}
}
