package palisade_test

import (
	"bytes"
	"context"
	"errors"
	"log"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/palisadetest"
)

// heard collects the notices of a lease.
func heard(t *testing.T, lease *palisade.Lease) <-chan palisade.Notice {
	t.Helper()
	notices := make(chan palisade.Notice, 100)
	t.Cleanup(lease.Listen(func(notice palisade.Notice) { notices <- notice }))
	return notices
}

// next is the next notice, which has to be of that kind.
func next(t *testing.T, notices <-chan palisade.Notice, kind palisade.NoticeKind) palisade.Notice {
	t.Helper()
	select {
	case notice := <-notices:
		if notice.Kind != kind {
			t.Fatalf("%+v, and not %q", notice, kind)
		}
		return notice
	case <-within(t).Done():
		t.Fatalf("no notice came: %q was expected", kind)
		panic("unreachable")
	}
}

// The next renewal is in 20 minutes, so only the server's notice can end the belief. The control listens to no notices.
func TestABreakEndsTheBeliefAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		lease := mustLock(t, client.Client, "orders", palisade.TTL(time.Hour))
		deaf := mustLock(t, client.again(t, palisade.WithoutNotices()), "other", palisade.TTL(time.Hour))
		notices := heard(t, lease)
		for _, broken := range []*palisade.Lease{deaf, lease} {
			if err := client.Break(within(t), broken.Name(), broken.Token(), "maintenance"); err != nil {
				t.Fatal(err)
			}
		}
		lost := next(t, notices, palisade.Lost).Err
		if lost == nil || lost.Err.Code != "revoked" || lost.Token != lease.Token() {
			t.Fatalf("%+v", lost)
		}
		// The program forgets the reason if nobody listens at that moment, such as before a new grant is named. The double keeps it.
		if lost.Reason != "maintenance" && (client.double || lost.Reason != "") {
			t.Errorf("the reason is %q", lost.Reason)
		}
		if err := lease.Check(); !errors.Is(err, palisade.ErrLost) || client.double && !strings.Contains(err.Error(), `("maintenance")`) {
			t.Errorf("%v", err)
		}
		<-lease.Lost()
		<-lease.Context().Done()
		if err := deaf.Check(); err != nil {
			t.Errorf("without notices it was heard, too: %v", err)
		}
		// A late listener is told at once.
		if again := next(t, heard(t, lease), palisade.Lost).Err; again == nil || again.Reason != lost.Reason {
			t.Errorf("%+v", again)
		}
	})
}

// A lease of several locks is over with any of them, and the others are released.
func TestABreakOfOneLockOfSeveralIsHeard(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		lease, err := client.Locks(within(t), []string{"a", "b", "c"}, palisade.TTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.ReleasePart(within(t), "a"); err != nil {
			t.Fatal(err)
		}
		notices := heard(t, lease)
		if err := client.Break(within(t), "c", lease.Token(), ""); err != nil {
			t.Fatal(err)
		}
		if lost := next(t, notices, palisade.Lost).Err; lost == nil || lost.Name != "c" || lost.Reason != "" {
			t.Errorf("%+v", lost)
		}
		for ctx := within(t); show(t, client.Client, "b").Holder != nil; {
			if ctx.Err() != nil {
				t.Fatal("the rest was not released")
			}
		}
	})
}

func TestAHolderIsToldWhoWaits(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		lease := mustLock(t, client.Client, "orders", palisade.TTL(time.Hour))
		deaf := mustLock(t, client.again(t, palisade.WithoutNotices()), "other", palisade.TTL(time.Hour))
		notices := heard(t, lease)
		leave := waiting(t, client, "other")
		first := waiting(t, client, "orders")
		if notice := next(t, notices, palisade.Wanted); notice.Waiters != 1 || lease.Wanted() != 1 {
			t.Errorf("%+v, %d", notice, lease.Wanted())
		}
		second := waiting(t, client, "orders")
		if notice := next(t, notices, palisade.Wanted); notice.Waiters != 2 {
			t.Errorf("%+v", notice)
		}
		// A late listener is told at once.
		if notice := next(t, heard(t, lease), palisade.Wanted); notice.Waiters != 2 {
			t.Errorf("%+v", notice)
		}
		first()
		second()
		next(t, notices, palisade.Unwanted)
		if lease.Wanted() != 0 {
			t.Errorf("%d", lease.Wanted())
		}
		if err := lease.Check(); err != nil {
			t.Error(err)
		}
		// The control: without notices nobody says so before the next renewal.
		if deaf.Wanted() != 0 {
			t.Errorf("%d", deaf.Wanted())
		}
		leave()
	})
}

// waiting puts a request into the queue of a lock until it leaves.
func waiting(t *testing.T, client servedClient, lock string) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	before, ended := show(t, client.Client, lock).Waiters, make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = client.Lock(ctx, lock, palisade.Wait(time.Hour))
	}()
	waitForWaiter(t, client.Client, lock, before+1)
	return func() {
		cancel()
		<-ended
	}
}

func TestARenewalSaysWhoWaits(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		lease := mustLock(t, client.again(t, palisade.WithoutNotices()), "orders", palisade.TTL(3*time.Second))
		notices := heard(t, lease)
		leave := waiting(t, client, "orders")
		if notice := next(t, notices, palisade.Wanted); notice.Waiters != 1 {
			t.Errorf("%+v", notice)
		}
		leave()
		next(t, notices, palisade.Unwanted)
	})
}

// The server is stopped, not ended: the first stop is over in time, the second is not.
func TestALeaseIsSuspendedRestoredSuspendedAndLost(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		const ttl = 6 * time.Second
		lease := mustLock(t, client.Client, "orders", palisade.TTL(ttl))
		released := mustLock(t, client.Client, "other", palisade.TTL(ttl))
		notices, none := heard(t, lease), heard(t, released)
		if err := released.Release(within(t)); err != nil {
			t.Fatal(err)
		}
		client.stop(t)
		if notice := next(t, notices, palisade.Suspended); notice.Remaining <= 0 || notice.Remaining > ttl*2/3 {
			t.Errorf("%+v", notice)
		}
		if err := lease.Check(); err != nil {
			t.Errorf("suspended is not lost: %v", err)
		}
		late := heard(t, lease)
		next(t, late, palisade.Suspended)
		client.resume(t)
		next(t, notices, palisade.Restored)
		next(t, late, palisade.Restored)
		client.stop(t)
		next(t, notices, palisade.Suspended)
		if notice := next(t, notices, palisade.Lost); notice.Err.Err.Code != "expired" {
			t.Errorf("%+v", notice.Err)
		}
		client.resume(t)
		if len(none) > 0 {
			t.Errorf("a lease that was released said %+v", <-none)
		}
	})
}

// An upgrade supersedes the reader's grant, and the server may say so before the upgrade's answer is here.
func TestAnUpgradeIsNoLossOfTheReader(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		for range 5 {
			reader := mustLock(t, client.Client, "orders", palisade.Update(), palisade.TTL(time.Hour))
			notices := heard(t, reader)
			beside := mustLock(t, client.Client, "orders", palisade.Shared(), palisade.TTL(time.Hour))
			// So long the reader is listened to.
			time.AfterFunc(300*time.Millisecond, func() { _ = beside.Release(context.Background()) })
			writer, err := reader.Upgrade(within(t), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if err := writer.Check(); err != nil {
				t.Error(err)
			}
			if err := writer.Release(within(t)); err != nil {
				t.Error(err)
			}
			for len(notices) > 0 {
				if notice := <-notices; notice.Kind == palisade.Lost {
					t.Errorf("%v", notice.Err)
				}
			}
		}
	})
}

// syncedBuffer is written by other goroutines.
type syncedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncedBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

func (b *syncedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestAListenerThatPanicsOrBlocksDisturbsNobody(t *testing.T) {
	var said syncedBuffer
	before := log.Writer()
	log.SetOutput(&said)
	defer log.SetOutput(before)
	server := palisadetest.NewServer()
	client, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	const ttl = time.Second
	lease := mustLock(t, client, "orders", palisade.TTL(ttl))
	blocked, began := make(chan struct{}), make(chan palisade.Notice, 100)
	lease.Listen(func(notice palisade.Notice) {
		began <- notice
		<-blocked
	})
	lease.Listen(func(palisade.Notice) { panic("mistake") })
	notices := heard(t, lease)
	// real time: it is renewed for longer than a TTL although a listener blocks.
	for start := time.Now(); time.Since(start) < 2*ttl; {
		server.Down()
		next(t, notices, palisade.Suspended)
		server.Up()
		next(t, notices, palisade.Restored)
	}
	if err := lease.Check(); err != nil {
		t.Fatalf("not renewed: %v", err)
	}
	server.Revoke("orders", "the test")
	next(t, notices, palisade.Lost)
	if first := <-began; first.Kind != palisade.Suspended || len(began) > 0 {
		t.Errorf("%+v, and %d more", first, len(began))
	}
	// It is told the state, and not all that was in between.
	close(blocked)
	if last := next(t, began, palisade.Lost); last.Err == nil {
		t.Errorf("%+v", last)
	}
	for ctx := within(t); !strings.Contains(said.String(), `a listener panicked at the notice "lost": mistake`); {
		if ctx.Err() != nil {
			t.Fatalf("the panic was not logged: %s", said.String())
		}
	}
}

func TestAListenerThatStopsIsToldNothing(t *testing.T) {
	server := palisadetest.NewServer()
	client, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	lease := mustLock(t, client, "orders")
	stopped := make(chan palisade.Notice, 1)
	stop := lease.Listen(func(notice palisade.Notice) { stopped <- notice })
	stop()
	stop()
	notices := heard(t, lease)
	server.Revoke("orders", "")
	next(t, notices, palisade.Lost)
	if len(stopped) > 0 {
		t.Errorf("%+v", <-stopped)
	}
}

func TestALeaseThatIsReleasedSaysNothing(t *testing.T) {
	server := palisadetest.NewServer()
	client, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	released := mustLock(t, client, "orders", palisade.TTL(3*time.Second))
	control := mustLock(t, client, "other", palisade.TTL(3*time.Second))
	server.Down()
	for _, lease := range []*palisade.Lease{released, control} {
		next(t, heard(t, lease), palisade.Suspended)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = released.Release(ended)
	start := time.Now()
	next(t, heard(t, control), palisade.Suspended)
	none := heard(t, released)
	// real time: the control's notice took a tenth of it.
	time.Sleep(10 * time.Since(start))
	if len(none) > 0 {
		t.Errorf("%+v", <-none)
	}
}

// goroutines are those that the client began.
func goroutines() (n int) {
	stacks := make([]byte, 1<<22)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return bytes.Count(stacks, []byte("created by palisade.example/palisade."))
}

func TestNoGoroutineStaysBehind(t *testing.T) {
	server := palisadetest.NewServer()
	until(t, "other tests have ended", func() bool { return goroutines() == 0 })
	client, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	for _, close := range []bool{false, true} {
		var leases []*palisade.Lease
		for n := range 150 {
			lease := mustLock(t, client, strings.Repeat("x", n+1), palisade.TTL(20*time.Second))
			lease.Listen(func(palisade.Notice) {})
			leases = append(leases, lease)
		}
		short := mustLock(t, client, "short", palisade.TTL(3*time.Second))
		// A control: each lease is renewed by a goroutine, and two requests listen.
		if n := goroutines(); n < len(leases)+1+2 {
			t.Errorf("only %d goroutines", n)
		}
		server.Down()
		next(t, heard(t, short), palisade.Suspended)
		server.Up()
		if close {
			_ = client.Close()
		} else {
			for _, lease := range append(leases, short) {
				_ = lease.Release(within(t))
			}
		}
		until(t, "no goroutine is left", func() bool { return goroutines() == 0 })
	}
}
