package boot

import (
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7

// Now reads CLOCK_BOOTTIME: it cannot be set, and goes on while the machine is suspended.
func Now() time.Duration {
	var reading syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&reading)), 0)
	if errno != 0 {
		// Every Linux that Go runs on has this clock. Without it no deadline could be met.
		panic("palisade: CLOCK_BOOTTIME cannot be read: " + errno.Error())
	}
	return time.Duration(reading.Nano())
}
