package palisade_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/internal/testserver"
)

// A relay passes bytes on. Connections that are open when it freezes deliver nothing any more, and stay open.
type relay struct {
	url    string
	closed chan struct{}

	mu    sync.Mutex
	links []*atomic.Bool
}

func newRelay(t *testing.T, server string) *relay {
	t.Helper()
	behind, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{url: "http://" + listener.Addr().String(), closed: make(chan struct{})}
	t.Cleanup(func() {
		listener.Close()
		close(r.closed)
	})
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", behind.Host)
			if err != nil {
				near.Close()
				continue
			}
			frozen := &atomic.Bool{}
			r.mu.Lock()
			r.links = append(r.links, frozen)
			r.mu.Unlock()
			go r.pump(frozen, near, far)
			go r.pump(frozen, far, near)
		}
	}()
	return r
}

func (r *relay) pump(frozen *atomic.Bool, from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if frozen.Load() {
			<-r.closed
		}
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			return
		}
	}
}

// freeze returns how many connections there are.
func (r *relay) freeze() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, frozen := range r.links {
		frozen.Store(true)
	}
	return len(r.links)
}

// Of many connections that look alive, all have become silent. Trying them one after the other would take too long.
func TestSilentConnectionsAreReplacedAtOnce(t *testing.T) {
	const many = 16
	server := testserver.Serve(t)
	through := newRelay(t, server.URL)
	client := newClient(t, palisade.Endpoints(through.url))
	first := mustLock(t, client, "busy")
	var waiting sync.WaitGroup
	for range [many]int{} {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			nothing := func(context.Context, *palisade.Lease) error { return nil }
			if err := client.With(context.Background(), "busy", nothing, palisade.Wait(time.Minute)); err != nil {
				t.Error(err)
			}
		}()
	}
	waitForWaiter(t, client, "busy", many)
	if err := first.Release(within(t)); err != nil {
		t.Fatal(err)
	}
	waiting.Wait()

	lease := mustLock(t, client, "orders", palisade.TTL(6*time.Second))
	if frozen := through.freeze(); frozen < many {
		t.Fatalf("only %d connections", frozen)
	}
	ctx := within(t)
	for before, left := lease.Remaining(), lease.Remaining(); left <= before; before, left = left, lease.Remaining() {
		if err := lease.Check(); err != nil || ctx.Err() != nil {
			t.Fatalf("not renewed through a new connection: %v", err)
		}
		// real time: the renewal has a time of its own.
		time.Sleep(50 * time.Millisecond)
	}
	through.freeze()
	if err := lease.Release(within(t)); err != nil {
		t.Errorf("not released through a new connection: %v", err)
	}
}

var _ io.Closer = (*palisade.Watch)(nil)
