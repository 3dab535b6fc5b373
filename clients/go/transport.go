package palisade

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strings"
	"time"

	"palisade.example/palisade/internal/exchange"
)

const (
	maxAnswerBytes = 16 << 20

	// An attempt with less time than this would only turn "nothing happened" into "unknown".
	leastTime = 50 * millisecond
)

// A transport makes attempts, at the address that leads.
type transport struct {
	endpoints *endpoints
	exchange  exchange.Exchange
	// The settings of the next connection over TLS.
	tls func() *tls.Config
}

func newTransport(s *settings) (*transport, error) {
	if s.exchange != nil {
		noTLS := func() *tls.Config { return nil }
		return &transport{&endpoints{urls: []string{"memory"}}, s.exchange, noTLS}, nil
	}
	bearer, err := newBearer(s)
	if err != nil {
		return nil, err
	}
	endpoints, err := newEndpoints(s.urls, bearer.current() != "")
	if err != nil {
		return nil, err
	}
	web := newWeb(bearer, s.tls)
	t := &transport{endpoints, web, func() *tls.Config { return web.pool.TLSClientConfig }}
	if s.tlsFiles != nil {
		certificates, err := newCertificates(*s.tlsFiles, s.tls)
		if err != nil {
			return nil, err
		}
		web.pool.DialTLSContext = certificates.dial
		t.tls = certificates.current
	}
	return t, nil
}

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
	received, err := t.open(ctx, address, r)
	if err != nil {
		return reply{}, false, t.failed(caller, address, err)
	}
	defer received.Body.Close()
	content, err := io.ReadAll(io.LimitReader(received.Body, maxAnswerBytes))
	if err != nil {
		return reply{}, false, t.failed(caller, address, err)
	}
	answer, failed = readReply(received.Status, content)
	if failed == nil && answer.waits() && !r.mayWait {
		failed = broken("it says that a request waits, which did not ask to wait")
	}
	if failed == nil && r.differs != nil {
		if why := r.differs(answer); why != "" {
			failed = broken(why)
		}
	}
	if failed != nil {
		if received.Disown != nil {
			received.Disown()
		}
		t.endpoints.failed(address)
		return reply{}, false, &fault{message: address + ": " + failed.message, unknown: failed.unknown}
	}
	return answer, t.endpoints.answered(address, answer), nil
}

// open sends a request and returns when the head of its answer is there.
func (t *transport) open(ctx context.Context, address string, r request) (*exchange.Answer, error) {
	var body []byte
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, &exchange.Failure{Err: err}
		}
		body = text
	}
	return t.exchange.Send(ctx, exchange.Request{Address: address, Method: r.method, Path: r.path, Body: body})
}

// failed notes that an attempt got no answer.
func (t *transport) failed(caller context.Context, address string, err error) *fault {
	var without *exchange.Failure
	connected := !errors.As(err, &without) || without.Sent
	if caller.Err() != nil {
		// The caller left. That says nothing about the address.
		return &fault{message: caller.Err().Error(), unknown: connected}
	}
	t.endpoints.failed(address)
	// The attempt's own connection is closed already. Others that are idle may be as silent, and look alive.
	t.exchange.Reset()
	why := err
	if without != nil {
		why = without.Err
	}
	var request *url.Error
	if errors.As(why, &request) {
		why = request.Err // Without the path of the request.
	}
	message := address + ": " + why.Error()
	silent := errors.Is(err, context.DeadlineExceeded)
	if silent {
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
	return &fault{message, connected, silent}
}
