package palisade_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"palisade.example/palisade"
)

func mustExport(t *testing.T, lease *palisade.Lease) string {
	t.Helper()
	text, err := lease.Export()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func mustAdopt(t *testing.T, client *palisade.Client, text string) *palisade.Lease {
	t.Helper()
	lease, err := client.Adopt(within(t), text)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// exportedFields are those of the text.
func exportedFields(t *testing.T, text string) map[string]any {
	t.Helper()
	content, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(text, "palisade-lease/1."))
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(content, &fields); err != nil {
		t.Fatal(err)
	}
	return fields
}

func TestAHandedOverLeaseIsHeldByTheAdopterAlone(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		first := mustLock(t, client.Client, "orders", palisade.TTL(20*time.Second), palisade.ClientID("me"), palisade.Metadata("why"))
		text := mustExport(t, first)
		var lost *palisade.LostError
		if err := first.Check(); !errors.As(err, &lost) || lost.Err.Code != "handed_over" || first.Context().Err() == nil {
			t.Errorf("%v", err)
		}
		select {
		case <-first.Lost():
			t.Error("the hand-over was announced as a loss")
		default:
		}
		for _, err := range []error{first.Release(within(t)), first.ReleasePart(within(t), "orders")} {
			if !errors.As(err, &lost) || lost.Err.Code != "handed_over" {
				t.Errorf("a release: %v", err)
			}
		}
		if _, err := first.Export(); !errors.Is(err, palisade.ErrLost) {
			t.Errorf("a second time: %v", err)
		}
		if holder := show(t, client.Client, "orders").Holder; holder == nil || holder.Token != first.Token() {
			t.Fatalf("released by the exporter: %+v", holder)
		}
		second := mustAdopt(t, client.again(t), text+"\n")
		if err := second.Check(); err != nil {
			t.Fatal(err)
		}
		if second.Token() != first.Token() || second.Authority() != first.Authority() || second.Name() != "orders" ||
			second.ClientID() != "me" || second.GrantID() != first.GrantID() {
			t.Errorf("%v, handed over as %v", second, first)
		}
		if left := second.Remaining(); left <= 15*time.Second || left >= 20*time.Second {
			t.Errorf("%v remain", left)
		}
		if err := second.Release(within(t)); err != nil {
			t.Error(err)
		}
		if holder := show(t, client.Client, "orders").Holder; holder != nil {
			t.Errorf("still held: %+v", holder)
		}
		// A lease that is over is not adopted.
		if _, err := client.Adopt(within(t), text); !errors.As(err, &lost) || lost.Err.Code != "not_held" {
			t.Errorf("after the release: %v", err)
		}
		if _, err := second.Export(); !errors.Is(err, palisade.ErrLost) {
			t.Errorf("of a lease that was released: %v", err)
		}
	})
}

func TestEveryKindOfLeaseIsHandedOver(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		other := client.again(t)
		both, err := client.Locks(within(t), []string{"a", "b", "c"})
		if err != nil {
			t.Fatal(err)
		}
		if err := both.ReleasePart(within(t), "a"); err != nil {
			t.Fatal(err)
		}
		rest := mustAdopt(t, other, mustExport(t, both))
		if !reflect.DeepEqual(rest.Locks(), []string{"b", "c"}) || rest.Token() != both.Token() {
			t.Errorf("%v", rest)
		}
		if err := rest.Release(within(t)); err != nil {
			t.Error(err)
		}
		if found := holders(t, other, "b", "c"); !reflect.DeepEqual(found, []uint64{0, 0}) {
			t.Errorf("held under %v", found)
		}

		// If one of several is over, the others are useless.
		if both, err = client.Locks(within(t), []string{"a", "b"}); err != nil {
			t.Fatal(err)
		}
		text := mustExport(t, both)
		if err := client.Break(within(t), "b", both.Token(), "the test"); err != nil {
			t.Fatal(err)
		}
		var lost *palisade.LostError
		if _, err := other.Adopt(within(t), text); !errors.As(err, &lost) || lost.Name != "b" || lost.Err.Code != "revoked" {
			t.Errorf("%v", err)
		}
		for ctx := within(t); holders(t, other, "a")[0] != 0; {
			if ctx.Err() != nil {
				t.Fatal("never released")
			}
		}

		permits := mustLock(t, client.Client, "gpu", palisade.Permits(2, 3))
		adopted := mustAdopt(t, other, mustExport(t, permits))
		if !reflect.DeepEqual(adopted.SlotKeys(), []string{"gpu~1", "gpu~2"}) {
			t.Errorf("%v", adopted.SlotKeys())
		}
		if err := adopted.Release(within(t)); err != nil {
			t.Error(err)
		}

		mustLock(t, client.Client, "report", palisade.Shared())
		reader := mustAdopt(t, other, mustExport(t, mustLock(t, client.Client, "report", palisade.Update())))
		if !reader.Update() || reader.GrantID() == reader.Token() {
			t.Errorf("%v, grant %d", reader, reader.GrantID())
		}
		if _, err := reader.Upgrade(within(t), 0); !errors.Is(err, palisade.ErrHeld) {
			t.Errorf("beside a reader: %v", err)
		}
		if err := reader.Release(within(t)); err != nil {
			t.Error(err)
		}
	})
}

// TestExporter is the process of the next test that exports: it holds the lock in a scope, prints the text, and ends.
func TestExporter(t *testing.T) {
	url := os.Getenv("PALISADE_TEST_EXPORTER")
	if url == "" {
		t.Skip("the other process of the test below")
	}
	client, err := palisade.New(palisade.Endpoints(url))
	if err != nil {
		t.Fatal(err)
	}
	err = client.With(within(t), "orders", func(_ context.Context, lease *palisade.Lease) error {
		if os.Getenv("PALISADE_TEST_KEEPS") != "" {
			fmt.Println("palisade-lease/1.none")
			return nil
		}
		text, err := lease.Export()
		fmt.Println(text)
		return err
	}, palisade.TTL(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
}

func exporter(t *testing.T, url string, more ...string) string {
	t.Helper()
	command := exec.Command(os.Args[0], "-test.run=^TestExporter$", "-test.v")
	command.Env = append(append(os.Environ(), "PALISADE_TEST_EXPORTER="+url), more...)
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	for _, line := range strings.Split(string(output), "\n") {
		if strings.HasPrefix(line, "palisade-lease/1.") {
			return line
		}
	}
	t.Fatalf("no lease was exported: %s", output)
	return ""
}

func TestALeaseOfAProcessThatEndedIsAdopted(t *testing.T) {
	client, server := served(t)
	text := exporter(t, server.URL)
	lease := mustAdopt(t, client, text)
	if _, err := client.TryLock(within(t), "orders"); !errors.Is(err, palisade.ErrHeld) {
		t.Errorf("the lock of an adopted lease: %v", err)
	}
	if err := lease.Release(within(t)); err != nil {
		t.Error(err)
	}
	// A control: a scope that did not export releases its lock.
	exporter(t, server.URL, "PALISADE_TEST_KEEPS=1")
	if holder := show(t, client, "orders").Holder; holder != nil {
		t.Errorf("held after the scope: %+v", holder)
	}
}

// The clocks of two machines differ, so nothing that the exporter's clock said reaches the adopter.
func TestAnExportedLeaseHasNoDeadline(t *testing.T) {
	l := newLiar(t)
	client := newClient(t, palisade.Endpoints(l.url), palisade.Patience(time.Second))
	first := mustLock(t, client, "orders", palisade.TTL(15*time.Second))
	// The server renewed it for one second only, long after.
	l.does(field("valid_for_ms", 1000))
	text := mustExport(t, first)
	for name := range exportedFields(t, text) {
		switch name {
		case "lock", "authority", "fencing_token", "lock_token", "ttl_ms", "client_id":
		default:
			t.Errorf("there is a field %s", name)
		}
	}
	second := mustAdopt(t, client, text)
	if left := second.Remaining(); left > time.Second {
		t.Errorf("%v remain of the second of the first renewal", left)
	}
	// Without an acknowledged renewal nothing is held.
	for name, lie := range map[string]func(map[string]any, *told){
		"no nonce":          func(_ map[string]any, answer *told) { answer.nonce = "" },
		"another token":     field("fencing_token", 8),
		"another authority": field("authority", "b"),
		"no time":           field("valid_for_ms", nil),
		"unavailable": func(_ map[string]any, answer *told) {
			answer.status, answer.body = 503, map[string]any{"error": map[string]any{"code": "unavailable", "message": "away"}}
		},
	} {
		l.does(lie)
		if _, err := client.Adopt(within(t), text); !errors.Is(err, palisade.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A control: with the deadline of the exporter an adopter would hold now, however long ago the export was.
	l.does(func(_ map[string]any, answer *told) {
		answer.status, answer.body = 410, map[string]any{"error": map[string]any{"code": "expired", "message": "over"}}
	})
	var lost *palisade.LostError
	if _, err := client.Adopt(within(t), text); !errors.As(err, &lost) || lost.Err.Code != "expired" {
		t.Errorf("%v", err)
	}
	if released := l.count("release"); released != 0 {
		t.Errorf("%d releases were sent", released)
	}
}

func TestATextThatIsNoLeaseIsRefusedAndNotPrinted(t *testing.T) {
	client := newClient(t, palisade.Endpoints("http://127.0.0.1:1"))
	good := map[string]any{"lock": "orders", "authority": "a", "fencing_token": 7, "lock_token": "s3cret",
		"ttl_ms": 15000, "client_id": "me"}
	text := func(changes map[string]any) string {
		fields := map[string]any{}
		for _, each := range []map[string]any{good, changes} {
			for name, value := range each {
				fields[name] = value
			}
		}
		content, _ := json.Marshal(fields)
		return "palisade-lease/1." + base64.RawURLEncoding.EncodeToString(content)
	}
	wrong := []string{"", "s3cret", "palisade-lease/2.e30", "palisade-lease/1.*", "palisade-lease/1.bnVsbA", "palisade-lease/1.e30"}
	for name, values := range map[string][]any{
		"lock":          {"", "ä", nil, 7},
		"authority":     {""},
		"fencing_token": {0, -1, 1 << 53, "7"},
		"lock_token":    {""},
		"ttl_ms":        {0, 99, 86_400_001},
		"client_id":     {""},
		"parts":         {[]string{}, []string{"a", "b"}, []string{"orders", "orders"}},
		"mode":          {"shared", "upgrade"},
		"slots":         {[]int{0}, []int{2, 1}, []int{1}},
		"metadata":      {strings.Repeat("x", 257)},
	} {
		for _, value := range values {
			wrong = append(wrong, text(map[string]any{name: value}))
		}
	}
	for _, each := range wrong {
		_, err := client.Adopt(within(t), each)
		if !errors.Is(err, palisade.ErrInvalid) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", each, err)
		}
	}
	if _, err := newClient(t, palisade.Endpoints("http://127.0.0.1:1"), palisade.Patience(time.Millisecond)).
		Adopt(within(t), text(map[string]any{"of_a_later_version": 1})); !errors.Is(err, palisade.ErrUnavailable) {
		t.Errorf("an unknown field: %v", err)
	}
}

func TestATryAsksOnceUnlessAWaitIsGiven(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		lease, err := client.TryLock(within(t), "orders")
		if err != nil {
			t.Fatal(err)
		}
		for range []int{1, 2} {
			// With a wait of 30 s these would take a minute.
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if _, err := client.TryLock(ctx, "orders"); !errors.Is(err, palisade.ErrHeld) {
				t.Errorf("%v", err)
			}
			if _, err := client.TryLocks(ctx, []string{"a", "orders"}); !errors.Is(err, palisade.ErrHeld) {
				t.Errorf("%v", err)
			}
		}
		go func() {
			waitForWaiter(t, client.Client, "orders", 1)
			_ = lease.Release(context.Background())
		}()
		if _, err := client.TryLock(within(t), "orders", palisade.Wait(patience)); err != nil {
			t.Errorf("with a wait: %v", err)
		}
	})
}
