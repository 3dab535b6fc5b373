package palisade

import (
	"context"
	"errors"
)

// A Leader is the holder of an election's lock, as of one moment. It is news, not proof: a leader writes through a fence,
// with its token.
type Leader struct {
	ClientID string
	// Token is that of its grant, which rises with each leader.
	Token uint64
	// Value is what it announces, or "".
	Value string
}

// Leader returns the leader of an election: the holder of the lock, and its value; nil if nobody leads. Campaigning is
// Client.Lock with Metadata, which is the value, and resigning is a release.
func (c *Client) Leader(ctx context.Context, name string) (*Leader, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	leader, _, err := c.leader(ctx, name)
	return leader, err
}

// leader also returns the revision of the latest change that the answer knows of.
func (c *Client) leader(ctx context.Context, name string) (*Leader, uint64, error) {
	found, err := c.shown(ctx, name)
	if err != nil {
		return nil, 0, err
	}
	info, err := found.value()
	// A shared lock has no leader.
	if err != nil || info.Holder == nil || info.ReaderCount > 0 {
		return nil, found.Revision, err
	}
	return &Leader{info.Holder.ClientID, info.Holder.Token, info.Holder.Metadata}, found.Revision, nil
}

// Proclaim changes the value that this leader announces, its metadata: at most 256 bytes; "" takes it back. The token stays,
// and observers receive the change. Call it again only after it has returned: of two concurrent calls either value may
// remain.
//
// It is repeated for the client's patience. The errors are those of Release, and ErrInvalid for a reader, a holder of permits
// and several locks.
func (l *Lease) Proclaim(ctx context.Context, value string) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if len(value) > maxMetadataBytes {
		return invalid("the value has %d bytes; 0 to %d are allowed", len(value), maxMetadataBytes)
	}
	if l.Shared() || len(l.grant.slots) > 0 || len(l.wish.names) > 1 {
		return invalid("a leader holds one exclusive lock: readers, permits and several locks have no value")
	}
	if err := l.Check(); err != nil {
		return err
	}
	name := l.wish.name()
	body := struct {
		LeaseKey string `json:"lock_token"`
		Token    uint64 `json:"fencing_token"`
		Value    string `json:"value"`
	}{l.grant.leaseKey, l.grant.token, value}
	differs := func(r reply) string { return l.isOf(name, l.grant.token, r) }
	said := request{method: "POST", path: lockPath(name, "/proclaim"), body: body, differs: differs}
	answer, err := l.client.transport.repeat(ctx, said, now().add(l.client.patience))
	switch {
	case err != nil:
		return about(name, err)
	case answer.over():
		l.lose(name, answer.code())
		return lost(answer.code(), name, l.grant.token)
	case answer.status != 200:
		return answer.err()
	}
	return nil
}

// Observe follows an election until the context ends: first the present leader, then each change.
//
//	election := client.Observe(ctx, "db-primary")
//	defer election.Close()
//	for election.Next() {
//		fmt.Println(election.Leader()) // nil: nobody leads
//	}
//	return election.Err()
//
// It may skip a leader or a value that another one soon followed, never goes back, and always ends with the latest one. It
// goes on across broken connections.
func (c *Client) Observe(ctx context.Context, name string) *Observer {
	o := &Observer{watch: c.Watch(ctx, name), name: name, changed: true}
	if err := checkName(name); err != nil && o.watch.err == nil {
		o.watch.err = err
	}
	return o
}

// An Observer goes through the leaders of an election. It is for one goroutine; Close may be called by others.
type Observer struct {
	noCopy noCopy
	watch  *Watch
	name   string
	// The leader shown last includes all changes up to this revision.
	revision uint64
	// A later change arrived.
	changed bool
	first   bool
	leader  *Leader
}

// Next waits for the next leader, or the next value; the first time it returns at once. It returns false when the context
// ends, after Close, and after an error that connecting again does not cure.
func (o *Observer) Next() bool {
	// The watch is there before the first look, so that no change falls between them.
	for o.watch.begin() {
		if o.changed {
			leader, revision, ok := o.look()
			if !ok {
				continue
			}
			o.changed = false
			isOlder := revision < o.revision
			o.revision = max(o.revision, revision)
			if !isOlder && (!o.first || !same(o.leader, leader)) {
				o.first, o.leader = true, leader
				return true
			}
			continue
		}
		// A change of this lock, or an unknown number of changes of any.
		if o.watch.Next() {
			event := o.watch.Event()
			concerns := event.Kind == "missed" || event.Name == o.name
			o.changed = concerns && (event.Revision == 0 || event.Revision > o.revision)
		}
	}
	o.watch.disconnect()
	return false
}

// look asks until there is an answer. It returns false if there is none yet, or the watch has an error now.
func (o *Observer) look() (*Leader, uint64, bool) {
	leader, revision, err := o.watch.client.leader(o.watch.ctx, o.name)
	switch {
	case err == nil:
		return leader, revision, true
	case o.watch.ctx.Err() != nil:
		o.watch.err = o.watch.ctx.Err()
	case !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrUnknownOutcome):
		o.watch.err = err
	default:
		// The context's error is for the watch to find.
		_ = sleepUntil(o.watch.ctx, now().add(longestPause))
	}
	return nil, 0, false
}

// Leader is the one to which Next went on; nil: nobody leads.
func (o *Observer) Leader() *Leader { return o.leader }

// Err is the reason why Next returned false: the context's error, or the server's refusal.
func (o *Observer) Err() error { return o.watch.Err() }

// Close ends the observation.
func (o *Observer) Close() error { return o.watch.Close() }

func same(a, b *Leader) bool { return a == b || a != nil && b != nil && *a == *b }
