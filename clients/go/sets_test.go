package palisade_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/fence"
)

func holders(t *testing.T, client *palisade.Client, names ...string) []uint64 {
	t.Helper()
	var tokens []uint64
	for _, name := range names {
		token := uint64(0)
		if holder := show(t, client, name).Holder; holder != nil {
			token = holder.Token
		}
		tokens = append(tokens, token)
	}
	return tokens
}

func TestSeveralLocksAreOneLease(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		lease, err := client.Locks(within(t), []string{"b", "a", "c"}, palisade.Wait(0), palisade.ClientID("me"))
		if err != nil {
			t.Fatal(err)
		}
		token := lease.Token()
		if found := holders(t, client.Client, "a", "b", "c"); !reflect.DeepEqual(found, []uint64{token, token, token}) {
			t.Errorf("token %d, held under %v", token, found)
		}
		if names := lease.Locks(); !reflect.DeepEqual(names, []string{"a", "b", "c"}) || lease.Name() != "" {
			t.Errorf("%v, %q", names, lease.Name())
		}
		if said := lease.String(); !strings.Contains(said, `"a", "b", "c"`) {
			t.Error(said)
		}
		if _, err := client.Locks(within(t), []string{"c", "d"}, palisade.Wait(0)); !errors.Is(err, palisade.ErrHeld) {
			t.Errorf("%v", err)
		}
		for range []int{1, 2} {
			if err := lease.ReleasePart(within(t), "b"); err != nil {
				t.Fatal(err)
			}
		}
		if found := holders(t, client.Client, "a", "b", "c", "d"); !reflect.DeepEqual(found, []uint64{token, 0, token, 0}) {
			t.Errorf("token %d, held under %v", token, found)
		}
		if err := lease.Check(); err != nil {
			t.Error(err)
		}
		if err := lease.Release(within(t)); err != nil {
			t.Error(err)
		}
		if found := holders(t, client.Client, "a", "c"); !reflect.DeepEqual(found, []uint64{0, 0}) {
			t.Errorf("held under %v after the release", found)
		}
	})
}

func TestALossNamesTheLockThatIsOver(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		err := client.WithLocks(within(t), []string{"a", "b"}, func(ctx context.Context, lease *palisade.Lease) error {
			if err := client.Break(within(t), "b", lease.Token(), "the test"); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}, palisade.TTL(9*time.Second))
		var lost *palisade.LostError
		if !errors.As(err, &lost) || lost.Name != "b" {
			t.Errorf("%v", err)
		}
		if found := holders(t, client.Client, "a", "b"); !reflect.DeepEqual(found, []uint64{0, 0}) {
			t.Errorf("held under %v", found)
		}
	})
}

func TestWhatIsWrongWithSeveralLocksIsToldBeforeAnythingIsSent(t *testing.T) {
	client := newClient(t, palisade.Endpoints("http://127.0.0.1:1"))
	var many []string
	for n := 0; n < 65; n++ {
		many = append(many, fmt.Sprint("lock-", n))
	}
	two := []string{"a", "b"}
	for _, wrong := range []struct {
		names  []string
		option palisade.LockOption
		says   string
	}{
		{nil, palisade.Wait(0), "0 locks"},
		{many, palisade.Wait(0), "65 locks"},
		{[]string{"a", "b", "a"}, palisade.Wait(0), `"a" is named twice`},
		{[]string{"a", ""}, palisade.Wait(0), "name of a lock"},
		{two, palisade.Shared(), "exclusive"},
		{two, palisade.Permits(1, 2), "exclusive"},
		{two, palisade.LockDelay(time.Second), "exclusive"},
		{two, palisade.AtLeastFor(time.Second), "exclusive"},
	} {
		_, err := client.Locks(within(t), wrong.names, wrong.option)
		if !errors.Is(err, palisade.ErrInvalid) || !strings.Contains(err.Error(), wrong.says) {
			t.Errorf("%v: %v", wrong.says, err)
		}
	}
}

func TestEachFenceIsBoundToItsOwnLock(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		both, err := client.Locks(within(t), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		part, err := both.Part("b")
		if err != nil {
			t.Fatal(err)
		}
		claimed := func(record fence.Record, holder fence.Holder) (fence.Record, string) {
			next, _, rejected := fence.Claim.Decide(record, holder, fence.Operation{Kind: fence.KindClaim})
			if rejected != nil {
				return next, rejected.Code
			}
			return next, ""
		}
		record, _ := claimed(fence.Record{}, part)
		if record.Lock != "b" || record.Token != both.Token() || record.Authority != both.Authority() {
			t.Errorf("%+v", record)
		}
		// Without a name the fence stays open for the name of the next holder.
		nameless, code := claimed(fence.Record{}, both)
		if code != "" || nameless.Lock != "" {
			t.Errorf("%+v, %q", nameless, code)
		}
		// Control: the name of another lock keeps the next holder out.
		other, err := both.Part("a")
		if err != nil {
			t.Fatal(err)
		}
		misnamed, _ := claimed(fence.Record{}, other)
		if err := both.ReleasePart(within(t), "b"); err != nil {
			t.Fatal(err)
		}
		next := mustLock(t, client.Client, "b")
		for _, fenced := range []struct {
			record fence.Record
			code   string
		}{{record, ""}, {nameless, ""}, {misnamed, "wrong_lock"}} {
			if _, code := claimed(fenced.record, next); code != fenced.code {
				t.Errorf("%+v: %q", fenced.record, code)
			}
		}
		if _, err := both.Part("b"); !errors.Is(err, palisade.ErrLost) {
			t.Errorf("a part that was released: %v", err)
		}
		if err := fence.CheckHolder(part); !errors.Is(err, palisade.ErrLost) {
			t.Errorf("a part that was released: %v", err)
		}
		if err := fence.CheckHolder(other); err != nil {
			t.Errorf("a part that is held: %v", err)
		}
		if _, err := both.Part("c"); !errors.Is(err, palisade.ErrInvalid) {
			t.Errorf("%v", err)
		}
		if err := both.ReleasePart(within(t), "c"); !errors.Is(err, palisade.ErrInvalid) {
			t.Errorf("%v", err)
		}
		if err := both.Check(); err != nil {
			t.Error(err)
		}
		if err := both.Release(within(t)); err != nil {
			t.Error(err)
		}
		for _, lost := range []fence.Holder{other, both} {
			if err := fence.CheckHolder(lost); !errors.Is(err, palisade.ErrLost) {
				t.Errorf("after the release: %v", err)
			}
		}
		if _, err := both.Part("a"); !errors.Is(err, palisade.ErrLost) {
			t.Errorf("after the release: %v", err)
		}
	})
}

func TestAReleaseOfAPartGoesOnWithoutItsContext(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		lease, err := client.Locks(within(t), []string{"a", "b"}, palisade.TTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		if err := lease.ReleasePart(ended, "b"); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		for ctx := within(t); holders(t, client.Client, "b")[0] != 0; {
			if ctx.Err() != nil {
				t.Fatal("never released")
			}
		}
		if err := lease.Check(); err != nil || holders(t, client.Client, "a")[0] != lease.Token() {
			t.Errorf("the other lock went with it: %v", err)
		}
	})
}
