package palisade_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/internal/testserver"
)

const patience = 30 * time.Second

func newClient(t *testing.T, options ...palisade.Option) *palisade.Client {
	t.Helper()
	client, err := palisade.New(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// served is a client of a server of its own.
func served(t *testing.T) (*palisade.Client, *testserver.Process) {
	t.Helper()
	server := testserver.Serve(t)
	return newClient(t, palisade.Endpoints(server.URL)), server
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func mustLock(t *testing.T, client *palisade.Client, name string, options ...palisade.LockOption) *palisade.Lease {
	t.Helper()
	lease, err := client.Lock(within(t), name, options...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func show(t *testing.T, client *palisade.Client, name string) palisade.LockInfo {
	t.Helper()
	shown, err := client.Show(within(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return shown
}

// waitForWaiter returns when a request stands in the queue: the server has no event for that.
func waitForWaiter(t *testing.T, client *palisade.Client, name string, waiters int) {
	t.Helper()
	for ctx := within(t); show(t, client, name).Waiters != waiters; {
		if ctx.Err() != nil {
			t.Fatalf("%s never had %d waiters", name, waiters)
		}
	}
}

func TestALeaseHoldsAndIsReleased(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		lease := mustLock(t, client.Client, "orders", palisade.TTL(20*time.Second), palisade.Wait(0),
			palisade.ClientID("me"), palisade.Metadata("why"))
		if err := lease.Check(); err != nil {
			t.Fatal(err)
		}
		if left := lease.Remaining(); left <= 0 || left >= 20*time.Second {
			t.Errorf("%v remain of 20 s", left)
		}
		holder := show(t, client.Client, "orders").Holder
		if holder == nil || holder.Token != lease.Token() || holder.ClientID != "me" || holder.Metadata != "why" {
			t.Errorf("shown: %+v", holder)
		}
		status, err := client.Status(within(t))
		if err != nil || status.Authority != lease.Authority() || status.NextToken != lease.Token()+1 {
			t.Errorf("%+v, %v", status, err)
		}
		if err := lease.Release(within(t)); err != nil {
			t.Fatal(err)
		}
		if err := lease.Check(); !errors.Is(err, palisade.ErrLost) {
			t.Errorf("after the release: %v", err)
		}
		select {
		case <-lease.Context().Done():
		default:
			t.Error("the context goes on after the release")
		}
		select {
		case <-lease.Lost():
			t.Error("a release was announced as a loss")
		default:
		}
		if holder := show(t, client.Client, "orders").Holder; holder != nil {
			t.Errorf("still held: %+v", holder)
		}
	})
}

func TestHeldSaysWhoAndUntilWhen(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		first := mustLock(t, client.Client, "orders", palisade.TTL(time.Minute), palisade.ClientID("first"))
		_, err := client.Lock(within(t), "orders", palisade.Wait(0))
		if !errors.Is(err, palisade.ErrHeld) || !errors.Is(err, palisade.ErrNotAcquired) {
			t.Fatalf("%v", err)
		}
		var held *palisade.HeldError
		if !errors.As(err, &held) || held.Holder == nil || held.Holder.ClientID != "first" || held.Holder.Token != first.Token() {
			t.Fatalf("%+v", held)
		}
		if held.RetryAfter <= 0 || held.RetryAfter > time.Minute {
			t.Errorf("retry after %v", held.RetryAfter)
		}
		var told *palisade.Error
		if !errors.As(err, &told) || told.Code != "held" {
			t.Errorf("%+v", told)
		}
	})
}

func TestTheContextEndsWithTheLoss(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		type key struct{}
		ctx, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "kept"))
		lease, err := client.Lock(ctx, "orders", palisade.TTL(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := lease.Check(); err != nil || lease.Context().Err() != nil {
			t.Fatalf("the context of the acquire ended the lease: %v, %v", err, lease.Context().Err())
		}
		if lease.Context().Value(key{}) != "kept" {
			t.Error("the context's values are gone")
		}
		if err := client.Break(within(t), "orders", lease.Token(), "the test"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-lease.Context().Done():
		case <-within(t).Done():
			t.Fatal("the context goes on after the loss")
		}
		<-lease.Lost()
		var lost *palisade.LostError
		if err := lease.Check(); !errors.As(err, &lost) || lost.Err.Code != "revoked" || lost.Token != lease.Token() {
			t.Errorf("%v", err)
		}
		if err := lease.Release(within(t)); !errors.Is(err, palisade.ErrLost) {
			t.Errorf("a release of a lease that was revoked: %v", err)
		}
		if lease.Remaining() != 0 {
			t.Error("time remains after the loss")
		}
	})
}

// The server is stopped, not ended: connections stay open, and nothing comes back.
func TestASilentServerEndsTheLeaseAtItsDeadline(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		lease := mustLock(t, client.Client, "orders", palisade.TTL(time.Second))
		client.stop(t)
		select {
		case <-lease.Lost():
		case <-within(t).Done():
			t.Fatal("no loss was announced")
		}
		client.resume(t)
		var lost *palisade.LostError
		if err := lease.Check(); !errors.As(err, &lost) || lost.Err.Code != "expired" {
			t.Errorf("%v", err)
		}
	})
}

func TestWith(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		ctx := within(t)
		mistake := errors.New("mistake")
		if err := client.With(ctx, "orders", func(context.Context, *palisade.Lease) error { return mistake }); err != mistake {
			t.Errorf("%v", err)
		}
		func() {
			defer func() { _ = recover() }()
			_ = client.With(ctx, "orders", func(context.Context, *palisade.Lease) error { panic("mistake") })
		}()
		if holder := show(t, client.Client, "orders").Holder; holder != nil {
			t.Fatalf("still held: %+v", holder)
		}
		err := client.With(ctx, "orders", func(ctx context.Context, lease *palisade.Lease) error {
			if err := client.Break(ctx, "orders", lease.Token(), "the test"); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}, palisade.TTL(time.Second))
		if !errors.Is(err, palisade.ErrLost) {
			t.Errorf("the loss is told as %v", err)
		}
		outer, cancel := context.WithCancel(ctx)
		err = client.With(outer, "orders", func(ctx context.Context, lease *palisade.Lease) error {
			cancel()
			<-ctx.Done()
			return lease.Check()
		})
		if err != nil {
			t.Errorf("the outer context ended the lease: %v", err)
		}
		if holder := show(t, client.Client, "orders").Holder; holder != nil {
			t.Errorf("not released, because the context had ended: %+v", holder)
		}
	})
}

func TestACancelledAcquireLeavesTheQueue(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		mustLock(t, client.Client, "orders")
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() {
			_, err := client.Lock(ctx, "orders", palisade.Wait(time.Hour))
			ended <- err
		}()
		waitForWaiter(t, client.Client, "orders", 1)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		waitForWaiter(t, client.Client, "orders", 0)
	})
}

// Also with a context that has ended: people write `defer lease.Release(ctx)`.
func TestAReleaseGoesOnWithoutItsContext(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		lease := mustLock(t, client.Client, "orders", palisade.TTL(time.Hour))
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		if err := lease.Release(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if err := lease.Check(); err == nil {
			t.Error("held after the release")
		}
		for ctx := within(t); show(t, client.Client, "orders").Holder != nil; {
			if ctx.Err() != nil {
				t.Fatal("never released")
			}
		}
	})
}

func TestWatchAndList(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		for _, name := range []string{"a/1", "a/2", "b"} {
			mustLock(t, client.Client, name)
		}
		locks, names := client.List(within(t), "a/"), []string{}
		for locks.Next() {
			names = append(names, locks.Lock().Name)
		}
		if err := locks.Err(); err != nil || strings.Join(names, " ") != "a/1 a/2" {
			t.Errorf("%v, %v", names, err)
		}
		ctx, cancel := context.WithCancel(within(t))
		watch := client.Watch(ctx, "a/", palisade.After(0))
		for _, name := range []string{"a/1", "a/2"} {
			if !watch.Next() {
				t.Fatal(watch.Err())
			}
			if e := watch.Event(); e.Kind != "granted" || e.Name != name || e.Token == 0 || e.Revision == 0 {
				t.Errorf("%+v", e)
			} else if at, err := time.Parse(time.RFC3339, e.Time); err != nil || time.Since(at).Abs() > time.Hour {
				t.Errorf("%+v: %v", e, err)
			}
		}
		cancel()
		if watch.Next() || !errors.Is(watch.Err(), context.Canceled) {
			t.Errorf("after the context: %+v, %v", watch.Event(), watch.Err())
		}
	})
}

func TestAWatchOfAnotherAuthoritySaysThatSomethingWasMissed(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		mustLock(t, client.Client, "orders")
		watch := client.Watch(within(t), "", palisade.After(1<<40))
		defer watch.Close()
		if !watch.Next() || watch.Event().Kind != "missed" {
			t.Errorf("%+v, %v", watch.Event(), watch.Err())
		}
	})
}

func TestAClosedWatchEnds(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		watch := client.Watch(context.Background(), "")
		// real time: it may be under way or not, and ends all the same.
		time.AfterFunc(10*time.Millisecond, func() { watch.Close() })
		if watch.Next() || !errors.Is(watch.Err(), context.Canceled) {
			t.Errorf("%+v, %v", watch.Event(), watch.Err())
		}
	})
}

// A server behind TLS: a real one behind Go's reverse proxy, which asks for the token.
func TestTLSAndBearerToken(t *testing.T) {
	behind, err := url.Parse(testserver.Serve(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(behind) },
		FlushInterval: -1,
	}
	var asked, refused atomic.Int32
	front := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Header.Get("Authorization") != "Bearer s3cret" {
			refused.Add(1)
			w.Header().Set("Palisade-Nonce", r.Header.Get("Palisade-Nonce"))
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error": {"code": "unauthenticated", "message": "a token is needed"}}`)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	authorities := x509.NewCertPool()
	authorities.AddCert(front.Certificate())
	trusted := palisade.TLSConfig(&tls.Config{RootCAs: authorities})

	client := newClient(t, palisade.Endpoints(front.URL), trusted, palisade.BearerToken("s3cret"))
	lease := mustLock(t, client, "orders")
	if err := lease.Release(within(t)); err != nil {
		t.Error(err)
	}
	bare := newClient(t, palisade.Endpoints(front.URL), trusted)
	before := asked.Load()
	_, err = bare.Lock(within(t), "orders")
	var told *palisade.Error
	if !errors.As(err, &told) || told.Code != "unauthenticated" || !errors.Is(err, palisade.ErrInvalid) {
		t.Errorf("without a token: %v", err)
	}
	// Over TLS it is asked once more: the certificate of the connection may have been over.
	if asked.Load() != before+2 || refused.Load() != 2 {
		t.Errorf("%d requests without a token", asked.Load()-before)
	}
	stranger := newClient(t, palisade.Endpoints(front.URL), palisade.BearerToken("s3cret"), palisade.Patience(time.Second))
	before = asked.Load()
	if _, err = stranger.Lock(within(t), "orders", palisade.Wait(0)); !errors.Is(err, palisade.ErrUnavailable) {
		t.Errorf("with a certificate of nobody: %v", err)
	}
	if asked.Load() != before {
		t.Error("a request was sent to a server that nobody vouches for")
	}
}

func TestBadArgumentsAreNamed(t *testing.T) {
	client := newClient(t, palisade.Endpoints("http://127.0.0.1:1"))
	for says, options := range map[string][]palisade.LockOption{
		"the TTL is 50ms: 100 ms to 86400000 ms are allowed": {palisade.TTL(50 * time.Millisecond)},
		"the TTL is 25h":    {palisade.TTL(25 * time.Hour)},
		"the wait is -1ns":  {palisade.Wait(-1)},
		"has 257 bytes; 0 ": {palisade.Metadata(strings.Repeat("x", 257))},
	} {
		_, err := client.Lock(context.Background(), "orders", options...)
		if !errors.Is(err, palisade.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
	for _, name := range []string{"", ".", "..", "ä", "a\n", strings.Repeat("x", 256)} {
		if _, err := client.Show(context.Background(), name); !errors.Is(err, palisade.ErrInvalid) {
			t.Errorf("the name %q: %v", name, err)
		}
	}
	for _, option := range []palisade.Option{palisade.Patience(0), palisade.Margin(-1)} {
		if _, err := palisade.New(option); !errors.Is(err, palisade.ErrInvalid) {
			t.Errorf("%v", err)
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, bad := range []string{"a:1", "ftp://a", "http://a/x", "http://a?x", "http://u:s3cret@a", "", "http://"} {
		_, err := palisade.New(palisade.Endpoints(bad))
		if !errors.Is(err, palisade.ErrInvalid) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	server := testserver.Serve(t)
	t.Setenv("PALISADE_URL", "http://127.0.0.1:1, "+server.URL+"/")
	mustLock(t, newClient(t), "orders")
}

func TestNobodyThereIsUnavailable(t *testing.T) {
	client := newClient(t, palisade.Endpoints("http://127.0.0.1:1"), palisade.Patience(2*time.Second))
	_, err := client.Lock(context.Background(), "orders", palisade.Wait(0))
	says := "http://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused. Is a server running there? If not, start one"
	if !errors.Is(err, palisade.ErrUnavailable) || !strings.Contains(err.Error(), says) {
		t.Errorf("%v", err)
	}
}

func TestABearerTokenIsForTLSAndThisMachineOnly(t *testing.T) {
	t.Setenv("PALISADE_TOKEN", "pal_environment\n")
	for _, kept := range []string{"http://localhost:1", "http://127.9.9.9:1", "http://[::1]:1", "https://a"} {
		newClient(t, palisade.Endpoints(kept))
	}
	_, err := palisade.New(palisade.Endpoints("https://a", "http://10.0.0.1:1"))
	if err == nil || !strings.Contains(err.Error(), "not sent to http://10.0.0.1:1") || strings.Contains(err.Error(), "pal_") {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"a b", "a\nb", "ä", ""} {
		if _, err := palisade.New(palisade.BearerToken(bad)); !errors.Is(err, palisade.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestAClosedClientSaysSo(t *testing.T) {
	client := newClient(t)
	client.Close()
	if _, err := client.Lock(context.Background(), "orders"); !errors.Is(err, palisade.ErrInvalid) {
		t.Errorf("%v", err)
	}
	watch := client.Watch(context.Background(), "")
	if watch.Next() || !errors.Is(watch.Err(), palisade.ErrInvalid) {
		t.Errorf("%v", watch.Err())
	}
}

func TestTheLeaseKeyIsNotPrinted(t *testing.T) {
	var key atomic.Value
	behind, _ := url.Parse(testserver.Serve(t).URL)
	front := httptest.NewServer(keyFinder(behind, &key))
	defer front.Close()
	lease := mustLock(t, newClient(t, palisade.Endpoints(front.URL)), "orders")
	found, _ := key.Load().(string)
	if len(found) != 32 {
		t.Fatalf("the lease key is %q", found)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if printed := fmt.Sprintf(format, lease); strings.Contains(printed, found) {
			t.Errorf("%s prints the lease key: %s", format, printed)
		}
	}
}
