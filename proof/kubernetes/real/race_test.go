package real

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	core "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/kubefence"
)

const (
	takeOvers = 150
	writers   = 6
	// How often a writer of the old token goes on after the claim if nothing refuses it.
	after = 3
)

// A tally counts the writes of old tokens, before and after the claim of the next holder.
type tally struct{ before, refused, late, lost int }

// TestTheRace: writers of the old token write all the time while the next holder claims, reads and adds.
func TestTheRace(t *testing.T) {
	c := start(t)
	c.install(t, "configmaps")
	for _, namespace := range []string{"shop", "control"} {
		c.counter(t, namespace, "race")
		var all tally
		holder, _ := c.as(t, fence.NewPass(1, "a", "race"))
		_, err := kubefence.Claim(t.Context(), holder.CoreV1().ConfigMaps(namespace), "race", fence.NewPass(1, "a", "race"))
		must(t, err)
		for round := range takeOvers {
			next, _ := c.as(t, fence.NewPass(uint64(round)+2, "a", "race"))
			takeOver(t, namespace, holder, next, fence.NewPass(uint64(round)+2, "a", "race"), &all)
			holder = next
		}
		report(t, "| race, %s | %d take-overs, %d writers | %d written before the claim, %d refused | **%d** written after the claim, **%d** acknowledged writes of the next holder lost |",
			map[string]string{"shop": "fenced", "control": "control: no policy"}[namespace], takeOvers, writers, all.before, all.refused, all.late, all.lost)
		switch fenced := namespace == "shop"; {
		case all.before == 0:
			t.Errorf("%s: no writer wrote while it held the lock", namespace)
		case fenced && (all.late > 0 || all.lost > 0 || all.refused == 0):
			t.Errorf("the fence: %+v", all)
		case !fenced && (all.late == 0 || all.lost == 0):
			t.Errorf("the control loses nothing, so the race shows nothing: %+v", all)
		}
	}
}

func takeOver(t *testing.T, namespace string, old, next *kubernetes.Clientset, holder fence.Holder, all *tally) {
	t.Helper()
	ctx := t.Context()
	var claimed atomic.Bool
	var began, ended sync.WaitGroup
	began.Add(writers)
	ended.Add(writers)
	// The versions that the old holder's writes made.
	versions := make(chan int, 100_000)
	var refused atomic.Int64
	for range writers {
		go func() {
			defer ended.Done()
			first := sync.OnceFunc(began.Done)
			defer first()
			for more := after; more > 0; {
				if claimed.Load() {
					more--
				}
				written, err := count(ctx, old, namespace, "race", -1)
				switch {
				case err == nil:
					versions <- version(written)
				case errors.Is(kubefence.Rejection(err), fence.ErrStale):
					refused.Add(1)
				default:
					t.Errorf("a write of the old holder: %v", err)
					return
				}
				first()
			}
		}()
	}
	began.Wait()
	found, err := kubefence.Claim(ctx, next.CoreV1().ConfigMaps(namespace), "race", holder)
	must(t, err)
	claimed.Store(true)
	// It writes what it acknowledges to its own callers: no older write may replace it.
	_, err = count(ctx, next, namespace, "race", int(holder.Token()))
	must(t, err)
	ended.Wait()
	close(versions)
	for one := range versions {
		if one > version(found) {
			all.late++
		} else {
			all.before++
		}
	}
	all.refused += int(refused.Load())
	now, err := kubefence.Claim(ctx, next.CoreV1().ConfigMaps(namespace), "race", holder)
	must(t, err)
	if now.Data["counter"] != strconv.FormatUint(holder.Token(), 10) {
		all.lost++
	}
}

// version is the object's number in the order of all writes.
func version(of *core.ConfigMap) int {
	number, err := strconv.Atoi(of.ResourceVersion)
	if err != nil {
		panic(err)
	}
	return number
}
