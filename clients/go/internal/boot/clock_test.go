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

// time.Time with a monotonic part cannot be made up, so these readings have only a wall clock.
func TestTheSummedClockCountsSuspensionAndNeverStops(t *testing.T) {
	var clock summed
	wall := time.Date(2026, 5, 23, 10, 0, 0, 0, time.UTC)
	if clock.at(wall) != 0 {
		t.Error("it begins at 0")
	}
	if clock.at(wall.Add(time.Hour)) != time.Hour {
		t.Error("suspended time is not counted")
	}
	// Put back: it stands still at that reading, and counts on from there.
	if clock.at(wall) != time.Hour {
		t.Error("it goes back")
	}
	var process summed
	first := process.at(time.Now())
	if second := process.at(time.Now().Add(time.Minute)); second-first < time.Minute {
		t.Errorf("%v passed instead of a minute", second-first)
	}
}
