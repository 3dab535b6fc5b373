package palisade_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"palisade.example/palisade"
)

// queued starts a request, and returns when it stands in the queue behind so many others.
func queued(t *testing.T, client servedClient, ahead int, options ...palisade.LockOption) <-chan *palisade.Lease {
	t.Helper()
	granted := make(chan *palisade.Lease, 1)
	go func() {
		lease, err := client.Lock(context.Background(), "orders", append(options, palisade.Wait(time.Minute))...)
		if err != nil {
			t.Error(err)
		}
		granted <- lease
	}()
	waitForWaiter(t, client.Client, "orders", ahead+1)
	return granted
}

func TestTheQueueIsServedInOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		lease := mustLock(t, client.Client, "orders")
		var all []<-chan *palisade.Lease
		for ahead := range [4]int{} {
			// The last one is to expire soon.
			all = append(all, queued(t, client, ahead, palisade.TTL([]time.Duration{time.Minute, time.Minute, time.Minute, 2 * time.Second}[ahead])))
		}
		for _, next := range all {
			if err := lease.Release(within(t)); err != nil {
				t.Fatal(err)
			}
			before := lease.Token()
			if lease = <-next; lease == nil || lease.Token() != before+1 {
				t.Fatalf("%v after token %d", lease, before)
			}
		}
		// A lease that expires makes room, too.
		client.stop(t)
		<-lease.Lost()
		client.resume(t)
		// real time: the server ends a lease by its own clock.
		next := mustLock(t, client.Client, "orders", palisade.Wait(time.Minute))
		if next.Token() <= lease.Token() {
			t.Errorf("%v after %v", next, lease)
		}
	})
}

func TestAReaderWaitsBehindAWriterThatAskedBefore(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		first := mustLock(t, client.Client, "orders", palisade.Shared())
		beside := mustLock(t, client.Client, "orders", palisade.Shared())
		if first.Token() != beside.Token() || first.GrantID() == beside.GrantID() {
			t.Errorf("%v beside %v", beside, first)
		}
		writer := queued(t, client, 0)
		if _, err := client.TryLock(within(t), "orders", palisade.Shared()); !errors.Is(err, palisade.ErrHeld) {
			t.Errorf("%v", err)
		}
		reader := queued(t, client, 1, palisade.Shared())
		for _, lease := range []*palisade.Lease{first, beside} {
			if err := lease.Release(within(t)); err != nil {
				t.Fatal(err)
			}
		}
		writes := <-writer
		if err := writes.Release(within(t)); err != nil {
			t.Fatal(err)
		}
		if reads := <-reader; reads.Token() <= writes.Token() || writes.Token() <= first.Token() {
			t.Errorf("%v, %v, %v", first, writes, reads)
		}
	})
}

func TestPermits(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		take := func(count, of int) (*palisade.Lease, error) {
			return client.TryLock(within(t), "gpu", palisade.Permits(count, of))
		}
		one, err := take(1, 3)
		if err != nil {
			t.Fatal(err)
		}
		two, err := take(2, 3)
		if err != nil || !reflect.DeepEqual(two.Slots(), []int{2, 3}) || two.Token() != one.Token()+1 {
			t.Fatalf("%v, %v", two, err)
		}
		if _, err := take(1, 3); !errors.Is(err, palisade.ErrHeld) {
			t.Errorf("%v", err)
		}
		for _, wrong := range [][]palisade.LockOption{{palisade.Permits(1, 2)}, {}, {palisade.Shared()}} {
			if _, err := client.TryLock(within(t), "gpu", wrong...); !errors.Is(err, palisade.ErrInvalid) {
				t.Errorf("%v", err)
			}
		}
		shown := show(t, client.Client, "gpu")
		if shown.Permits != 3 || shown.ReaderCount != 2 || !reflect.DeepEqual(shown.Readers[1].Slots, []int{2, 3}) {
			t.Errorf("%+v", shown)
		}
		if err := client.Resize(within(t), "gpu", 2); err != nil {
			t.Fatal(err)
		}
		if err := two.Release(within(t)); err != nil {
			t.Fatal(err)
		}
		again, err := take(1, 2)
		if err != nil || !reflect.DeepEqual(again.Slots(), []int{2}) {
			t.Errorf("%v, %v", again, err)
		}
		if _, err := take(1, 2); !errors.Is(err, palisade.ErrHeld) {
			t.Errorf("%v", err)
		}
		// Nobody holds it, so its number is forgotten.
		for _, lease := range []*palisade.Lease{one, again} {
			if err := lease.Release(within(t)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := client.TryLock(within(t), "gpu"); err != nil {
			t.Error(err)
		}
	})
}

func TestALockStaysClosedAfterItsGrant(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		lease := mustLock(t, client.Client, "nightly", palisade.AtLeastFor(time.Hour))
		if err := lease.Release(within(t)); err != nil {
			t.Fatal(err)
		}
		delayed := mustLock(t, client.Client, "printer", palisade.LockDelay(time.Minute))
		if err := client.Break(within(t), "printer", delayed.Token(), "the test"); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"nightly", "printer"} {
			_, err := client.TryLock(within(t), name)
			var held *palisade.HeldError
			if !errors.As(err, &held) || held.Err.Code != "delayed" || held.RetryAfter <= 50*time.Second {
				t.Errorf("%v", err)
			}
		}
		after := mustLock(t, client.Client, "orders", palisade.LockDelay(time.Minute))
		if err := after.Release(within(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := client.TryLock(within(t), "orders"); err != nil {
			t.Errorf("after a release: %v", err)
		}
	})
}

func TestTheSameClientIDTakesItsOwnLockOver(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		first := mustLock(t, client.Client, "orders", palisade.ClientID("me"), palisade.TTL(time.Second))
		other := queued(t, client, 0)
		second := mustLock(t, client.Client, "orders", palisade.ClientID("me"))
		var lost *palisade.LostError
		if err := first.Release(within(t)); !errors.As(err, &lost) || lost.Err.Code != "superseded" || second.Token() != first.Token()+1 {
			t.Errorf("%v, then %v: %v", first, second, err)
		}
		if err := second.Release(within(t)); err != nil {
			t.Fatal(err)
		}
		if lease := <-other; lease.Token() != second.Token()+1 {
			t.Errorf("%v", lease)
		}
	})
}

// However an acquire fails, no lock stays behind.
func TestAnAcquireWithoutAnAnswerIsAbandoned(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		hasty := client.again(t, palisade.Patience(200*time.Millisecond))
		client.stop(t)
		if _, err := hasty.TryLock(within(t), "orders", palisade.TTL(time.Hour)); !errors.Is(err, palisade.ErrUnknownOutcome) {
			t.Errorf("%v", err)
		}
		client.resume(t)
		for ctx := within(t); ; {
			lease, err := client.TryLock(ctx, "orders")
			if err == nil {
				_ = lease.Release(ctx)
				break
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestAListHasPages(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		var names []string
		for n := 0; n < 30; n++ {
			names = append(names, fmt.Sprintf("a/%02d", n))
		}
		if _, err := client.Locks(within(t), names); err != nil {
			t.Fatal(err)
		}
		mustLock(t, client.Client, "b")
		locks, found := client.List(within(t), "a/"), []string{}
		for locks.Next() {
			found = append(found, locks.Lock().Name)
		}
		if locks.Err() != nil || !reflect.DeepEqual(found, names) {
			t.Errorf("%v, %v", found, locks.Err())
		}
	})
}
