package palisade

import (
	"context"
	"time"
)

const (
	firstPause   = 10 * millisecond
	longestPause = 500 * millisecond
)

// backoff counts pauses between attempts, doubling from 10 ms to half a second.
type backoff struct {
	until instant
	next  time.Duration
	worst *fault
}

func newBackoff(until instant) *backoff { return &backoff{until: until, next: firstPause} }

// pause waits after a failed attempt. When no time is left it returns the worst fault so far, as an error: unknown if
// any of the attempts may have happened, and of those the last one that was more than silence. If the context has ended
// it returns the context's error.
func (b *backoff) pause(ctx context.Context, f *fault) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if b.worst == nil || f.unknown && !b.worst.unknown || f.unknown == b.worst.unknown && !f.silent {
		b.worst = f
	}
	end := now().add(b.next)
	if end.add(leastTime) >= b.until {
		if b.worst.unknown {
			return &Error{"unknown_outcome", b.worst.message, ErrUnknownOutcome}
		}
		return &Error{"unavailable", b.worst.message, ErrUnavailable}
	}
	b.next = atMost(2*b.next, longestPause)
	return sleepUntil(ctx, end)
}

// repeat sends a request that may be sent again as it is, until there is an answer that repeating does not change. No
// attempt takes more than half of the time that is left: the next one has another connection.
func (t *transport) repeat(ctx context.Context, r request, until instant) (reply, error) {
	pauses := newBackoff(until)
	for {
		answer, failed := t.send(ctx, r, atLeast(until.sub(now())/2, leastTime))
		if failed == nil {
			failed = answer.fault()
		}
		if failed == nil {
			return answer, nil
		}
		if err := pauses.pause(ctx, failed); err != nil {
			return reply{}, err
		}
	}
}
