package boot

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The first number in /proc/uptime is the same clock, to a hundredth of a second.
func TestItIsTheTimeSinceTheMachineWasStarted(t *testing.T) {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Fatal(err)
	}
	uptime, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	between := Now().Seconds() - uptime
	if between < -0.02 || between > 60 {
		t.Errorf("%.3f s after /proc/uptime was read", between)
	}
}

func TestItDoesNotGoBack(t *testing.T) {
	last := Now()
	for range [1000]int{} {
		next := Now()
		if next < last {
			t.Fatalf("%v after %v", next, last)
		}
		last = next
	}
}

func TestTheSummedClock(t *testing.T) {
	var clock summed
	for _, row := range []struct {
		says                  string
		monotonic, wall, want time.Duration
	}{
		{"both go on", 10, 10, 10},
		{"suspended: only the wall clock went on", 11, 110, 110},
		{"the wall clock was put back: time goes on all the same", 21, 20, 120},
		{"both go on again", 31, 30, 130},
		{"a reading that was overtaken", 25, 25, 130},
		{"the wall clock was put forward: leases end early", 32, 1030, 1130},
	} {
		if got := clock.at(row.monotonic, row.wall); got != row.want {
			t.Errorf("%s: %d instead of %d", row.says, got, row.want)
		}
	}
}
