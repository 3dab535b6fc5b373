package palisade

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"palisade.example/palisade/internal/exchange"
)

const (
	connectTimeout = 5 * time.Second
	maxIdle        = 16

	// A request has a nonce of its own in this header, and its answer has the same one.
	nonceHeader = "Palisade-Nonce"
)

// A web is the exchange over HTTP.
type web struct {
	bearer *bearer
	http   *http.Client
	pool   *http.Transport
}

func newWeb(bearer *bearer, config *tls.Config) *web {
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
	return &web{
		bearer: bearer,
		pool:   pool,
		// A redirect would carry the lease key elsewhere.
		http: &http.Client{Transport: pool, CheckRedirect: noRedirect},
	}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Reset: the attempt's own connection is closed already. Others that are idle may be as silent, and look alive.
func (w *web) Reset() { w.pool.CloseIdleConnections() }

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

// Send ends the connection on which the head of another answer arrives.
//
// If a server does not know the caller, the certificate of the connection may have expired. Nothing happened, and a new
// connection uses the current files.
func (w *web) Send(ctx context.Context, r exchange.Request) (*exchange.Answer, error) {
	answer, err := w.sendOnce(ctx, r)
	if err != nil || answer.Status != http.StatusUnauthorized || !strings.HasPrefix(r.Address, "https:") {
		return answer, err
	}
	answer.Body.Close()
	answer.Disown()
	w.pool.CloseIdleConnections()
	return w.sendOnce(ctx, r)
}

func (w *web) sendOnce(ctx context.Context, r exchange.Request) (*exchange.Answer, error) {
	used := &connection{}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: used.got})
	nonce, err := newNonce()
	if err != nil {
		return nil, &exchange.Failure{Err: err}
	}
	var body io.Reader
	if r.Body != nil {
		body = bytes.NewReader(r.Body)
	}
	sent, err := http.NewRequestWithContext(ctx, r.Method, r.Address+r.Path, body)
	if err != nil {
		return nil, &exchange.Failure{Err: err}
	}
	if r.Body != nil {
		sent.Header.Set("Content-Type", "application/json")
	}
	if token := w.bearer.current(); token != "" {
		sent.Header.Set("Authorization", "Bearer "+token)
	}
	sent.Header.Set(nonceHeader, nonce)
	answer, err := w.http.Do(sent)
	if err != nil {
		// Without a connection nothing can have happened.
		return nil, &exchange.Failure{Err: err, Sent: used.isThere()}
	}
	if got := answer.Header[nonceHeader]; len(got) != 1 || got[0] != nonce {
		used.end()
		answer.Body.Close()
		return nil, &strayError{answer.StatusCode}
	}
	return &exchange.Answer{Status: answer.StatusCode, Body: answer.Body, Disown: used.end}, nil
}

func newNonce() (string, error) {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", fmt.Errorf("palisade: no random numbers for a nonce: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(random[:]), nil
}
