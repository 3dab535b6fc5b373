package managertest

import (
	"context"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"palisade.example/palisade/fence/files"
	"palisade.example/palisade/palisadek8s"
)

func newManager(config *rest.Config, lock *palisadek8s.Lock, options ctrl.Options) (manager.Manager, error) {
	options.LeaderElection, options.LeaderElectionID = true, "my-operator"
	options.LeaderElectionResourceLockInterface = lock // of palisadek8s.NewLock
	return ctrl.NewManager(config, options)
}

// A Reconciler writes through a fence.
type Reconciler struct {
	lock   *palisadek8s.Lock
	folder *files.Folder
}

// Reconcile takes the lease first.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	lease, err := r.lock.Lease() // once, at the beginning
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.folder.Put(ctx, lease, "/report", []byte("done"))
}
