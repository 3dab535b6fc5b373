package gormtest

import (
	"context"

	"gorm.io/gorm"

	"palisade.example/palisade"
	"palisade.example/palisade/fence/postgres"
)

func order(ctx context.Context, client *palisade.Client, db *gorm.DB) error {
	return client.With(ctx, "orders", func(ctx context.Context, lease *palisade.Lease) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			if err := postgres.Claim(ctx, tx.Statement.ConnPool, "orders", lease); err != nil { // first
				return err
			}
			return tx.Exec("UPDATE orders SET total = total + 1").Error
		})
	})
}
