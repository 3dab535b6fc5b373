package palisadepgx_test

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"palisade.example/palisade"
	"palisade.example/palisade/palisadepgx"
)

func order(ctx context.Context, client *palisade.Client, pool *pgxpool.Pool) error {
	return client.With(ctx, "orders", func(ctx context.Context, lease *palisade.Lease) error {
		return palisadepgx.Transact(ctx, pool, "orders", lease, func(tx pgx.Tx) error { // claims first
			_, err := tx.Exec(ctx, "UPDATE orders SET total = total + 1")
			return err
		})
	})
}
