package palisade_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/internal/testserver"
)

func mustNext(t *testing.T, election *palisade.Observer) *palisade.Leader {
	t.Helper()
	if !election.Next() {
		t.Fatal(election.Err())
	}
	return election.Leader()
}

func TestAnElection(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		election := client.Observe(within(t), "primary")
		defer election.Close()
		if leader := mustNext(t, election); leader != nil {
			t.Errorf("%+v leads before the first", leader)
		}
		leads := mustLock(t, client.Client, "primary", palisade.ClientID("node-1"), palisade.Metadata("starting"))
		if leader := mustNext(t, election); *leader != (palisade.Leader{ClientID: "node-1", Token: leads.Token(), Value: "starting"}) {
			t.Errorf("%+v", leader)
		}
		for _, value := range []string{"10.0.0.7:5432", ""} {
			if err := leads.Proclaim(within(t), value); err != nil {
				t.Fatal(err)
			}
			wanted := palisade.Leader{ClientID: "node-1", Token: leads.Token(), Value: value}
			if leader := mustNext(t, election); *leader != wanted {
				t.Errorf("%+v", leader)
			}
			if leader, err := client.Leader(within(t), "primary"); err != nil || *leader != wanted {
				t.Errorf("%+v, %v", leader, err)
			}
		}
		// Locks beside it are no changes of it.
		mustLock(t, client.Client, "primary/other")
		if err := client.Break(within(t), "primary", leads.Token(), "the test"); err != nil {
			t.Fatal(err)
		}
		if leader := mustNext(t, election); leader != nil {
			t.Errorf("%+v", leader)
		}
		// A former leader announces nothing.
		var lost *palisade.LostError
		if err := leads.Proclaim(within(t), "x"); !errors.As(err, &lost) {
			t.Errorf("%v", err)
		}
		next := mustLock(t, client.Client, "primary", palisade.ClientID("node-2"))
		if leader := mustNext(t, election); leader == nil || leader.Token != next.Token() || leader.Token <= leads.Token() {
			t.Errorf("%+v", leader)
		}
		election.Close()
		if election.Next() || !errors.Is(election.Err(), context.Canceled) {
			t.Errorf("%v", election.Err())
		}
	})
}

func TestALossIsFoundByAProclamation(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		leads := mustLock(t, client.again(t, palisade.WithoutNotices()), "primary", palisade.TTL(time.Hour))
		if err := client.Break(within(t), "primary", leads.Token(), "the test"); err != nil {
			t.Fatal(err)
		}
		// The next renewal would be in twenty minutes.
		var lost *palisade.LostError
		if err := leads.Proclaim(within(t), "x"); !errors.As(err, &lost) || lost.Err.Code != "revoked" {
			t.Errorf("%v", err)
		}
		<-leads.Lost()
	})
}

func TestOnlyALeaderHasAValue(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		reader := mustLock(t, client.Client, "report", palisade.Shared())
		permit := mustLock(t, client.Client, "gpu", palisade.Permits(1, 2))
		for _, lease := range []*palisade.Lease{reader, permit} {
			if err := lease.Proclaim(within(t), "x"); !errors.Is(err, palisade.ErrInvalid) {
				t.Errorf("%v: %v", lease, err)
			}
			if leader, err := client.Leader(within(t), lease.Name()); leader != nil || err != nil {
				t.Errorf("%+v, %v", leader, err)
			}
		}
		leads := mustLock(t, client.Client, "primary")
		if err := leads.Proclaim(within(t), strings.Repeat("x", 257)); !errors.Is(err, palisade.ErrInvalid) {
			t.Errorf("%v", err)
		}
		for _, election := range []*palisade.Observer{client.Observe(within(t), "..")} {
			if election.Next() || !errors.Is(election.Err(), palisade.ErrInvalid) {
				t.Errorf("%v", election.Err())
			}
		}
	})
}

// While its connection is broken, an observer may miss leaders, and never the last one.
func TestAnObserverGoesOnAfterABrokenConnection(t *testing.T) {
	behind, err := url.Parse(testserver.Serve(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(behind) }, FlushInterval: -1}
	front := httptest.NewServer(proxy)
	defer front.Close()
	direct := newClient(t, palisade.Endpoints(behind.String()))
	election := newClient(t, palisade.Endpoints(front.URL)).Observe(within(t), "primary")
	// Before the front, which waits for its connections.
	defer election.Close()
	mustNext(t, election)
	for range []int{1, 2, 3} {
		front.CloseClientConnections()
		_ = mustLock(t, direct, "primary", palisade.ClientID("short")).Release(within(t))
		leads := mustLock(t, direct, "primary")
		var before uint64
		for leader := mustNext(t, election); leader == nil || leader.Token != leads.Token(); leader = mustNext(t, election) {
			if leader != nil && leader.Token <= before {
				t.Errorf("%+v after token %d", leader, before)
			}
			if leader != nil {
				before = leader.Token
			}
		}
		if err := leads.Release(within(t)); err != nil {
			t.Error(err)
		}
		if leader := mustNext(t, election); leader != nil {
			t.Errorf("%+v", leader)
		}
	}
}
