// Package guardrow contains the common part of the fences of SQL databases: claims in the order of their names, a
// transaction around them, and a row as its columns.
package guardrow

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sort"
	"time"

	"palisade.example/palisade/fence"
)

// MaxResultBytes is the length of the longest result that is recorded with a numbered write.
const MaxResultBytes = 65_536

// A Claim is one resource and who presents a token there.
type Claim struct {
	Resource string
	Holder   fence.Holder
}

// InNameOrder checks claims and sorts them, so that no two transactions wait for each other.
func InNameOrder(holders map[string]fence.Holder, operation fence.Operation) ([]Claim, error) {
	if len(holders) == 0 {
		return nil, errors.New("palisade: there is no resource to claim")
	}
	if err := fence.CheckSequence(operation.Sequence); err != nil {
		return nil, err
	}
	claims := make([]Claim, 0, len(holders))
	for resource, holder := range holders {
		if err := fence.CheckResource(resource); err != nil {
			return nil, err
		}
		if err := fence.CheckHolder(holder); err != nil {
			return nil, err
		}
		claims = append(claims, Claim{resource, holder})
	}
	sort.Slice(claims, func(a, b int) bool { return claims[a].Resource < claims[b].Resource })
	return claims, nil
}

// LeaseLeft is the shortest time in milliseconds that is left of the leases that present the tokens, and whether one does.
func LeaseLeft(claims []Claim) (left int64, known bool) {
	left = 999_999_999
	for _, claim := range claims {
		if lease, ok := claim.Holder.(interface{ Remaining() time.Duration }); ok {
			left, known = min(left, lease.Remaining().Milliseconds()+1), true
		}
	}
	return left, known
}

// Transact claims and works in one transaction, and commits unless one of them fails or panics.
func Transact(ctx context.Context, db *sql.DB, claim, work func(*sql.Tx) error) error {
	return TransactWith(ctx, db, nil, claim, work)
}

// TransactWith is like Transact, with options.
func TransactWith(
	ctx context.Context, db *sql.DB, options *sql.TxOptions, claim, work func(*sql.Tx) error,
) error {
	tx, err := db.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	// After a commit this does nothing.
	defer func() { _ = tx.Rollback() }()
	if err := claim(tx); err != nil {
		return err
	}
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// A Row has the columns of a guard row as a database returns them.
type Row struct {
	Resource                string
	authority, lock         sql.NullString
	token, sequence, digest sql.NullInt64
	written                 bool
	result                  []byte
}

// Columns is where to scan resource, authority, lock, token, written, sequence, digest and result.
func (r *Row) Columns() []any {
	return []any{&r.Resource, &r.authority, &r.lock, &r.token, &r.written, &r.sequence, &r.digest, &r.result}
}

// Record is the row's record. A digest has no sign, and BIGINT has one.
func (r *Row) Record() fence.Record {
	return fence.Record{
		Authority: r.authority.String,
		Lock:      r.lock.String,
		Token:     uint64(r.token.Int64),
		Written:   r.written,
		Numbered:  r.sequence.Valid,
		Sequence:  uint64(r.sequence.Int64),
		HasDigest: r.digest.Valid,
		Digest:    uint64(r.digest.Int64),
		Result:    r.result,
	}
}

// Values are those of authority, lock, token, written, sequence, digest and result; missing values are NULL.
func Values(record fence.Record) []any {
	result := any(nil)
	if record.Result != nil {
		result = record.Result
	}
	return []any{
		OrNull(record.Authority != "", record.Authority),
		OrNull(record.Lock != "", record.Lock),
		OrNull(record.Token != 0, int64(record.Token)),
		record.Written,
		OrNull(record.Numbered, int64(record.Sequence)),
		OrNull(record.HasDigest, int64(record.Digest)),
		result,
	}
}

// OrNull is the value if it is there, and NULL otherwise.
func OrNull(there bool, value any) any {
	if there {
		return value
	}
	return nil
}

// CheckResult refuses a result that is too long to be recorded.
func CheckResult(result []byte) error {
	if len(result) > MaxResultBytes {
		return fmt.Errorf("palisade: the result has %d bytes; 0 to %d are allowed", len(result), MaxResultBytes)
	}
	return nil
}

// NotLast says that a result belongs to another write than the last one.
func NotLast(resource string, token, sequence uint64) error {
	return fmt.Errorf("palisade: %s: the last write there is not number %d of token %d", resource, sequence, token)
}

// A NotInstalled is fence.ErrNotInstalled with the driver's error in its chain.
type NotInstalled struct {
	Err    error
	Advice string
}

func (e *NotInstalled) Error() string { return "palisade: " + e.Err.Error() + "; " + e.Advice }

// Is tells whether target is fence.ErrNotInstalled.
func (e *NotInstalled) Is(target error) bool { return target == fence.ErrNotInstalled }

// Unwrap returns the driver's error.
func (e *NotInstalled) Unwrap() error { return e.Err }
