package sqltest

import (
	"context"
	"database/sql"
	"time"

	"palisade.example/palisade"
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
