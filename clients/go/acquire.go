package palisade

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sort"
	"strings"
	"time"
)

// A wish is the caller's request for a lock, or for several at once, with its outcome.
type wish struct {
	// Sorted. The first one names the request in paths and messages.
	names     []string
	clientID  string
	metadata  string
	ttl       time.Duration
	wait      time.Duration
	requestID string
	mode      mode
	// Of a semaphore, or nil.
	permits *wirePermits
	grant   grantOptions
	// Under a lease that the client has already; else empty.
	leaseKey  string
	authority string
	// Of an upgrade: the lease that it takes the place of; else nil.
	reader *Lease

	// An attempt is under way, or ended without certainty: it must be abandoned.
	mayHaveHappened bool
	firstSent       instant
	lastSent        instant
}

// A mode is how a lock is asked for, as the server calls it.
type mode string

const (
	exclusive mode = ""
	// Beside other readers.
	shared mode = "shared"
	// As the one reader that may become the writer.
	update mode = "update"
	// That reader becomes the writer.
	upgrade mode = "upgrade"
)

// isReader tells whether it is held beside other readers.
func (m mode) isReader() bool { return m == shared || m == update }

type wirePermits struct {
	Count int `json:"count"`
	Of    int `json:"of"`
}

// A server that is asked to wait says so after this time: proxies end connections on which nothing comes. An address that
// did not answer last is asked to say so soon, because it may be dead.
const (
	pollTime      = 10 * time.Second
	firstPollTime = time.Second
)

type acquireBody struct {
	ClientID  string `json:"client_id"`
	TTL       int64  `json:"lease_duration_ms,omitempty"`
	Wait      int64  `json:"wait_ms"`
	Poll      int64  `json:"poll_ms,omitempty"`
	RequestID string `json:"request_id"`
	Metadata  string `json:"metadata,omitempty"`
	Mode      mode   `json:"mode,omitempty"`
	LeaseKey  string `json:"lock_token,omitempty"`

	Permits *wirePermits `json:"permits,omitempty"`
	grantFields
	Also []string `json:"also,omitempty"`
}

func (c *Client) newWish(names []string, wait time.Duration, options []LockOption) (*wish, error) {
	names = copied(names)
	sort.Strings(names)
	if err := checkNames(names); err != nil {
		return nil, err
	}
	w := &wish{names: names, ttl: defaultTTL, wait: wait}
	for _, option := range options {
		if option == nil {
			return nil, invalid("an option is nil: leave it out")
		}
		option(w)
	}
	if err := within("the TTL", w.ttl, minTTL, day); err != nil {
		return nil, err
	}
	if err := within("the wait", w.wait, 0, day); err != nil {
		return nil, err
	}
	if err := w.grant.check(); err != nil {
		return nil, err
	}
	if len(w.metadata) > maxMetadataBytes {
		return nil, invalid("the metadata has %d bytes; 0 to %d are allowed", len(w.metadata), maxMetadataBytes)
	}
	if w.mode != exclusive && w.permits != nil {
		return nil, invalid("ask for a shared lock or for permits, not both")
	}
	if len(names) > 1 && (w.mode != exclusive || w.permits != nil || w.grant != (grantOptions{})) {
		return nil, invalid("several locks at once are exclusive: leave out Shared, Update, Permits and options such as LockDelay")
	}
	var err error
	if w.requestID, err = randomID(); err != nil {
		return nil, err
	}
	if w.clientID == "" {
		id, err := randomID()
		if err != nil {
			return nil, err
		}
		w.clientID = c.host + "-" + id
	}
	return w, nil
}

// asReader is the request that makes the writer a reader.
func (w *wish) asReader(writer *Lease) (*wish, error) {
	id, err := randomID()
	return &wish{
		names: w.names, clientID: w.clientID, metadata: w.metadata, ttl: w.ttl, requestID: id, mode: shared,
		leaseKey: writer.grant.leaseKey, authority: writer.grant.authority,
	}, err
}

// asWriter is the request that makes the reader in mode update the writer.
func (w *wish) asWriter(reader *Lease, wait time.Duration) (*wish, error) {
	id, err := randomID()
	return &wish{
		names: w.names, clientID: w.clientID, metadata: w.metadata, ttl: w.ttl, wait: wait, requestID: id, mode: upgrade,
		leaseKey: reader.grant.leaseKey, authority: reader.grant.authority, reader: reader,
	}, err
}

// name is the first lock's name, which represents all of them.
func (w *wish) name() string { return w.names[0] }

func randomID() (string, error) {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", fmt.Errorf("palisade: no random numbers for a request id: %w", err)
	}
	return hex.EncodeToString(random[:]), nil
}

// acquire keeps one request id until the outcome is known. A caller that gets an error must abandon a wish that may have
// happened.
func (t *transport) acquire(ctx context.Context, w *wish, patience time.Duration) (granted, error) {
	waitUntil := now().add(w.wait)
	giveUp := waitUntil.add(patience)
	pauses := newBackoff(giveUp)
	for {
		if w.reader != nil {
			if err := w.reader.Check(); err != nil {
				return granted{}, err
			}
		}
		earlier := w.mayHaveHappened
		t0 := now()
		if w.firstSent == 0 {
			w.firstSent = t0
		}
		w.mayHaveHappened, w.lastSent = true, t0
		address := t.endpoints.current()
		wait, poll := w.times(waitUntil.sub(t0), t.endpoints.isAlive(address))
		until := t0.add(attemptTime(atMost(wait, poll), giveUp.sub(t0), patience))
		answer, follow, failed := t.attempt(ctx, address, w.request(wait, poll), until)
		if follow {
			w.mayHaveHappened = earlier
			continue
		}
		if failed == nil && answer.waits() {
			if failed = t.waitOn(ctx, t0, giveUp); failed == nil {
				continue
			}
		}
		if failed == nil {
			failed = answer.fault()
		}
		if failed == nil && answer.status != 200 {
			w.mayHaveHappened = false
			if w.reader != nil && answer.over() {
				w.reader.lose(w.name(), answer.code())
				return granted{}, w.reader.Check()
			}
			return granted{}, answer.err()
		}
		if failed == nil {
			var grant granted
			if grant, failed = readGrant(t0, answer, w); failed == nil {
				if w.reader != nil {
					if err := w.reader.makeWay(); err != nil {
						return granted{}, err
					}
				}
				w.mayHaveHappened = false
				// Earlier attempts waited, too.
				grant.waited += t0.sub(w.firstSent)
				return grant, nil
			}
		}
		if !failed.unknown {
			w.mayHaveHappened = earlier
		}
		if err := pauses.pause(ctx, failed); err != nil {
			return granted{}, err
		}
	}
}

// times are how long the server is asked to wait, and after which time to say so, if so much is left of the wait. The last
// attempt of a wait waits a moment, too: then the answer says who holds the lock.
func (w *wish) times(left time.Duration, alive bool) (wait, poll time.Duration) {
	if w.wait == 0 {
		return 0, 0
	}
	if alive {
		return atLeast(left, millisecond), pollTime
	}
	return atLeast(left, millisecond), firstPollTime
}

// attemptTime leaves time for the next address: beyond the time that it is asked to wait, a server gets half of the remaining
// time, at most half of the patience.
func attemptTime(asked, left, patience time.Duration) time.Duration {
	return atLeast(asked+atMost(patience, left-asked)/2, leastTime)
}

// waitOn: the server says that the request still waits, and is asked again at once; not in a loop if it says so at once. It is
// a fault to say so when the wait is over long ago.
func (t *transport) waitOn(ctx context.Context, sent, giveUp instant) *fault {
	again := sent.add(firstPause)
	if atLatest := giveUp.add(-leastTime); again >= atLatest || now() >= atLatest {
		return &fault{message: "the server said that the request still waits, after its wait was over", unknown: true}
	}
	if err := sleepUntil(ctx, again); err != nil {
		return &fault{message: err.Error(), unknown: true}
	}
	return nil
}

func (w *wish) request(wait, poll time.Duration) request {
	body := acquireBody{
		ClientID:  w.clientID,
		Wait:      wholeMilliseconds(wait),
		Poll:      wholeMilliseconds(poll),
		RequestID: w.requestID,
		Metadata:  w.metadata,
		Mode:      w.mode,
		LeaseKey:  w.leaseKey,
		Permits:   w.permits,

		grantFields: w.grant.fields(),
		Also:        w.names[1:],
	}
	if w.leaseKey == "" {
		body.TTL = wholeMilliseconds(w.ttl)
	}
	return request{method: "POST", path: lockPath(w.name(), "/acquire"), body: body, differs: w.differs, mayWait: true}
}

// differs tells why an answer is not that of this request; "" if nothing differs.
func (w *wish) differs(r reply) string {
	good := r.status == 200 || r.waits()
	switch {
	case good && !is(r.fields(), "lock_acquired", !r.waits()):
		return differs(r, "lock_acquired", !r.waits())
	case r.waits() && !is(r.fields(), "waiting", true):
		return differs(r, "waiting", true)
	case (good || has(r.fields(), "resource_id")) && !is(r.fields(), "resource_id", w.name()):
		return differs(r, "resource_id", w.name())
	case r.status != 200 || w.leaseKey == "":
		return ""
	case !is(r.fields(), "authority", w.authority):
		return differs(r, "authority", w.authority)
	case !is(r.fields(), "lock_token", w.leaseKey):
		return "the answer is that of another request: lock_token is not that of the lease" // It is not printed.
	}
	return ""
}

// abandon is repeated until the server has acknowledged it, or must have forgotten the grant by itself.
//
// An upgrade may have been granted, and abandoning it would free the lock while the reader still believes. So as long as the
// reader holds, the same request is tried once more: a denial settles it, and the reader goes on.
func (t *transport) abandon(ctx context.Context, w *wish) error {
	until := w.lastSent.add(w.wait + 2*w.ttl)
	pauses := newBackoff(until)
	for {
		limit := atMost(until.sub(now()), 2*time.Second)
		sent := request{
			method: "POST", path: "/v1/requests/" + w.requestID + "/abandon", body: struct{}{},
			differs: isAbout("request_id", w.requestID),
		}
		settles := w.reader != nil && w.reader.hold.holds()
		if settles {
			// It takes the place of an attempt that still waits at the server, and leaves the queue with its connection.
			sent = w.request(0, 0)
		}
		answer, failed := t.send(ctx, sent, limit)
		if failed == nil {
			failed = answer.fault()
		}
		switch {
		case failed != nil:
		case settles && answer.status == 200:
			w.reader.lose(w.name(), "superseded")
			continue
		case settles && answer.over():
			w.reader.lose(w.name(), answer.code())
			return nil
		default:
			return nil
		}
		if err := pauses.pause(ctx, failed); err != nil {
			return err
		}
	}
}

// checkNames takes names that are sorted.
func checkNames(names []string) error {
	if len(names) < 1 || len(names) > maxLocks {
		return invalid("%d locks are named; 1 to %d are allowed", len(names), maxLocks)
	}
	for i, name := range names {
		if err := checkName(name); err != nil {
			return err
		}
		if i > 0 && name == names[i-1] {
			return invalid("the lock %q is named twice", name)
		}
	}
	return nil
}

// checkName also refuses "." and "..": proxies tidy them away, however they are written.
func checkName(name string) error {
	printable := strings.IndexFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) < 0
	if len(name) < 1 || len(name) > 255 || !printable || name == "." || name == ".." {
		return invalid("%q is not the name of a lock: 1 to 255 printable ASCII characters, not . or ..", name)
	}
	return nil
}

// lockPath percent-encodes a name byte by byte.
func lockPath(name, verb string) string {
	const hexadecimal = "0123456789ABCDEF"
	var path strings.Builder
	path.WriteString("/v1/locks/")
	for _, b := range []byte(name) {
		switch {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', strings.IndexByte("-_~.", b) >= 0:
			path.WriteByte(b)
		default:
			path.Write([]byte{'%', hexadecimal[b>>4], hexadecimal[b&15]})
		}
	}
	path.WriteString(verb)
	return path.String()
}
