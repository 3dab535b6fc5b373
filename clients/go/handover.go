package palisade

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"
)

// A lease that was handed over is not held here, and is not released here either.
const handedOver = "handed_over"

const exportedForm = "palisade-lease/1."

// An exported lease, which another process adopts. It has no deadline: that of this machine's clock means nothing on
// another one's.
type exported struct {
	Lock      string   `json:"lock"`
	Authority string   `json:"authority"`
	Token     uint64   `json:"fencing_token"`
	LeaseKey  string   `json:"lock_token"`
	TTL       int64    `json:"ttl_ms"`
	ClientID  string   `json:"client_id"`
	Parts     []string `json:"parts,omitempty"`
	Mode      mode     `json:"mode,omitempty"`
	GrantID   uint64   `json:"grant_id,omitempty"`
	Slots     []int    `json:"slots,omitempty"`
	Permits   int      `json:"permits,omitempty"`
	Metadata  string   `json:"metadata,omitempty"`
}

// Export hands the lease over: the text returned is for Client.Adopt, in another process or on another machine. From the
// call on the lease is not held here: it is not renewed, Check returns a *LostError with the code handed_over, and a
// release sends nothing. It is no loss, so Lost stays open.
//
// The text contains the lease key, which allows to renew and to release: treat it as a secret. Give it to one adopter: two
// could not tell that both hold the lease, and the fence takes the token from either. An adopter has to be there before the
// lease expires.
//
// The error is that of Check if the lease is not held, and ErrInvalid while an upgrade is under way.
func (l *Lease) Export() (string, error) {
	if !l.upgrading.CompareAndSwap(false, true) {
		return "", invalid("an upgrade of %s is under way: hand over the lease that it returns", l.quoted())
	}
	defer l.upgrading.Store(false)
	if err := l.Check(); err != nil {
		return "", err
	}
	held := l.parts.toRenew()
	e := exported{
		Lock:      held[0],
		Authority: l.grant.authority,
		Token:     l.grant.token,
		LeaseKey:  l.grant.leaseKey,
		TTL:       wholeMilliseconds(l.wish.ttl),
		ClientID:  l.wish.clientID,
		Slots:     l.grant.slots,
		Metadata:  l.wish.metadata,
	}
	if len(l.wish.names) > 1 {
		e.Parts = held
	}
	if l.Shared() {
		e.Mode, e.GrantID = l.wish.mode, l.grant.number
	}
	if l.wish.permits != nil {
		e.Permits = l.wish.permits.Of
	}
	text, err := json.Marshal(e)
	if err != nil {
		return "", err
	}
	if !l.hold.end(handedOver) {
		return "", l.Check()
	}
	// A part that was given up, and whose release nobody acknowledged, would be renewed with the others.
	var left []string
	for _, name := range l.parts.toRelease() {
		if !contains(held, name) {
			left = append(left, name)
		}
	}
	if len(left) > 0 {
		until := now().add(2 * l.wish.ttl)
		l.client.inBackground(func(ctx context.Context) { _ = l.release(ctx, left, until) })
	}
	return exportedForm + base64.RawURLEncoding.EncodeToString(text), nil
}

// Adopt takes over a lease that Lease.Export handed over: it is renewed at once, and held from the first renewal that is
// acknowledged, by this machine's clock. Its token is the same. It is released or lost as any other lease, and its context
// has the values of ctx.
//
// The error is ErrLost if the lease is over, ErrUnavailable if nobody answers, and ErrInvalid if the text is not one of an
// exported lease. Then nothing is held here. If one of several locks is over, the others are released.
func (c *Client) Adopt(ctx context.Context, text string) (*Lease, error) {
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	w, grant, err := readExported(text)
	if err != nil {
		return nil, err
	}
	l := &Lease{client: c, wish: w, grant: grant, parts: newParts(w.names)}
	until := now().add(c.patience)
	for at, name := range w.names {
		t0, validFor, err := l.adopt(ctx, name, until)
		if errors.Is(err, ErrLost) && len(w.names) > 1 {
			// The others are useless without it.
			l.giveBack()
		}
		if err != nil {
			return nil, err
		}
		if at == 0 || c.deadline(t0, validFor) < c.deadline(grant.t0, grant.validFor) {
			grant.t0, grant.validFor = t0, validFor
		}
	}
	return c.newLease(valuesOf{ctx}, w, grant)
}

// adopt is the first renewal of a lock: only that which is acknowledged counts, from before it was sent.
func (l *Lease) adopt(ctx context.Context, name string, until instant) (t0 instant, validFor time.Duration, err error) {
	renewal := l.request(name, "/renew", l.isRenewal(name))
	pauses := newBackoff(until)
	for {
		t0 = now()
		answer, failed := l.client.transport.send(ctx, renewal, atLeast(until.sub(t0)/2, leastTime))
		if failed == nil {
			failed = answer.fault()
		}
		if failed == nil {
			switch validFor, ok := readRenewal(answer); {
			case answer.over():
				return 0, 0, lost(answer.code(), name, l.grant.token)
			case answer.status != 200:
				return 0, 0, answer.err()
			case ok:
				return t0, validFor, nil
			}
			failed = broken("valid_for_ms is missing or out of range")
		}
		// A renewal that may have happened leaves nothing behind: the same text may be tried again.
		failed.unknown = false
		if err := pauses.pause(ctx, failed); err != nil {
			return 0, 0, about(name, err)
		}
	}
}

// readExported never puts the text into an error.
func readExported(text string) (*wish, granted, error) {
	e, err := decodeExported(text)
	if err != nil {
		return nil, granted{}, invalid("the text is not that of an exported lease: %v", err)
	}
	w := &wish{
		names: e.Parts, clientID: e.ClientID, metadata: e.Metadata, ttl: time.Duration(e.TTL) * millisecond, mode: e.Mode,
	}
	grant := granted{
		token: e.Token, number: e.Token, leaseKey: e.LeaseKey, authority: e.Authority, slots: e.Slots,
	}
	if e.Mode.isReader() {
		grant.number = e.GrantID
	}
	if len(e.Slots) > 0 {
		w.permits = &wirePermits{len(e.Slots), e.Permits}
	}
	return w, grant, nil
}

func decodeExported(text string) (exported, error) {
	var e exported
	encoded, isOne := strings.CutPrefix(strings.TrimSpace(text), exportedForm)
	if !isOne {
		return e, fmt.Errorf("it does not begin with %q", exportedForm)
	}
	content, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || json.Unmarshal(content, &e) != nil {
		return e, errors.New("it is damaged")
	}
	if e.Parts == nil {
		e.Parts = []string{e.Lock}
	}
	sort.Strings(e.Parts)
	if err := checkNames(e.Parts); err != nil {
		return e, errors.New("lock or parts are missing or out of range")
	}
	w := wish{permits: &wirePermits{Count: len(e.Slots)}}
	reads := e.Mode.isReader()
	switch {
	case e.Parts[0] != e.Lock:
		return e, errors.New("lock is not the first of parts")
	case !isToken(&e.Token), reads && !isToken(&e.GrantID):
		return e, errors.New("fencing_token or grant_id is out of range")
	case e.LeaseKey == "", e.Authority == "", e.ClientID == "":
		return e, errors.New("lock_token, authority or client_id is missing")
	case e.TTL < int64(minTTL/millisecond), e.TTL > int64(day/millisecond):
		return e, errors.New("ttl_ms is out of range")
	case e.Mode != exclusive && !reads:
		return e, errors.New("mode is none of a lease")
	case !w.hasSlots(e.Slots), len(e.Slots) > 0 && (e.Permits < len(e.Slots) || e.Permits > maxPermits):
		return e, errors.New("slots or permits are out of range")
	case len(e.Metadata) > maxMetadataBytes:
		return e, errors.New("metadata is too long")
	}
	return e, nil
}
