package sqltest

import (
	"errors"
	"testing"

	"palisade.example/palisade"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/internal/testserver"
)

func permits(t *testing.T) (string, *palisade.Client, func(count int) *palisade.Lease) {
	t.Helper()
	client, err := palisade.New(palisade.Endpoints(testserver.Serve(t).URL))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	gpu := unique("gpu")
	return gpu, client, func(count int) *palisade.Lease {
		lease, err := client.Lock(ctx, gpu, palisade.Permits(count, 2), palisade.Wait(0))
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
}

func TestAZombieOfASlotIsRefusedBesideALiveHolder(t *testing.T) {
	onEach(t, func(t *testing.T, e *engine) {
		gpu, client, take := permits(t)
		claim := func(lease *palisade.Lease) error {
			return e.tryClaim(t, lease.SlotKeys()[0], fence.Token(lease.Token()))
		}
		zombie, live := take(1), take(1)
		if one, two := zombie.SlotKeys()[0], live.SlotKeys()[0]; one != gpu+"~1" || two != gpu+"~2" {
			t.Fatalf("%s, %s", one, two)
		}
		for _, lease := range []*palisade.Lease{zombie, live} {
			if err := claim(lease); err != nil {
				t.Fatal(err)
			}
		}
		if err := client.Break(ctx, gpu, zombie.Token(), "it is paused"); err != nil {
			t.Fatal(err)
		}
		successor := take(1)
		if err := claim(successor); err != nil || successor.Slots()[0] != 1 || successor.Token() <= live.Token() {
			t.Fatalf("%v, %v", successor.Slots(), err)
		}
		if err := claim(zombie); !errors.Is(err, fence.ErrStale) {
			t.Errorf("the zombie: %v", err)
		}
		if err := claim(live); err != nil {
			t.Errorf("a live holder: %v", err)
		}
	})
}

// Why each slot has a fence of its own.
func TestOneFenceForAllSlotsRefusesALiveHolder(t *testing.T) {
	e := onPostgres(t)
	gpu, _, take := permits(t)
	older, newer := take(1), take(1)
	e.mustClaim(t, gpu, fence.Token(newer.Token()))
	if err := e.tryClaim(t, gpu, fence.Token(older.Token())); !errors.Is(err, fence.ErrStale) || older.Check() != nil {
		t.Errorf("%v, %v", err, older.Check())
	}
}

func TestASemaphoreIsShownAndResized(t *testing.T) {
	gpu, client, take := permits(t)
	both := take(2)
	shown, err := client.Show(ctx, gpu)
	if err != nil || shown.Permits != 2 || len(shown.Readers) != 1 || len(shown.Readers[0].Slots) != 2 {
		t.Errorf("%+v, %v", shown, err)
	}
	if err := client.Resize(ctx, gpu, 3); err != nil {
		t.Fatal(err)
	}
	third, err := client.Lock(ctx, gpu, palisade.Permits(1, 3), palisade.Wait(0))
	if err != nil || third.Slots()[0] != 3 {
		t.Fatalf("%v", err)
	}
	for _, wrong := range [][]palisade.LockOption{
		{palisade.Permits(1, 2)},
		{palisade.Permits(1, 3), palisade.Shared()},
	} {
		if _, err := client.Lock(ctx, gpu, append(wrong, palisade.Wait(0))...); !errors.Is(err, palisade.ErrInvalid) {
			t.Errorf("%v", err)
		}
	}
	if _, err := both.Downgrade(ctx); !errors.Is(err, palisade.ErrInvalid) || both.Check() != nil {
		t.Errorf("a downgrade: %v, %v", err, both.Check())
	}
}
