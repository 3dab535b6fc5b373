package sqltest

import (
	"context"
	"database/sql"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/attempts"
	"palisade.example/palisade/fence/postgres"
)

func order(ctx context.Context, client *palisade.Client, db *sql.DB) error {
	return client.With(ctx, "orders", func(ctx context.Context, lease *palisade.Lease) error {
		return postgres.Transact(ctx, db, "orders", lease, func(tx *sql.Tx) error { // claims first: no older holder can write
			_, err := tx.ExecContext(ctx, "UPDATE orders SET total = total + 1")
			return err
		})
	}, palisade.TTL(10*time.Second), palisade.Wait(5*time.Second))
}

func work(ctx context.Context, jobs *attempts.Attempts, db *sql.DB) error {
	attempt, err := jobs.Take(ctx, db, "worker-1") // jobs is attempts.New(attempts.Options{Table: "jobs"})
	if err != nil || attempt == nil {              // nil: no job is ready
		return err
	}
	return jobs.Transact(ctx, db, attempt, func(tx *sql.Tx) error { // all effects: they and `done` commit together
		_, err := tx.ExecContext(ctx, "UPDATE accounts SET total = total + 1")
		return err
	})
}
