//go:build !linux

package boot

import "time"

var process summed

// Now is at least as long after an earlier reading as Go's monotonic clock says, and counts suspension as far as the
// wall clock does.
func Now() time.Duration { return process.at(time.Now()) }
