//go:build !linux

package boot

import "time"

var (
	process summed
	start   = time.Now()
)

// Now is at least as long after an earlier reading as Go's monotonic clock says, and counts suspension as far as the
// wall clock does.
func Now() time.Duration {
	reading := time.Now()
	// Round(0) takes the monotonic part off.
	return process.at(reading.Sub(start), reading.Round(0).Sub(start.Round(0)))
}
