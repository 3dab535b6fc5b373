// Package boot reads the holder's clock: the time since the machine was started, suspension included.
package boot

import (
	"sync"
	"time"
)

// A summed clock is that of systems where the standard library cannot read the time since the start. It adds up, from
// reading to reading, the longer one of the times that the monotonic clock and the wall clock say have passed.
type summed struct {
	mu              sync.Mutex
	monotonic, wall time.Duration
	sum             time.Duration
}

// at takes the next reading of both clocks, each since a moment of its own.
func (c *summed) at(monotonic, wall time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if monotonic < c.monotonic {
		// Another goroutine has read later, and was here first.
		return c.sum
	}
	step := monotonic - c.monotonic
	if suspended := wall - c.wall; suspended > step {
		step = suspended
	}
	c.sum += step
	c.monotonic, c.wall = monotonic, wall
	return c.sum
}
