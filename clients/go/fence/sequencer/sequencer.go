// Package sequencer checks fencing tokens that the authority has signed, for a resource of your own, without asking anybody.
//
// A holder gets the text from palisade.Lease.Sequencer. It does not expire: the fence still compares its token with the
// highest one, and no bound of a jump applies to it: fence.Rule{} decides, not fence.Claim.
package sequencer

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"palisade.example/palisade/fence"
)

const (
	// Header is the header of a request that carries a sequencer.
	Header = "X-Fencing-Sequencer"
	// MaxBytes is the length of the longest sequencer that is looked at.
	MaxBytes = 4096
)

// Modes of a grant.
const (
	Exclusive = "exclusive"
	Shared    = "shared"
	Permits   = "permits"
)

// A Sequencer is the content of a signed token whose signature was verified. It is a fence.Holder.
type Sequencer struct {
	authority, lock string
	token           uint64
	mode            string
	slots           []uint32
	principal       string
}

// Authority is the authority that signed it.
func (s Sequencer) Authority() string { return s.authority }

// Name is the name of the lock.
func (s Sequencer) Name() string { return s.lock }

// Token is the fencing token.
func (s Sequencer) Token() uint64 { return s.token }

// Mode is Exclusive, Shared or Permits.
func (s Sequencer) Mode() string { return s.mode }

// Slots are the slots of a semaphore, rising; none for other locks.
func (s Sequencer) Slots() []uint32 { return append([]uint32(nil), s.slots...) }

// Principal is who holds the grant; "" where the authority does not know.
func (s Sequencer) Principal() string { return s.principal }

// Covers returns a *BadSequencer with the code wrong_lock unless it is for this resource: the one with the lock's name, or
// for permits one of LOCK~SLOT. Without this check, a holder of any lock could raise every fence.
func (s Sequencer) Covers(resource string) error {
	held := []string{s.lock}
	if s.mode == Permits {
		held = nil
		for _, slot := range s.slots {
			held = append(held, fmt.Sprintf("%s~%d", s.lock, slot))
		}
	}
	for _, name := range held {
		if name == resource {
			return nil
		}
	}
	return &BadSequencer{"wrong_lock", fmt.Sprintf("the sequencer is for %s, and this resource is %s: acquire that lock",
		strings.Join(held, ", "), resource)}
}

// A BadSequencer says why a sequencer is not believed.
type BadSequencer struct {
	// Code is bad_sequencer, wrong_authority or wrong_lock (docs/reference/errors.md).
	Code    string
	Message string
}

func (b *BadSequencer) Error() string { return "palisade: " + b.Code + ": " + b.Message }

// Keys are the public keys of one authority. When they change, parse them anew.
type Keys struct {
	issuer string
	keys   map[string]ed25519.PublicKey
}

// ParseKeys reads the text of an authority's /.well-known/jwks.json. Keys of other kinds than Ed25519 are left out.
func ParseKeys(jwks []byte) (*Keys, error) {
	set, err := object(bytes.TrimSpace(jwks))
	var listed []json.RawMessage
	if err != nil || json.Unmarshal(set["keys"], &listed) != nil {
		return nil, badKeys("this is not a set of keys")
	}
	issuer, ok := text(set["issuer"])
	if !ok || fence.CheckResource(issuer) != nil {
		return nil, badKeys("issuer is not the name of an authority")
	}
	found := &Keys{issuer, map[string]ed25519.PublicKey{}}
	for _, each := range listed {
		key, err := object(each)
		if err != nil {
			return nil, badKeys("this is not a set of keys")
		}
		kind, _ := text(key["kty"])
		curve, _ := text(key["crv"])
		if kind != "OKP" || curve != "Ed25519" {
			continue
		}
		kid, ok := text(key["kid"])
		if !ok {
			return nil, badKeys("a key has no kid")
		}
		encoded, _ := text(key["x"])
		x, ok := decoded(encoded)
		if !ok || len(x) != ed25519.PublicKeySize {
			return nil, badKeys(fmt.Sprintf("x of the key %q is not 32 bytes", kid))
		}
		if _, twice := found.keys[kid]; twice {
			return nil, badKeys(fmt.Sprintf("two keys are called %q", kid))
		}
		found.keys[kid] = x
	}
	if len(found.keys) == 0 {
		return nil, badKeys("it has no key for Ed25519")
	}
	return found, nil
}

// Issuer is the authority whose keys these are.
func (k *Keys) Issuer() string { return k.issuer }

// Check checks a sequencer that was presented at a resource: that the authority issued it, that it is for this resource,
// and that a reader does not write. The error is a *BadSequencer.
func (k *Keys) Check(presented, resource string, writes bool) (Sequencer, error) {
	s, err := k.Verify(presented)
	if err != nil {
		return Sequencer{}, err
	}
	if err := s.Covers(resource); err != nil {
		return Sequencer{}, err
	}
	if writes && s.mode == Shared {
		return Sequencer{}, bad("the sequencer is a reader's (mode shared), and this request writes")
	}
	return s, nil
}

// Verify checks that the authority issued it. Whether it is for the resource at hand is asked of Sequencer.Covers. The
// error is a *BadSequencer.
func (k *Keys) Verify(presented string) (Sequencer, error) {
	if len(presented) > MaxBytes {
		return Sequencer{}, malformed(fmt.Sprintf("it is longer than %d bytes", MaxBytes))
	}
	split := strings.Split(presented, ".")
	if len(split) != 3 {
		return Sequencer{}, malformed(threeParts)
	}
	var parts [3][]byte
	for at, part := range split {
		content, ok := decoded(part)
		if !ok {
			return Sequencer{}, malformed(threeParts)
		}
		parts[at] = content
	}
	key, err := k.named(parts[0])
	if err != nil {
		return Sequencer{}, err
	}
	if !ed25519.Verify(key, []byte(split[0]+"."+split[1]), parts[2]) {
		return Sequencer{}, bad("the sequencer's signature is wrong: the authority did not issue it")
	}
	return k.read(parts[1])
}

// named finds the key that a header names. The algorithm is never taken from the header: "none" is one, too.
func (k *Keys) named(content []byte) (ed25519.PublicKey, error) {
	header, err := object(content)
	algorithm, hasAlgorithm := text(header["alg"])
	kid, hasKid := text(header["kid"])
	kind, hasKind := text(header["typ"])
	if err != nil || len(header) != 3 || !hasAlgorithm || !hasKid || !hasKind {
		return nil, malformed("its header must have alg, kid and typ, once each")
	}
	if algorithm != "EdDSA" {
		return nil, bad(fmt.Sprintf("the sequencer's algorithm is %.64q: only EdDSA is accepted", algorithm))
	}
	if kind != "palisade-sequencer" {
		return nil, malformed("its typ is not palisade-sequencer")
	}
	key, known := k.keys[kid]
	if !known {
		return nil, bad(fmt.Sprintf(
			"the sequencer names the key %.64q, which is not known here: get the authority's /.well-known/jwks.json again", kid))
	}
	return key, nil
}

// read takes a payload whose signature is right.
func (k *Keys) read(content []byte) (Sequencer, error) {
	claims, err := object(content)
	if err != nil {
		return Sequencer{}, malformed(payload)
	}
	s := Sequencer{authority: k.issuer}
	for name := range claims {
		switch name {
		case "iss", "lock", "mode", "token", "slots", "sub":
		default:
			return Sequencer{}, malformed(payload)
		}
	}
	issuer, hasIssuer := text(claims["iss"])
	lock, hasLock := text(claims["lock"])
	mode, _ := text(claims["mode"])
	token, hasToken := number(claims["token"], 64)
	if !hasIssuer || !hasLock || !hasToken || (mode != Exclusive && mode != Shared && mode != Permits) {
		return Sequencer{}, malformed(payload)
	}
	if sub, named := claims["sub"]; named && string(sub) != "null" {
		if s.principal, named = text(sub); !named {
			return Sequencer{}, malformed(payload)
		}
	}
	if issuer != k.issuer {
		return Sequencer{}, &BadSequencer{"wrong_authority", fmt.Sprintf(
			"authority %.64s issued the sequencer, and the keys here belong to %s", issuer, k.issuer)}
	}
	slots, ok := rising(claims["slots"])
	if !ok || (len(slots) == 0) == (mode == Permits) {
		return Sequencer{}, malformed("its slots do not fit its mode")
	}
	if fence.CheckResource(lock) != nil {
		return Sequencer{}, malformed("its lock is not a name")
	}
	if fence.CheckToken(token) != nil {
		return Sequencer{}, malformed("its token is out of range")
	}
	s.lock, s.mode, s.token, s.slots = lock, mode, token, slots
	return s, nil
}

const (
	threeParts = "it must have three parts in base64url, with dots between them"
	payload    = "its payload is not that of a sequencer"
)

// decoded reads base64url in its one spelling. The decoder by itself skips line ends, so two texts would be one sequencer.
func decoded(part string) ([]byte, bool) {
	content, err := base64.RawURLEncoding.Strict().DecodeString(part)
	return content, err == nil && !strings.ContainsAny(part, "\r\n")
}

var errTwice = errors.New("a member occurs twice")

// object reads a JSON object in UTF-8, in which no member stands twice: two readers could take different ones. Names are
// compared as they are, which encoding/json does not do for a struct.
func object(content []byte) (map[string]json.RawMessage, error) {
	if !utf8.Valid(content) || !bytes.HasPrefix(content, []byte("{")) || !json.Valid(content) {
		return nil, errors.New("not a JSON object")
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	if _, err := decoder.Token(); err != nil {
		return nil, err
	}
	found := map[string]json.RawMessage{}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		key, _ := name.(string)
		if _, twice := found[key]; twice {
			return nil, errTwice
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, err
		}
		found[key] = value
	}
	return found, nil
}

func text(raw json.RawMessage) (string, bool) {
	var found string
	ok := bytes.HasPrefix(raw, []byte(`"`)) && json.Unmarshal(raw, &found) == nil
	return found, ok
}

func number(raw json.RawMessage, bits int) (uint64, bool) {
	found, err := strconv.ParseUint(string(raw), 10, bits)
	return found, err == nil
}

// rising reads slots; they may be left out.
func rising(raw json.RawMessage) (slots []uint32, ok bool) {
	var listed []json.RawMessage
	if raw == nil {
		return nil, true
	}
	if string(raw) == "null" || json.Unmarshal(raw, &listed) != nil {
		return nil, false
	}
	before := uint64(0)
	for _, each := range listed {
		slot, ok := number(each, 32)
		if !ok || slot <= before {
			return nil, false
		}
		before = slot
		slots = append(slots, uint32(slot))
	}
	return slots, true
}

func bad(message string) *BadSequencer { return &BadSequencer{"bad_sequencer", message} }

func malformed(why string) *BadSequencer { return bad("the sequencer is malformed: " + why) }

func badKeys(why string) error {
	return fmt.Errorf("palisade: %s; it should be what the authority has at /.well-known/jwks.json", why)
}
