package palisade_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/fence/sequencer"
	"palisade.example/palisade/internal/testserver"
	"palisade.example/palisade/palisadetest"
)

func TestMain(m *testing.M) { os.Exit(testserver.ForExamples(m)) }

func work(context.Context, int) error { return nil }

func report(ctx context.Context, client *palisade.Client) error {
	lease, err := client.Lock(ctx, "report", palisade.TTL(15*time.Second), palisade.Wait(2*time.Second))
	var held *palisade.HeldError
	if errors.As(err, &held) {
		fmt.Println("busy:", held.Holder, "try again in", held.RetryAfter)
		return nil
	} else if err != nil {
		return err
	}
	defer lease.Release(ctx)
	for part := 0; part < 3; part++ {
		if err := lease.Check(); err != nil { // errors.Is(err, palisade.ErrLost); nanoseconds, no round trip
			return err
		}
		if err := work(lease.Context(), part); err != nil { // the context ends with the lease
			return err
		}
	}
	fmt.Println("done under fencing token", lease.Token() > 0)
	return nil
}

func Example() {
	client, err := palisade.New() // PALISADE_URL, or http://127.0.0.1:7420
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	if err := report(context.Background(), client); err != nil {
		fmt.Println(err)
	}
	// Output: done under fencing token true
}

func ExampleClient_With() {
	client, err := palisade.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	err = client.With(context.Background(), "nightly", func(ctx context.Context, lease *palisade.Lease) error {
		fmt.Println(lease.Name(), lease.Check())
		return work(ctx, 0) // ctx ends with the lease
	}, palisade.TTL(10*time.Second), palisade.Wait(time.Minute))
	fmt.Println(err)
	// Output:
	// nightly <nil>
	// <nil>
}

// listening is the example of docs/use/notices.md.
func listening(lease *palisade.Lease, yield func()) {
	stop := lease.Listen(func(notice palisade.Notice) {
		switch notice.Kind {
		case palisade.Suspended: // a renewal failed; palisade.Restored follows, or palisade.Lost
			fmt.Println("no new batch: held for", notice.Remaining)
		case palisade.Wanted: // palisade.Unwanted follows when nobody waits any more
			yield()
		case palisade.Lost:
			fmt.Println(notice.Err, notice.Err.Reason)
		}
	})
	defer stop()
	<-lease.Context().Done()
}

func ExampleLease_Listen() {
	ctx, server := context.Background(), palisadetest.NewServer()
	client, err := server.Client()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	lease, err := client.Lock(ctx, "report", palisade.TTL(time.Hour))
	if err != nil {
		fmt.Println(err)
		return
	}
	go listening(lease, func() { _ = lease.Release(ctx) })
	next, err := client.Lock(ctx, "report") // waits, so the first one yields
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(next.Token())
	// Output: 2
}

func TestTheExampleOfThePageIsTheOneThatRuns(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(testserver.Root(), "docs/use/notices.md"))
	if err != nil {
		t.Fatal(err)
	}
	examples, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## Go\n")
	_, block, _ := strings.Cut(section, "```go\n")
	block, _, _ = strings.Cut(block, "```\n")
	if block == "" || !strings.Contains(string(examples), block) {
		t.Errorf("no example is %q", block)
	}
}

func ExampleClient_Watch() {
	client, err := palisade.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	_ = client.With(context.Background(), "watched", func(context.Context, *palisade.Lease) error { return nil })

	watch := client.Watch(context.Background(), "watched", palisade.After(0)) // without After: what happens next
	defer watch.Close()
	for watch.Next() {
		fmt.Println(watch.Event().Kind, watch.Event().Name)
		if watch.Event().Kind == "released" {
			break
		}
	}
	// Output:
	// granted watched
	// released watched
}

func ExampleClient_List() {
	client, err := palisade.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	lease, err := client.Lock(context.Background(), "shop/orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release(context.Background())

	locks := client.List(context.Background(), "shop/")
	for locks.Next() {
		fmt.Println(locks.Lock().Name, locks.Lock().Holder.Token == lease.Token())
	}
	if err := locks.Err(); err != nil {
		fmt.Println(err)
	}
	// Output: shop/orders true
}

func pay(jwks []byte, presented string) error {
	keys, err := sequencer.ParseKeys(jwks) // again when they have changed
	if err != nil {
		return err
	}
	signed, err := keys.Check(presented, "invoices", true) // *sequencer.BadSequencer says why it is not believed
	if err != nil {
		return err
	}
	fmt.Println(signed.Name(), signed.Mode(), signed.Token() > 0) // a fence.Holder: the fence compares the token, as always
	return nil
}

func ExampleLease_Sequencer() {
	client, err := palisade.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	err = client.With(context.Background(), "invoices", func(ctx context.Context, lease *palisade.Lease) error {
		presented, err := lease.Sequencer(ctx, "invoices") // it goes to the resource, over TLS, and into no log
		if err != nil {
			return err
		}
		answer, err := http.Get(os.Getenv("PALISADE_URL") + "/.well-known/jwks.json")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		jwks, err := io.ReadAll(answer.Body)
		if err != nil {
			return err
		}
		return pay(jwks, presented)
	})
	fmt.Println(err)
	// Output: invoices exclusive true
	// <nil>
}

func ExampleClient_Observe() {
	ctx := context.Background()
	client, err := palisade.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	leads, err := client.Lock(ctx, "db-primary", palisade.Metadata("10.0.0.7:5432"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer leads.Release(ctx)

	election := client.Observe(ctx, "db-primary") // first the present leader, then each change
	defer election.Close()
	for election.Next() {
		fmt.Println(election.Leader().Value) // Leader is nil while nobody leads
		if election.Leader().Value == "10.0.0.8:5432" {
			break
		}
		if err := leads.Proclaim(ctx, "10.0.0.8:5432"); err != nil {
			fmt.Println(err)
		}
	}
	// Output: 10.0.0.7:5432
	// 10.0.0.8:5432
}
