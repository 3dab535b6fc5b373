// Package boot reads the holder's clock: the time since the machine was started, suspension included.
package boot

import (
	"sync"
	"time"
)

// A summed clock is that of systems where the standard library cannot read the time since the start. It adds up, from
// reading to reading, the longer one of the times that the monotonic clock and the wall clock say have passed.
type summed struct {
	mu   sync.Mutex
	last time.Time
	sum  time.Duration
}

// at takes the next reading. It has a monotonic part, as those of time.Now do.
func (c *summed) at(reading time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.IsZero() {
		c.last = reading
	}
	step := reading.Sub(c.last)
	if wall := reading.Round(0).Sub(c.last.Round(0)); wall > step {
		step = wall
	}
	if step > 0 {
		c.sum += step
		c.last = reading
	}
	return c.sum
}
