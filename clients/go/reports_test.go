//go:build linux

package palisade_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/files"
	"palisade.example/palisade/fence/httpfence"
	"palisade.example/palisade/internal/testserver"
	"palisade.example/palisade/palisadetest"
)

// late is a lease whose lock has a newer holder, and that holder. The first client does not know it yet: it is one without
// notices.
func late(t *testing.T, client, other *palisade.Client, lock string) (first, second *palisade.Lease) {
	t.Helper()
	first = mustLock(t, client, lock, palisade.TTL(time.Hour))
	if err := other.Break(within(t), lock, first.Token(), "it hangs"); err != nil {
		t.Fatal(err)
	}
	return first, mustLock(t, other, lock, palisade.TTL(time.Hour))
}

func mustBeStale(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, fence.ErrStale) {
		t.Fatalf("not refused as stale: %v", err)
	}
}

// awaitDropped returns when so many reports are counted as dropped: a client that is closed drops them a moment later.
func awaitDropped(t *testing.T, client *palisade.Client, atLeast uint64) {
	t.Helper()
	for ctx := within(t); client.ReportsDropped() < atLeast; {
		if ctx.Err() != nil {
			t.Fatalf("%d reports were dropped, not %d", client.ReportsDropped(), atLeast)
		}
		// real time: only a pause between two looks.
		time.Sleep(time.Millisecond)
	}
}

func TestTheHistoryShowsARefusedLateWrite(t *testing.T) {
	server := testserver.Serve(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(upstream.Close)
	other := newClient(t, palisade.Endpoints(server.URL))
	ctx := within(t)
	send := func(holder fence.Holder, address string) error {
		t.Helper()
		request, err := http.NewRequestWithContext(ctx, "PUT", address, strings.NewReader("1"))
		if err != nil {
			t.Fatal(err)
		}
		api := http.Client{Transport: httpfence.Transport(holder, nil)}
		answer, err := api.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		return httpfence.Check(answer)
	}
	silent := map[string]uint64{}
	// The silent ones come first: when the last one's reports are there, theirs would be, too.
	for _, one := range []struct {
		lock    string
		options []palisade.Option
		shown   func(*palisade.Lease) fence.Holder
		reports int
	}{
		{"off", []palisade.Option{palisade.ReportRefusals(false)}, func(l *palisade.Lease) fence.Holder { return l }, 0},
		{"pass", nil, func(l *palisade.Lease) fence.Holder { return fence.NewPass(l.Token(), l.Authority(), l.Name()) }, 0},
		{"orders", nil, func(l *palisade.Lease) fence.Holder { return l }, 3},
	} {
		client := newClient(t, append(one.options, palisade.Endpoints(server.URL), palisade.WithoutNotices())...)
		folder, err := files.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer folder.Close()
		first, second := late(t, client, other, one.lock)
		// A report of a grant that the history has not seen yet would be lost.
		server.Refused(t, one.lock, first.Token(), 0)
		if err := folder.Claim(ctx, second); err != nil {
			t.Fatal(err)
		}
		gateway := testserver.Palisade(t, "gateway", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
			"--upstream", upstream.URL, "--data", filepath.Join(t.TempDir(), "gateway"))
		address := gateway.URL + "/total?secret=1"
		if err := send(second, address); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			mustBeStale(t, folder.Put(ctx, one.shown(first), "/total", []byte("late")))
			mustBeStale(t, send(one.shown(first), address))
		}
		// When this last one is there, those before it are, too: reports keep their order.
		_ = fence.Tell(one.shown(first), "last", "read", &fence.Rejection{Code: "stale", Highest: second.Token()})
		found := map[string]testserver.Refused{}
		for _, refused := range server.Refused(t, one.lock, first.Token(), one.reports) {
			found[refused.Operation] = refused
		}
		if len(found) != one.reports {
			t.Fatalf("%s: %+v", one.lock, found)
		}
		if one.reports == 0 {
			silent[one.lock] = first.Token()
			continue
		}
		put := found["put"]
		// The same one is told once.
		if put.Highest != second.Token() || put.Times != 1 || !strings.HasPrefix(put.Resource, "/") {
			t.Errorf("%+v", put)
		}
		if over := (testserver.Refused{
			Resource: strings.TrimPrefix(gateway.URL, "http://"), Highest: second.Token(), Operation: "PUT /total", Times: 1,
		}); found[over.Operation] != over {
			t.Errorf("%+v", found)
		}
		if dropped := client.ReportsDropped(); dropped != 0 {
			t.Errorf("%d reports were dropped", dropped)
		}
		if err := first.Check(); err != nil {
			t.Errorf("a report ended the lease: %v", err)
		}
	}
	for lock, token := range silent {
		if told := server.Refused(t, lock, token, 0); len(told) > 0 {
			t.Errorf("%s: %+v", lock, told)
		}
	}
}

// Reports that nobody takes delay neither a refusal nor the end of the client.
func TestAReportWaitsForNobody(t *testing.T) {
	server := testserver.Serve(t)
	other := newClient(t, palisade.Endpoints(server.URL))
	type measured struct{ refusals, end time.Duration }
	took := map[bool]measured{}
	leases, clients, folders := map[bool]*palisade.Lease{}, map[bool]*palisade.Client{}, map[bool]*files.Folder{}
	for _, on := range []bool{false, true} {
		client := newClient(t, palisade.Endpoints(server.URL), palisade.ReportRefusals(on), palisade.WithoutNotices())
		first, second := late(t, client, other, fmt.Sprint(on))
		folder, err := files.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer folder.Close()
		if err := folder.Claim(within(t), second); err != nil {
			t.Fatal(err)
		}
		leases[on], clients[on], folders[on] = first, client, folder
	}
	server.Stop(t)
	for _, on := range []bool{false, true} {
		start := time.Now()
		for range 20 {
			mustBeStale(t, folders[on].Put(context.Background(), leases[on], "/total", nil))
		}
		refused := time.Now()
		if err := clients[on].Close(); err != nil {
			t.Fatal(err)
		}
		took[on] = measured{refused.Sub(start), time.Since(refused)}
	}
	// real time: a caller that waited for a report would wait for two seconds; the control is the same without reports.
	without, with := took[false], took[true]
	if with.refusals > 10*without.refusals+time.Second || with.end > 10*without.end+time.Second {
		t.Errorf("with reports %+v, without %+v", with, without)
	}
	awaitDropped(t, clients[true], 1)
	if dropped := clients[false].ReportsDropped(); dropped != 0 {
		t.Errorf("%d reports were made with the option off", dropped)
	}
}

func TestManyRefusalsAreFewReports(t *testing.T) {
	server := testserver.Serve(t)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	var reports atomic.Int64
	var longest atomic.Int64
	pass := httputil.NewSingleHostReverseProxy(address)
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/rejections") {
			reports.Add(1)
			longest.Store(max(longest.Load(), r.ContentLength))
			// At once, so that only the client's own rate bounds them.
			fmt.Fprint(w, `{"recorded": true}`)
			return
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(relay.Close)
	client := newClient(t, palisade.Endpoints(relay.URL))
	lease := mustLock(t, client, "orders")
	start := time.Now()
	for n := range 1000 {
		refusal := &fence.Rejection{Code: "stale", Token: lease.Token(), Highest: lease.Token() + 1}
		resource := fmt.Sprintf("%d-%s", n, strings.Repeat("é", 300))
		mustBeStale(t, fence.Tell(lease, resource, strings.Repeat("ü", 300), refusal))
	}
	// The one that is on its way is in the queue no more.
	if dropped := client.ReportsDropped(); dropped < 1000-64-1-uint64(time.Since(start)/(100*time.Millisecond)) {
		t.Errorf("%d of 1000 reports were dropped: more than 64 wait", dropped)
	}
	for ctx := within(t); reports.Load() < 15; {
		if ctx.Err() != nil {
			t.Fatal("no reports came")
		}
		// real time: the client sends one in 100 ms.
		time.Sleep(10 * time.Millisecond)
	}
	came := reports.Load()
	if most := int64(time.Since(start)/(100*time.Millisecond)) + 1; came > most {
		t.Errorf("%d reports came where %d are allowed", came, most)
	}
	if longest.Load() > 2*255+200 {
		t.Errorf("a report has %d bytes", longest.Load())
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	mustBeStale(t, fence.Tell(lease, "later", "put", &fence.Rejection{Code: "stale", Token: 1, Highest: 2}))
	// Each one is counted, but for those that were sent.
	awaitDropped(t, client, uint64(1001-reports.Load()))
}

func TestAReportNamesTheLockThatWasJudged(t *testing.T) {
	server := testserver.Serve(t)
	client := newClient(t, palisade.Endpoints(server.URL))
	lease, err := client.Locks(within(t), []string{"a", "b", "c"}, palisade.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	part, err := lease.Part("b")
	if err != nil {
		t.Fatal(err)
	}
	for _, lock := range lease.Locks() {
		server.Refused(t, lock, lease.Token(), 0)
	}
	refusal := &fence.Rejection{Code: "stale", Token: lease.Token(), Highest: lease.Token() + 1}
	for _, other := range []string{"wrong_lock", "jump"} {
		_ = fence.Tell(part, "accounts", "claim", &fence.Rejection{Code: other, Highest: refusal.Highest})
	}
	_ = fence.Tell(part, "orders", "claim", fmt.Errorf("the work: %w", refusal))
	_ = fence.Tell(lease, "c", "claim", refusal)
	for lock, resource := range map[string]string{"b": "orders", "c": "c"} {
		told := server.Refused(t, lock, lease.Token(), 1)
		if want := []testserver.Refused{{Resource: resource, Highest: refusal.Highest, Operation: "claim", Times: 1}}; !reflect.DeepEqual(told, want) {
			t.Errorf("%s: %+v", lock, told)
		}
	}
	if told := server.Refused(t, "a", lease.Token(), 0); len(told) > 0 {
		t.Errorf("%+v", told)
	}
}

func TestTheDoubleTakesReports(t *testing.T) {
	server := palisadetest.NewServer()
	client, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	lease := mustLock(t, client, "orders")
	_ = fence.Tell(lease, "orders", "claim", &fence.Rejection{Code: "stale", Token: lease.Token(), Highest: lease.Token() + 1})
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if dropped := client.ReportsDropped(); dropped != 0 {
		t.Errorf("%d reports were dropped", dropped)
	}
}
