package palisadetest_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/palisadetest"
)

const patience = 30 * time.Second

func made(t *testing.T, options ...palisade.Option) (*palisadetest.Server, *palisade.Client) {
	t.Helper()
	server := palisadetest.NewServer()
	client, err := server.Client(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return server, client
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func mustLock(t *testing.T, client *palisade.Client, options ...palisade.LockOption) *palisade.Lease {
	t.Helper()
	lease, err := client.Lock(within(t), "orders", options...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestALeaseIsEndedByTheTest(t *testing.T) {
	for code, end := range map[string]func(*palisadetest.Server){
		"expired": func(server *palisadetest.Server) { server.Expire("orders") },
		"revoked": func(server *palisadetest.Server) { server.Revoke("orders", "the test") },
	} {
		server, client := made(t)
		lease := mustLock(t, client, palisade.TTL(200*time.Millisecond))
		end(server)
		select {
		case <-lease.Lost():
		case <-within(t).Done():
			t.Fatal("no loss")
		}
		var lost *palisade.LostError
		if err := lease.Check(); !errors.As(err, &lost) || lost.Err.Code != code {
			t.Errorf("%s: %v", code, err)
		}
		if holder := server.Holder("orders"); holder != nil {
			t.Errorf("%+v", holder)
		}
	}
}

func TestAnotherClientHasTheLock(t *testing.T) {
	server, client := made(t)
	held, err := server.Hold("orders", "somebody")
	if err != nil {
		t.Fatal(err)
	}
	var refused *palisade.HeldError
	if _, err := client.TryLock(within(t), "orders"); !errors.As(err, &refused) || refused.Holder.ClientID != "somebody" {
		t.Errorf("%v", err)
	}
	if _, err := server.Hold("orders", "a third"); err == nil {
		t.Error("held twice")
	}
	time.AfterFunc(10*time.Millisecond, func() {
		held.Release()
		held.Release()
	})
	lease := mustLock(t, client)
	if tokens := server.Tokens("orders"); !reflect.DeepEqual(tokens, []uint64{held.Token(), lease.Token()}) {
		t.Errorf("%v", tokens)
	}
	if holder := server.Holder("orders"); holder == nil || holder.Token != lease.Token() || holder.ClientID != lease.ClientID() {
		t.Errorf("%+v", holder)
	}
}

func TestAServerThatIsDown(t *testing.T) {
	server, client := made(t, palisade.Patience(time.Second))
	lease := mustLock(t, client)
	server.Down()
	if _, err := client.TryLock(within(t), "other"); !errors.Is(err, palisade.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	if err := lease.Check(); err != nil {
		t.Errorf("before its deadline: %v", err)
	}
	server.Up()
	if err := lease.Release(within(t)); err != nil {
		t.Error(err)
	}
}

// A control for tests with Stall: the deadline ends the lease, and nothing else does.
func TestAServerThatDoesNotAnswer(t *testing.T) {
	server, client := made(t, palisade.Patience(time.Second))
	short, long := mustLock(t, client, palisade.TTL(500*time.Millisecond)), (*palisade.Lease)(nil)
	long, err := client.Lock(within(t), "long", palisade.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	server.Stall()
	<-short.Lost()
	var lost *palisade.LostError
	if err := short.Check(); !errors.As(err, &lost) || lost.Err.Code != "expired" {
		t.Errorf("%v", err)
	}
	if err := long.Check(); err != nil {
		t.Error(err)
	}
	if _, err := client.TryLock(within(t), "other"); !errors.Is(err, palisade.ErrUnknownOutcome) {
		t.Errorf("%v", err)
	}
	server.Up()
	if err := long.Release(within(t)); err != nil {
		t.Error(err)
	}
}

func ExampleServer() {
	server := palisadetest.NewServer()
	client, err := server.Client()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	other, err := server.Hold("orders", "another worker")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = client.TryLock(context.Background(), "orders")
	fmt.Println(errors.Is(err, palisade.ErrHeld))
	other.Release()
	lease, err := client.TryLock(context.Background(), "orders")
	fmt.Println(lease.Token(), err)
	// Output:
	// true
	// 2 <nil>
}
