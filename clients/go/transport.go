package palisade

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
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
)

// A transport makes attempts, at the address that leads.
type transport struct {
	endpoints *endpoints
	bearer    *bearer
	http      *http.Client
	pool      *http.Transport
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
	}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// A request can be sent again as it is.
type request struct {
	method string
	path   string
	// nil: none.
	body any
}

// send makes one attempt, which ends at the latest after the time given. It follows a leader at once.
func (t *transport) send(ctx context.Context, r request, limit time.Duration) (reply, *fault) {
	until := now().add(limit)
	for {
		address := t.endpoints.current()
		answer, failed := t.attempt(ctx, address, r, until.sub(now()))
		if failed != nil {
			return reply{}, failed
		}
		if !t.endpoints.answered(address, answer) || now().add(leastTime) >= until {
			return answer, nil
		}
	}
}

func (t *transport) attempt(caller context.Context, address string, r request, limit time.Duration) (reply, *fault) {
	ctx, cancel := context.WithTimeout(caller, limit)
	defer cancel()
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	answer, err := t.open(ctx, address, r)
	if err != nil {
		return reply{}, t.failed(caller, address, err, connected.Load())
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswerBytes))
	if err != nil {
		return reply{}, t.failed(caller, address, err, true)
	}
	return readReply(answer.StatusCode, content)
}

// open sends a request and returns when the head of the answer is there.
func (t *transport) open(ctx context.Context, address string, r request) (*http.Response, error) {
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	sent, err := http.NewRequestWithContext(ctx, r.method, address+r.path, body)
	if err != nil {
		return nil, err
	}
	if r.body != nil {
		sent.Header.Set("Content-Type", "application/json")
	}
	if token := t.bearer.current(); token != "" {
		sent.Header.Set("Authorization", "Bearer "+token)
	}
	return t.http.Do(sent)
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
	return &fault{message, connected}
}
