// Package httpfence presents a fencing token to an HTTP API behind palisade gateway, or to a service with Palisade's tower
// layer.
//
//	api := &http.Client{Transport: httpfence.Transport(lease, nil)}
//	answer, err := api.Do(httpfence.Claim(request)) // first: raises the fence
//	…
//	answer, err = api.Do(httpfence.Numbered(put, 1)) // with a number a write is safe to repeat
//	…
//	if err := httpfence.Check(answer); err != nil {
//		return err // fence.ErrStale: a newer holder has claimed
//	}
package httpfence

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"

	"palisade.example/palisade/fence"
)

const maxProblemBytes = 64 << 10

// Transport adds the holder's headers to every request, and sends it through next; nil is http.DefaultTransport.
// A request of a holder that no longer holds is not sent: its error is that of the holder's Check.
func Transport(holder fence.Holder, next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
	}
	return &transport{holder, next}
}

type transport struct {
	holder fence.Holder
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := fence.CheckHolder(t.holder); err != nil {
		// The contract of a RoundTripper: the body is closed, also when nothing is sent.
		if request.Body != nil {
			request.Body.Close()
		}
		return nil, err
	}
	// Check finds the holder in the context of the answer's request.
	request = request.Clone(context.WithValue(request.Context(), holderKey{}, t.holder))
	SetHeaders(request.Header, t.holder)
	answer, err := t.next.RoundTrip(request)
	if answer != nil && answer.Request == nil {
		answer.Request = request
	}
	return answer, err
}

type holderKey struct{}

// tell tells the authority of the request's holder, if the fence refused it as stale.
func tell(request *http.Request, rejection *fence.Rejection) error {
	if request == nil {
		return rejection
	}
	holder, presented := request.Context().Value(holderKey{}).(fence.Holder)
	if !presented {
		return rejection
	}
	operation := request.Header.Get("X-Fencing-Operation")
	if operation != "claim" {
		// Not the query, which may contain secrets.
		operation = request.Method + " " + request.URL.EscapedPath()
	}
	return fence.Tell(holder, request.URL.Host, operation, rejection)
}

// SetHeaders sets the headers of a holder, for a client that is not net/http.
func SetHeaders(header http.Header, holder fence.Holder) {
	header.Set("X-Fencing-Token", strconv.FormatUint(holder.Token(), 10))
	if authority := holder.Authority(); authority != "" {
		header.Set("X-Fencing-Authority", authority)
	}
	if name := holder.Name(); name != "" {
		header.Set("X-Fencing-Lock", name)
	}
}

// Claim makes a request one that raises the fence and does nothing else. It returns the request.
func Claim(request *http.Request) *http.Request {
	request.Header.Set("X-Fencing-Operation", "claim")
	return request
}

// Numbered gives a write its number among those of the grant, 0 – fence.MaxToken, with which it is safe to repeat. It
// returns the request.
func Numbered(request *http.Request, sequence uint64) *http.Request {
	request.Header.Set("X-Fencing-Sequence", strconv.FormatUint(sequence, 10))
	return request
}

// Check returns a *fence.Rejection if the fence refused the request. Other answers are left alone: their body can still be
// read. An answer of the gateway that is no rejection, such as unavailable, is the service's to its caller: it has a status
// of 400 or more.
func Check(answer *http.Response) error {
	if answer.StatusCode < 400 || answer.Body == nil {
		return nil
	}
	head, err := io.ReadAll(io.LimitReader(answer.Body, maxProblemBytes))
	answer.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), answer.Body), answer.Body}
	if err != nil {
		return err
	}
	var told struct {
		Error struct {
			Code      string `json:"code"`
			Token     uint64 `json:"token"`
			Highest   uint64 `json:"highest"`
			Last      uint64 `json:"last"`
			Bound     uint64 `json:"bound"`
			Authority string `json:"authority"`
			Lock      string `json:"lock"`
		} `json:"error"`
	}
	if json.Unmarshal(head, &told) != nil || !rejections[told.Error.Code] {
		return nil
	}
	e := told.Error
	return tell(answer.Request, &fence.Rejection{
		Code: e.Code, Token: e.Token, Highest: e.Highest, Last: e.Last, Bound: e.Bound, Authority: e.Authority, Lock: e.Lock,
	})
}

var rejections = map[string]bool{
	"stale": true, "wrong_authority": true, "wrong_lock": true, "jump": true, "tokenless": true,
	"sequence_stale": true, "sequence_reused": true, "already_written": true, "missing": true,
}
