package palisadek8s_test

import (
	"context"
	"os"
	"time"

	"k8s.io/client-go/tools/leaderelection"

	"palisade.example/palisade"
	"palisade.example/palisade/fence/files"
	"palisade.example/palisade/palisadek8s"
)

func lead(ctx context.Context, client *palisade.Client, folder *files.Folder, stopped func()) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	config := leaderelection.LeaderElectionConfig{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}
	lock, err := palisadek8s.NewLock(client, "my-operator", host)
	if err != nil {
		return err
	}
	config.Lock, config.Callbacks.OnStoppedLeading = lock, stopped
	config.Callbacks.OnStartedLeading = lock.Leading(func(ctx context.Context, lease *palisade.Lease) {
		_ = folder.Put(ctx, lease, "/report", []byte("done")) // fence.ErrStale: a newer leader has claimed
	})
	leaderelection.RunOrDie(ctx, config)
	return nil
}
