// Package palisade is the client of Palisade: leases with fencing tokens.
//
//	client, err := palisade.New()
//	…
//	lease, err := client.Lock(ctx, "orders", palisade.TTL(10*time.Second), palisade.Wait(5*time.Second))
//	if err != nil {
//		return err // errors.Is(err, palisade.ErrHeld): another client has it
//	}
//	defer lease.Release(ctx)
//	return work(lease.Context(), lease)
//
// No lock service can stop two processes from both believing they hold a lock. The lease saves work; the fence keeps
// data safe: give the lease to a fence, palisade.example/palisade/fence/postgres for example, and claim before the first
// read.
//
// A lease is renewed in the background until it is released or lost. [Lease.Check] compares a clock with the lease's
// deadline and needs no round trip. [Lease.Context] is cancelled at the loss. A pause of the process fits between a
// check and whatever follows, so a check alone protects nothing.
//
// [Lease.Listen] tells before the loss that renewals fail, and that other requests wait for the lock. For that a client that
// holds leases keeps a request open, unless it is made with [WithoutNotices].
//
// # Clock
//
// Deadlines count on the time since the machine was started, suspension included: CLOCK_BOOTTIME on Linux. On other
// systems the standard library has no such clock. There the client adds up, from reading to reading, the longer one of
// two times: that of Go's monotonic clock, which may stop in suspension, and that of the wall clock, which does not. A
// wall clock that is put forward ends leases early. A lease can only be believed for too long if the machine is suspended
// and its wall clock is put back between two readings.
package palisade
