package palisade

import (
	"context"
	"time"

	"palisade.example/palisade/internal/boot"
)

// An instant of the holder's clock: nanoseconds since some moment before the program started.
type instant int64

func (i instant) add(d time.Duration) instant       { return i + instant(d) }
func (i instant) sub(earlier instant) time.Duration { return time.Duration(i - earlier) }

func now() instant { return instant(boot.Now()) }

// longestSleep bounds each sleep: the system's timers stop in suspension, and the holder's clock does not.
const longestSleep = time.Second

// sleepUntil returns the context's error if it ends first.
func sleepUntil(ctx context.Context, until instant) error {
	for {
		left := until.sub(now())
		if left <= 0 {
			return ctx.Err()
		}
		timer := time.NewTimer(atMost(left, longestSleep))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

func atMost(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

func atLeast(a, b time.Duration) time.Duration {
	if a > b {
		return a
	}
	return b
}
