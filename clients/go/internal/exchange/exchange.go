// Package exchange is the seam between a client and its way to a server. What a client decides is above it: addresses,
// repetitions, deadlines, refusals. Below it is HTTP, or the double of package palisadetest.
package exchange

import (
	"context"
	"io"
)

// An Exchange carries one request and brings its answer.
type Exchange interface {
	// Send returns when the head of the answer is there. The context bounds the whole attempt, the body too. The error may
	// be a *Failure; any other one leaves the outcome unknown.
	Send(ctx context.Context, r Request) (*Answer, error)
	// Reset: an answer did not come in time, so nothing that is open now is used for the next request.
	Reset()
}

// A Request is one attempt.
type Request struct {
	Address, Method, Path string
	// Body is JSON, or nil.
	Body []byte
}

// An Answer is one, of which the body may still be on its way. That of a watch has no end.
type Answer struct {
	Status int
	Body   io.ReadCloser
	// Disown ends what the answer came on: it is that of another request, and the next ones would be, too. It may be nil.
	Disown func()
}

// A Failure is an attempt without an answer.
type Failure struct {
	Err error
	// Sent: it may have happened.
	Sent bool
}

func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns the reason.
func (f *Failure) Unwrap() error { return f.Err }
