package palisade_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/internal/testserver"
)

// Arguments that people pass: each call works, or its error names the right argument.
func TestArgumentsAsPeopleHaveThem(t *testing.T) {
	server := testserver.Serve(t)
	client := newClient(t, palisade.Endpoints(server.URL), palisade.Patience(2*time.Second))
	ctx := within(t)
	over, end := context.WithCancel(ctx)
	end()
	long := strings.Repeat("x", 256)
	lock := func(name string, options ...palisade.LockOption) func() error {
		return func() error {
			lease, err := client.Lock(ctx, name, options...)
			if err == nil {
				_ = lease.Release(ctx)
			}
			return err
		}
	}
	made := func(options ...palisade.Option) func() error {
		return func() error {
			_, err := palisade.New(options...)
			return err
		}
	}
	lease := mustLock(t, client, "held")
	closed := newClient(t, palisade.Endpoints(server.URL))
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Errorf("a second close: %v", err)
	}
	var none context.Context
	nothing := func(context.Context, *palisade.Lease) error { return nil }
	for _, each := range []struct {
		says string
		kind error
		call func() error
	}{
		{"an option is nil", palisade.ErrInvalid, made(nil)},
		{"option is nil", palisade.ErrInvalid, func() error {
			watch := client.Watch(ctx, "", nil)
			watch.Next()
			return watch.Err()
		}},
		{"is not the address of a server", palisade.ErrInvalid, made(palisade.Endpoints(""))},
		{"the patience is", palisade.ErrInvalid, made(palisade.Patience(-1))},
		{"the patience is", palisade.ErrInvalid, made(palisade.Patience(math.MaxInt64))},
		{"the margin is", palisade.ErrInvalid, made(palisade.Margin(math.MinInt64))},
		{"is not the name of a lock", palisade.ErrInvalid, lock("")},
		{"is not the name of a lock", palisade.ErrInvalid, lock(long)},
		{"is not the name of a lock", palisade.ErrInvalid, lock("..")},
		{"is not the name of a lock", palisade.ErrInvalid, lock("a\n")},
		{"an option is nil", palisade.ErrInvalid, lock("a", nil)},
		{"TTL", palisade.ErrInvalid, lock("a", palisade.TTL(-time.Second))},
		{"TTL", palisade.ErrInvalid, lock("a", palisade.TTL(math.MaxInt64))},
		{"wait", palisade.ErrInvalid, lock("a", palisade.Wait(-1))},
		{"wait", palisade.ErrInvalid, lock("a", palisade.Wait(math.MaxInt64))},
		{"delay", palisade.ErrInvalid, lock("a", palisade.LockDelay(-1))},
		{"at", palisade.ErrInvalid, lock("a", palisade.AtLeastFor(math.MaxInt64))},
		{"metadata", palisade.ErrInvalid, lock("a", palisade.Metadata(long+long))},
		{"client", palisade.ErrInvalid, lock("a", palisade.ClientID(long))},
		{"permits", palisade.ErrInvalid, lock("a", palisade.Permits(-1, 2))},
		{"permits", palisade.ErrInvalid, lock("a", palisade.Permits(3, 2))},
		{"a context is needed", palisade.ErrInvalid, func() error { _, err := client.Lock(none, "a"); return err }},
		{"a context is needed", palisade.ErrInvalid, func() error { _, err := client.Show(none, "a"); return err }},
		{"a context is needed", palisade.ErrInvalid, func() error { return client.With(none, "a", nothing) }},
		{"a context is needed", palisade.ErrInvalid, func() error { _, err := lease.Upgrade(none, 0); return err }},
		{"a context is needed", palisade.ErrInvalid, func() error { _, err := lease.Downgrade(none); return err }},
		{"a context is needed", palisade.ErrInvalid, func() error { _, err := lease.Sequencer(none, "held"); return err }},
		{"a context is needed", palisade.ErrInvalid, func() error { return lease.ReleasePart(none, "held") }},
		{"a context is needed", palisade.ErrInvalid, func() error {
			watch := client.Watch(none, "")
			watch.Next()
			return watch.Err()
		}},
		{"work is nil", palisade.ErrInvalid, func() error { return client.With(ctx, "a", nil) }},
		{"canceled", context.Canceled, func() error { _, err := client.Lock(over, "a"); return err }},
		{"canceled", context.Canceled, func() error { _, err := client.Show(over, "a"); return err }},
		{"0 locks are named", palisade.ErrInvalid, func() error { _, err := client.Locks(ctx, nil); return err }},
		{"named twice", palisade.ErrInvalid, func() error { _, err := client.Locks(ctx, []string{"a", "a"}); return err }},
		{"is not a lock of", palisade.ErrInvalid, func() error { _, err := lease.Part("b"); return err }},
		{"the client is closed", palisade.ErrInvalid, func() error { _, err := closed.Lock(ctx, "a"); return err }},
		{"the client is closed", palisade.ErrInvalid, func() error { _, err := closed.Show(ctx, "a"); return err }},
		{"the client is closed", palisade.ErrInvalid, func() error {
			watch := closed.Watch(ctx, "")
			watch.Next()
			return watch.Err()
		}},
	} {
		err := func() (err error) {
			defer func() {
				if panicked := recover(); panicked != nil {
					t.Errorf("%s: it panicked: %v", each.says, panicked)
				}
			}()
			return each.call()
		}()
		if !errors.Is(err, each.kind) || !strings.Contains(err.Error(), each.says) {
			t.Errorf("%s: %v", each.says, err)
		}
	}
	if err := lease.Check(); err != nil {
		t.Errorf("a call that was refused took the lease: %v", err)
	}
	if err := lease.Release(none); !errors.Is(err, palisade.ErrInvalid) || lease.Check() == nil {
		t.Errorf("a release without a context did not record that nothing is held: %v", err)
	}
	if waiters := show(t, client, "a").Waiters; waiters != 0 {
		t.Errorf("%d requests are left", waiters)
	}
}
