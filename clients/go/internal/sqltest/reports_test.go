package sqltest

import (
	"database/sql"
	"errors"
	"reflect"
	"testing"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/internal/testserver"
)

// A listener keeps what a lease would tell its authority.
type listener struct {
	fence.Pass
	told []fence.Late
}

func (l *listener) Refused(late fence.Late) { l.told = append(l.told, late) }

func TestAHolderIsToldOfItsLateWrites(t *testing.T) {
	onEach(t, func(t *testing.T, e *engine) {
		free, taken := unique("a"), unique("b")
		e.mustClaim(t, taken, 8)
		l := &listener{Pass: fence.NewPass(7, "one", "orders")}
		for _, work := range []func(tx *sql.Tx) error{
			func(tx *sql.Tx) error { return e.claim(ctx, tx, taken, l) },
			func(tx *sql.Tx) error {
				return e.claimAll(ctx, tx, map[string]fence.Holder{free: l, taken: l, unique("c"): fence.Token(9)})
			},
			func(tx *sql.Tx) error { return e.check(ctx, tx, taken, l) },
			func(tx *sql.Tx) error {
				_, err := e.write(ctx, tx, taken, l, fence.Number{})
				return err
			},
		} {
			if err := transact(t, e.db, work); !errors.Is(err, fence.ErrStale) {
				t.Fatal(err)
			}
		}
		var want []fence.Late
		for _, operation := range []string{"claim", "claim", "read", "write"} {
			want = append(want, fence.Late{Lock: "orders", Resource: taken, Operation: operation, Highest: 8})
		}
		if !reflect.DeepEqual(l.told, want) {
			t.Errorf("%+v", l.told)
		}
		// An admitted claim, and another refusal, are no late writes.
		if err := e.tryClaim(t, free, l); err != nil {
			t.Fatal(err)
		}
		_ = e.tryClaim(t, free, &listener{Pass: fence.NewPass(6, "another", "orders")})
		if len(l.told) != len(want) {
			t.Errorf("%+v", l.told)
		}
	})
}

func TestTheHistoryShowsARefusedTransaction(t *testing.T) {
	server := testserver.Serve(t)
	locks := [2]*palisade.Client{}
	for at := range locks {
		// Without notices a holder learns late that another one has its lock.
		client, err := palisade.New(palisade.Endpoints(server.URL), palisade.WithoutNotices())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		locks[at] = client
	}
	first, err := locks[0].Lock(ctx, "orders", palisade.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := locks[1].Break(ctx, "orders", first.Token(), "it hangs"); err != nil {
		t.Fatal(err)
	}
	second, err := locks[1].Lock(ctx, "orders", palisade.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	// A report of a grant that the history has not seen yet would be lost.
	server.Refused(t, "orders", first.Token(), 0)
	e, resource := onPostgres(t), unique("orders")
	if err := e.tryClaim(t, resource, second); err != nil {
		t.Fatal(err)
	}
	work := func(*sql.Tx) error { return errors.New("the work of a late holder began") }
	if err := e.transact(ctx, e.db, map[string]fence.Holder{resource: first}, work); !errors.Is(err, fence.ErrStale) {
		t.Fatal(err)
	}
	told := server.Refused(t, "orders", first.Token(), 1)
	want := []testserver.Refused{{Resource: resource, Highest: second.Token(), Operation: "claim", Times: 1}}
	if !reflect.DeepEqual(told, want) {
		t.Errorf("%+v", told)
	}
}
