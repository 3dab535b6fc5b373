package palisade_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"palisade.example/palisade"
)

func mustUpgrade(t *testing.T, reader *palisade.Lease) *palisade.Lease {
	t.Helper()
	writer, err := reader.Upgrade(within(t), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return writer
}

func TestAReaderBecomesTheWriterAndAReaderAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		reader := mustLock(t, client.Client, "report", palisade.Update(), palisade.ClientID("me"))
		if !reader.Shared() || !reader.Update() {
			t.Error("it is no reader in mode update")
		}
		writer := mustUpgrade(t, reader)
		if writer.Shared() || writer.Update() || writer.ClientID() != "me" || writer.Token() <= reader.Token() {
			t.Errorf("%v after %v", writer, reader)
		}
		if err := reader.Check(); !errors.Is(err, palisade.ErrLost) {
			t.Errorf("the reader: %v", err)
		}
		select {
		case <-reader.Lost():
			t.Error("the upgrade was announced as a loss")
		case <-reader.Context().Done():
		}
		again, err := writer.Downgrade(within(t))
		if err != nil {
			t.Fatal(err)
		}
		if !again.Shared() || again.Update() || again.Token() <= writer.Token() {
			t.Errorf("%v after %v", again, writer)
		}
		if err := reader.Release(within(t)); !errors.Is(err, palisade.ErrLost) {
			t.Errorf("the release of the reader: %v", err)
		}
		if err := again.Release(within(t)); err != nil {
			t.Error(err)
		}
	})
}

func TestADenialNamesAReaderAndTheReaderGoesOn(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		slow := mustLock(t, client.Client, "report", palisade.Shared(), palisade.ClientID("slow"))
		reader := mustLock(t, client.Client, "report", palisade.Update())
		_, err := reader.Upgrade(within(t), 50*time.Millisecond)
		var held *palisade.HeldError
		if !errors.As(err, &held) || held.Holder == nil || held.Holder.ClientID != "slow" {
			t.Fatalf("%v", err)
		}
		if err := reader.Check(); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(within(t))
		ended := make(chan error)
		go func() {
			_, err := reader.Upgrade(ctx, time.Minute)
			ended <- err
		}()
		waitForWaiter(t, client.Client, "report", 1)
		if _, err := reader.Upgrade(within(t), 0); !errors.Is(err, palisade.ErrInvalid) || !strings.Contains(err.Error(), "under way") {
			t.Errorf("%v", err)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		waitForWaiter(t, client.Client, "report", 0)
		if err := reader.Check(); err != nil {
			t.Error(err)
		}
		for _, lease := range []*palisade.Lease{reader, slow} {
			if err := lease.Release(within(t)); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestAReaderThatIsRevokedEndsItsUpgradeWithTheLoss(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		mustLock(t, client.Client, "report", palisade.Shared())
		reader := mustLock(t, client.Client, "report", palisade.Update())
		ended := make(chan error)
		go func() {
			_, err := reader.Upgrade(within(t), time.Minute)
			ended <- err
		}()
		waitForWaiter(t, client.Client, "report", 1)
		if err := client.Break(within(t), "report", reader.GrantID(), "the test"); err != nil {
			t.Fatal(err)
		}
		var lost *palisade.LostError
		if err := <-ended; !errors.As(err, &lost) || lost.Err.Code != "revoked" {
			t.Errorf("%v", err)
		}
		<-reader.Lost()
	})
}

func TestAWrongUpgradeIsNamed(t *testing.T) {
	onBoth(t, func(t *testing.T, client servedClient) {
		for _, options := range [][]palisade.LockOption{{palisade.Shared()}, {}} {
			lease := mustLock(t, client.Client, "report", options...)
			if _, err := lease.Upgrade(within(t), 0); !errors.Is(err, palisade.ErrInvalid) {
				t.Errorf("%v", err)
			}
			if err := lease.Check(); err != nil {
				t.Error(err)
			}
			_ = lease.Release(within(t))
		}
		reader := mustLock(t, client.Client, "report", palisade.Update())
		if _, err := reader.Upgrade(within(t), -1); !errors.Is(err, palisade.ErrInvalid) {
			t.Errorf("%v", err)
		}
		if _, err := client.Lock(within(t), "gpu", palisade.Update(), palisade.Permits(1, 2)); !errors.Is(err, palisade.ErrInvalid) {
			t.Errorf("%v", err)
		}
		if _, err := client.Locks(within(t), []string{"a", "b"}, palisade.Update()); !errors.Is(err, palisade.ErrInvalid) {
			t.Errorf("%v", err)
		}
	})
}

func TestABearerTokenThatIsReplacedInItsFileIsTaken(t *testing.T) {
	var counts atomic.Value
	counts.Store("one")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Palisade-Nonce", r.Header.Get("Palisade-Nonce"))
		if r.Header.Get("Authorization") != "Bearer "+counts.Load().(string) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error": {"code": "unauthenticated", "message": "another token counts"}}`))
			return
		}
		_, _ = w.Write([]byte(`{"resource_id": "report", "holder": null, "waiters": 0}`))
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "token")
	// As Kubernetes does: the new file takes the old one's place.
	replace := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".fresh", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".fresh", file); err != nil {
			t.Fatal(err)
		}
	}
	replace("one\n")
	client := newClient(t, palisade.Endpoints(server.URL), palisade.BearerTokenFile(file))
	fixed := newClient(t, palisade.Endpoints(server.URL), palisade.BearerToken("one"))
	show(t, client, "report")
	show(t, fixed, "report")
	replace("two\n")
	counts.Store("two")
	show(t, client, "report")
	// A control: a client that does not read the file again is refused.
	var refused *palisade.Error
	if _, err := fixed.Show(within(t), "report"); !errors.As(err, &refused) || refused.Code != "unauthenticated" {
		t.Errorf("%v", err)
	}
	// While the file cannot be used, the last token stays.
	replace("two words")
	show(t, client, "report")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	show(t, client, "report")
	for _, options := range [][]palisade.Option{
		{palisade.BearerTokenFile(file)}, {palisade.BearerTokenFile(file), palisade.BearerToken("one")},
	} {
		if _, err := palisade.New(options...); !errors.Is(err, palisade.ErrInvalid) {
			t.Errorf("%v", err)
		}
	}
}
