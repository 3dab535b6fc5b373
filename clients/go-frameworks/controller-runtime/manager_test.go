// Package managertest tests palisadek8s in a manager of controller-runtime. No API server is needed: the lock replaces the
// only request that such a manager sends.
package managertest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"palisade.example/palisade"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/files"
	"palisade.example/palisade/internal/testserver"
	"palisade.example/palisade/palisadek8s"
	"palisade.example/palisade/palisadetest"
)

func TestThePageHasTheseExamples(t *testing.T) {
	testserver.CheckPage(t, "example_test.go", "controller-runtime", "reconcile")
}

// A reconciler of a manager that leads writes with its token; after the loss, the manager ends, and its writes are refused.
func TestAManagerHasTheToken(t *testing.T) {
	server := palisadetest.NewServer()
	client, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	folder, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	lock, err := palisadek8s.NewLock(client, "my-operator", "this", palisade.TTL(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	lasts, deadline, retry := 3*time.Second, 2*time.Second, 200*time.Millisecond
	manager, err := newManager(&rest.Config{Host: "http://127.0.0.1:1"}, lock, ctrl.Options{
		LeaseDuration: &lasts, RenewDeadline: &deadline, RetryPeriod: &retry, Metrics: metrics.Options{BindAddress: "0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Lease(); !errors.Is(err, palisadek8s.ErrNotLeading) {
		t.Error(err)
	}
	real := &Reconciler{lock, folder}
	outcomes := make(chan error)
	reconciler := reconcile.Func(func(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
		result, err := real.Reconcile(ctx, request)
		select {
		case outcomes <- err:
		case <-ctx.Done():
		}
		return result, nil
	})
	events := make(chan event.GenericEvent, 2)
	made, err := controller.New("orders", manager, controller.Options{Reconciler: reconciler})
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Watch(source.Channel(events, &handler.EnqueueRequestForObject{})); err != nil {
		t.Fatal(err)
	}
	within, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(within) }()
	object := &corev1.ConfigMap{}
	object.Name = "one"
	events <- event.GenericEvent{Object: object}
	if err := <-outcomes; err != nil {
		t.Fatal(err)
	}
	// A newer leader has claimed.
	lease, err := lock.Lease()
	if err != nil {
		t.Fatal(err)
	}
	newer := fence.NewPass(lease.Token()+5, lease.Authority(), lease.Name())
	if err := folder.Put(within, newer, "/report", []byte("newer")); err != nil {
		t.Fatal(err)
	}
	events <- event.GenericEvent{Object: object}
	if err := <-outcomes; !errors.Is(err, fence.ErrStale) {
		t.Error(err)
	}
	server.Expire("my-operator")
	<-lease.Lost()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "leader election lost") {
		t.Error(err)
	}
	if _, err := real.Reconcile(within, ctrl.Request{}); !errors.Is(err, palisadek8s.ErrNotLeading) {
		t.Error(err)
	}
	if tokens := server.Tokens("my-operator"); len(tokens) != 1 {
		t.Error(tokens)
	}
}
