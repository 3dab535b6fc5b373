package palisade

import (
	"errors"
	"fmt"
	"time"
)

// Errors by the caller's next step; use them with errors.Is.
var (
	// ErrNotAcquired: the lock was not granted and nothing is held. Trying again later is safe.
	ErrNotAcquired = errors.New("palisade: the lock was not acquired")
	// ErrHeld: another client has the lock, and kept it for as long as the caller was willing to wait. It is an
	// ErrNotAcquired, too; errors.As with *HeldError names the holder.
	ErrHeld = errors.New("palisade: another client has the lock")
	// ErrLost: the lease is over. Stop the work; the next grant has another token.
	ErrLost = errors.New("palisade: the lease is lost")
	// ErrUnavailable: no server could answer, and nothing happened. The same call may be made again.
	ErrUnavailable = errors.New("palisade: no server could answer")
	// ErrUnknownOutcome: no answer came, and the call may have taken effect. An acquire is being abandoned in the
	// background.
	ErrUnknownOutcome = errors.New("palisade: the outcome is unknown")
	// ErrInvalid: the call is wrong, and repeating it does not help. The message names the field and its range.
	ErrInvalid = errors.New("palisade: the call is invalid")
	// ErrOperator: only an operator can help.
	ErrOperator = errors.New("palisade: an operator is needed")
)

// An Error is the failure of a call. Every error of this package that is not the context's own has one in its chain.
type Error struct {
	// Code is the name in the server's table of codes (docs/reference/errors.md).
	Code    string
	Message string
	kind    error
}

func (e *Error) Error() string { return "palisade: " + e.Code + ": " + e.Message }

// Is tells whether target is the error's kind, one of the variables of this package.
func (e *Error) Is(target error) bool {
	return target == e.kind || (target == ErrNotAcquired && e.kind == ErrHeld)
}

// A HeldError says who has the lock.
type HeldError struct {
	Err *Error
	// Holder may be nil: the lock was released in the meantime, or its last grant keeps it closed (code delayed).
	Holder *Holder
	// RetryAfter: when the holder's lease is over unless it is renewed, or the lock opens; 0 if it is not known.
	RetryAfter time.Duration
}

func (e *HeldError) Error() string { return e.Err.Error() }
func (e *HeldError) Unwrap() error { return e.Err }

// A LostError says which lease is over, and why: its code is expired, revoked, superseded, not_held, stale or handed_over.
type LostError struct {
	Err   *Error
	Name  string
	Token uint64
	// Reason is the operator's, if the lease was revoked and the client heard the reason; else "".
	Reason string
}

func (e *LostError) Error() string { return e.Err.Error() }
func (e *LostError) Unwrap() error { return e.Err }

func invalid(format string, arguments ...any) *Error {
	return &Error{"invalid", fmt.Sprintf(format, arguments...), ErrInvalid}
}

func lost(code, name string, token uint64) *LostError {
	reason, known := lossReasons[code]
	if !known {
		reason = code
	}
	message := fmt.Sprintf("the lease of %q (fencing token %d) is lost: %s", name, token, reason)
	return &LostError{Err: &Error{code, message, ErrLost}, Name: name, Token: token}
}

// because adds what the operator said.
func (e *LostError) because(reason string) *LostError {
	if reason != "" {
		e.Reason = reason
		e.Err.Message += fmt.Sprintf(" (%q)", reason)
	}
	return e
}

var lossReasons = map[string]string{
	"expired":    "no renewal was acknowledged in time",
	"not_held":   "it was released",
	"revoked":    "an operator revoked it",
	"superseded": "the same client id acquired the lock again",
	"stale":      "the lock is held with another token",
	handedOver:   "it was handed over to another process",
}
