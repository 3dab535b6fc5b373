package palisadegocron_test

import (
	"context"
	"time"

	"github.com/go-co-op/gocron/v2"

	"palisade.example/palisade"
	"palisade.example/palisade/fence/files"
	"palisade.example/palisade/palisadegocron"
)

func nightly(client *palisade.Client, folder *files.Folder) (gocron.Scheduler, error) {
	locker := palisadegocron.NewLocker(client, 5*time.Second) // no other run begins within 5 s, however late its clock is
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		return nil, err
	}
	task := locker.Task(func(ctx context.Context, lease *palisade.Lease) error {
		return folder.Put(ctx, lease, "/report", []byte("done")) // fence.ErrStale: a newer run has claimed
	})
	_, err = scheduler.NewJob(gocron.DurationJob(time.Minute), task, gocron.WithName("nightly"))
	return scheduler, err
}

func elected(client *palisade.Client, folder *files.Folder) (gocron.Scheduler, error) {
	elector := palisadegocron.NewElector(client, "cron-leader")
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		return nil, err
	}
	task := elector.Task(func(ctx context.Context, lease *palisade.Lease) error {
		return folder.Put(ctx, lease, "/report", []byte("done"))
	})
	_, err = scheduler.NewJob(gocron.DurationJob(time.Minute), task)
	return scheduler, err
}
