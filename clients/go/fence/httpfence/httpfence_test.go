package httpfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"palisade.example/palisade"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/httpfence"
	"palisade.example/palisade/internal/testserver"
)

// orders is an API that knows nothing of fences: one number.
type orders struct {
	mu     sync.Mutex
	total  string
	writes int
}

func (o *orders) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.Method == http.MethodPut {
		body, _ := io.ReadAll(r.Body)
		o.total = string(body)
		o.writes++
	}
	fmt.Fprint(w, o.total)
}

// gateway is `palisade gateway` before such an API.
func gateway(t *testing.T) (string, *orders) {
	t.Helper()
	api := &orders{total: "0"}
	upstream := httptest.NewServer(api)
	t.Cleanup(upstream.Close)
	server := testserver.Palisade(t, "gateway", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--upstream", upstream.URL, "--data", filepath.Join(t.TempDir(), "gateway"))
	return server.URL + "/orders", api
}

func request(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func do(t *testing.T, holder fence.Holder, r *http.Request) (string, error) {
	t.Helper()
	client := &http.Client{Transport: httpfence.Transport(holder, nil)}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	refused := httpfence.Check(answer)
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if refused == nil && answer.StatusCode != 200 && answer.StatusCode != 204 {
		t.Fatalf("%s %s: %s %s", r.Method, r.URL, answer.Status, body)
	}
	return string(body), refused
}

func TestANewerHolderShutsTheOlderOneOut(t *testing.T) {
	url, api := gateway(t)
	if _, err := do(t, fence.Token(7), request(t, "PUT", url, "1")); err != nil {
		t.Fatal(err)
	}
	if _, err := do(t, fence.Token(8), httpfence.Claim(request(t, "POST", url, ""))); err != nil {
		t.Fatal(err)
	}
	body, err := do(t, fence.Token(7), request(t, "PUT", url, "2"))
	var rejection *fence.Rejection
	if !errors.Is(err, fence.ErrStale) || !errors.As(err, &rejection) || rejection.Highest != 8 {
		t.Errorf("%v", err)
	}
	if !strings.Contains(body, "stale") {
		t.Errorf("after Check the body is %q", body)
	}
	if total, err := do(t, fence.Token(8), request(t, "GET", url, "")); err != nil || total != "1" {
		t.Errorf("%q, %v", total, err)
	}
	if api.writes != 1 {
		t.Errorf("the API carried out %d writes", api.writes)
	}
}

func TestANumberedWriteIsCarriedOutOnce(t *testing.T) {
	url, api := gateway(t)
	for range [2]int{} {
		if _, err := do(t, fence.Token(7), httpfence.Numbered(request(t, "PUT", url, "1"), 1)); err != nil {
			t.Fatal(err)
		}
	}
	if api.writes != 1 {
		t.Errorf("the API carried out %d writes", api.writes)
	}
	_, err := do(t, fence.Token(7), httpfence.Numbered(request(t, "PUT", url, "2"), 1))
	var rejection *fence.Rejection
	if !errors.As(err, &rejection) || rejection.Code != "sequence_reused" {
		t.Errorf("%v", err)
	}
}

func TestAHolderThatLostItsLeaseSendsNothing(t *testing.T) {
	url, api := gateway(t)
	client, err := palisade.New(palisade.Endpoints(testserver.Serve(t).URL))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	lease, err := client.Lock(ctx, "/")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := do(t, lease, request(t, "PUT", url, "1")); err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := do(t, lease, request(t, "PUT", url, "2")); !errors.Is(err, palisade.ErrLost) {
		t.Errorf("%v", err)
	}
	if api.writes != 1 {
		t.Errorf("the API carried out %d writes", api.writes)
	}
}

func TestTheCallersRequestIsNotChanged(t *testing.T) {
	url, _ := gateway(t)
	r := request(t, "PUT", url, "1")
	if _, err := do(t, fence.NewPass(7, "authority", "orders"), r); err != nil {
		t.Fatal(err)
	}
	if len(r.Header) != 0 {
		t.Errorf("%v", r.Header)
	}
}

func TestOtherErrorsAreTheServices(t *testing.T) {
	for _, body := range []string{`{"error": {"code": "no_such_order"}}`, `{"error": "stale"}`, "stale", ""} {
		answer := &http.Response{StatusCode: 409, Body: io.NopCloser(strings.NewReader(body))}
		if err := httpfence.Check(answer); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		if left, _ := io.ReadAll(answer.Body); string(left) != body {
			t.Errorf("%q is left of %q", left, body)
		}
	}
}
