// Package fence contains the types that all fences share: the holder that presents a token, and the reason of a rejection.
//
// A fence makes a fencing token count at the resource itself: package postgres and package mysql in the caller's own
// transaction, package httpfence at an API behind palisade gateway. Claim first, before the first read; then read, think
// and write. Each step is refused with ErrStale if a newer holder has claimed the resource: then give up.
package fence

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// MaxToken is the largest fencing token; sequence numbers end there, too.
const MaxToken = 1<<53 - 1

// A Holder presents its token with the authority that granted it and the name of the lock. A *palisade.Lease is one.
// An authority or a name may be empty: then it is not known. If it has a method Check() error, as a lease has, every fence
// calls that first: a holder that lost its lease, or released it, sends nothing.
type Holder interface {
	Token() uint64
	Authority() string
	Name() string
}

// A Token is a Holder of which only the token is known.
type Token uint64

// Token returns the number.
func (t Token) Token() uint64 { return uint64(t) }

// Authority returns "": it is not known.
func (t Token) Authority() string { return "" }

// Name returns "": it is not known.
func (t Token) Name() string { return "" }

// A Pass is a Holder made of its parts, as another process may have handed them over.
type Pass struct {
	token           uint64
	authority, name string
}

// NewPass makes a Pass; an authority or a name that is not known is "".
func NewPass(token uint64, authority, name string) Pass { return Pass{token, authority, name} }

// Token returns the fencing token.
func (p Pass) Token() uint64 { return p.token }

// Authority returns the authority that granted the token.
func (p Pass) Authority() string { return p.authority }

// Name returns the name of the lock.
func (p Pass) Name() string { return p.name }

var (
	// ErrStale: a newer holder has claimed the resource. Roll back, write nothing more, and give up. It is an
	// ErrRejected, too.
	ErrStale = errors.New("palisade: a newer holder has claimed the resource")
	// ErrRejected: the fence refuses the operation, and nothing changed. errors.As with *Rejection says why.
	ErrRejected = errors.New("palisade: the fence refuses the operation")
	// ErrNotInstalled: the tables of the fence are missing. The message names the command to run.
	ErrNotInstalled = errors.New("palisade: the fence is not installed")
)

// A Rejection is why a fence does not admit an operation. Fields that do not belong to the code are zero.
type Rejection struct {
	// Code is stale, wrong_authority, wrong_lock, jump, sequence_stale, sequence_reused, already_written, tokenless or
	// missing (docs/reference/errors.md).
	Code string
	// Token is the one that is refused: for stale.
	Token uint64
	// Highest is the highest token that was admitted: for stale, tokenless and jump.
	Highest uint64
	// Last is the highest sequence number: for sequence_stale and sequence_reused.
	Last uint64
	// Bound is how far one token is believed: for jump.
	Bound uint64
	// Authority is the one that the resource belongs to: for wrong_authority.
	Authority string
	// Lock is the one that the resource belongs to: for wrong_lock.
	Lock string
}

func (r *Rejection) Error() string {
	said, known := rejections[r.Code]
	if !known {
		said = r.Code
	}
	if r.Code == "stale" && r.Token != 0 {
		return fmt.Sprintf("palisade: token %d is stale: %d < %d; %s", r.Token, r.Token, r.Highest, said)
	}
	var details []string
	for _, detail := range []struct {
		name  string
		value any
		told  bool
	}{
		{"highest", r.Highest, r.Highest != 0},
		{"last", r.Last, r.Code == "sequence_stale" || r.Code == "sequence_reused"},
		{"bound", r.Bound, r.Bound != 0},
		{"authority", r.Authority, r.Authority != ""},
		{"lock", r.Lock, r.Lock != ""},
	} {
		if detail.told {
			details = append(details, fmt.Sprintf("%s: %v", detail.name, detail.value))
		}
	}
	if len(details) > 0 {
		said += " (" + strings.Join(details, ", ") + ")"
	}
	return "palisade: " + said
}

// Is tells whether target is ErrRejected, or ErrStale for a stale token.
func (r *Rejection) Is(target error) bool {
	return target == ErrRejected || (target == ErrStale && r.Code == "stale")
}

var rejections = map[string]string{
	"stale":           "a newer holder has claimed this resource: give up, and write nothing more",
	"wrong_authority": "the resource belongs to another authority: tokens of two authorities are never compared",
	"wrong_lock":      "the resource belongs to another lock",
	"jump":            "the token is too far above the highest that this resource has seen",
	"sequence_stale":  "a later write of this grant was already carried out: this is a late duplicate",
	"sequence_reused": "this sequence number was used for another write of this grant",
	"already_written": "there was already a write under this token",
	"tokenless":       "the resource is fenced, and this write has no fencing token",
	"missing":         "there is nothing to change",
}

// A Late is a late write that a resource refused, because its token was stale.
type Late struct {
	// Lock is the name that the holder presented; "" if it presented none.
	Lock     string
	Resource string
	// Operation is a word or two, without anything of the write's content.
	Operation string
	// Highest is the highest token that the resource had seen.
	Highest uint64
}

// Tell is for fences. If err is ErrStale and the holder has a method Refused(Late), as a lease has, it calls that: the lease's
// authority is told in the background. It returns err.
func Tell(holder Holder, resource, operation string, err error) error {
	rejection := (*Rejection)(nil)
	if err == nil || !errors.As(err, &rejection) || rejection.Code != "stale" {
		return err
	}
	if told, ok := holder.(interface{ Refused(Late) }); ok {
		told.Refused(Late{Lock: holder.Name(), Resource: resource, Operation: operation, Highest: rejection.Highest})
	}
	return err
}

// CheckToken refuses numbers that are not fencing tokens.
func CheckToken(token uint64) error {
	if token < 1 || token > MaxToken {
		return fmt.Errorf("palisade: %d is not a fencing token: 1 to %d are allowed", token, uint64(MaxToken))
	}
	return nil
}

// CheckHolder refuses numbers that are not fencing tokens, and a holder that has lost its lease.
func CheckHolder(holder Holder) error {
	// A *Lease that is nil is a Holder that is not: the error of the acquire was not looked at.
	if value := reflect.ValueOf(holder); !value.IsValid() || (value.Kind() == reflect.Pointer && value.IsNil()) {
		return errors.New("palisade: a fence needs a holder, and this one is nil: was the lock acquired?")
	}
	if checked, ok := holder.(interface{ Check() error }); ok {
		if err := checked.Check(); err != nil {
			return err
		}
	}
	return CheckToken(holder.Token())
}

// CheckSequence refuses numbers that are not sequence numbers.
func CheckSequence(sequence uint64) error {
	if sequence > MaxToken {
		return fmt.Errorf("palisade: the sequence number %d is out of range: 0 to %d are allowed", sequence, uint64(MaxToken))
	}
	return nil
}

// CheckResource refuses text that is not a resource's name.
func CheckResource(name string) error {
	unprintable := strings.IndexFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) >= 0
	if name == "" || len(name) > 255 || unprintable {
		return fmt.Errorf("palisade: %q is not the name of a resource: 1 to 255 printable ASCII characters", name)
	}
	return nil
}
