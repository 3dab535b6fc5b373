package palisade

import (
	"context"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"palisade.example/palisade/fence"
)

const (
	// More reports than these are dropped.
	maxReports = 64
	// The server takes no longer names.
	maxReportText = 255
	// There are at most ten reports a second.
	reportPause    = 100 * millisecond
	reportPatience = 2 * time.Second
	// The same report is sent once in this time.
	sameReport = 10 * time.Second
	// How long Close waits for reports that are on their way.
	lastReports = 250 * millisecond
)

// A reporter tells the authority of late writes that resources refused. Nobody waits for it.
type reporter struct {
	transport *transport
	// Its end is that of the client.
	base context.Context
	off  bool

	mu    sync.Mutex
	queue []report
	// When those reports were queued that may not be repeated yet. The bounds of the queue and of the rate bound it, too.
	recent map[reportKey]instant
	// Open while a goroutine sends, which is only while something is queued.
	sending chan struct{}
	// No report is sent earlier.
	next    instant
	dropped uint64
	closed  bool
}

// Reports with the same key are the same.
type reportKey struct {
	lock     string
	token    uint64
	resource string
}

type report struct {
	lock string
	late lateWrite
}

type lateWrite struct {
	Token     uint64 `json:"fencing_token"`
	Resource  string `json:"resource"`
	Highest   uint64 `json:"highest"`
	Operation string `json:"operation"`
}

// ReportsDropped is how many reports of refused late writes did not reach the authority: they were too many, or it was not
// there, or it refused them.
func (c *Client) ReportsDropped() uint64 {
	c.reports.mu.Lock()
	defer c.reports.mu.Unlock()
	return c.reports.dropped
}

// Refused tells the authority that a resource refused a late write of this lease; `palisade history` shows it. The fences of
// this module call it by fence.Tell. It returns at once, also after the loss, and changes nothing of the lease.
func (l *Lease) Refused(late fence.Late) {
	lock := late.Lock
	if !contains(l.wish.names, lock) {
		// Several locks, and no part of them: the resource may have the name of one.
		lock = l.wish.name()
		if contains(l.wish.names, late.Resource) {
			lock = late.Resource
		}
	}
	write := lateWrite{l.grant.token, reportText(late.Resource), late.Highest, reportText(late.Operation)}
	l.client.reports.offer(report{lock, write})
}

// reportText is as much of a text as the server takes, and never half a character.
func reportText(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= maxReportText {
		return text
	}
	end := maxReportText
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

func (r *reporter) offer(one report) {
	if r.off {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t, key := now(), reportKey{one.lock, one.late.Token, one.late.Resource}
	for old, at := range r.recent {
		if t.sub(at) >= sameReport {
			delete(r.recent, old)
		}
	}
	if _, again := r.recent[key]; again {
		return
	}
	if r.closed || len(r.queue) == maxReports {
		r.dropped++
		return
	}
	r.recent[key] = t
	r.queue = append(r.queue, one)
	if r.sending == nil {
		r.sending = make(chan struct{})
		go r.run(r.sending)
	}
}

// run sends what is queued, and ends.
func (r *reporter) run(sending chan struct{}) {
	defer close(sending)
	for {
		r.mu.Lock()
		if len(r.queue) == 0 {
			r.sending = nil
			r.mu.Unlock()
			return
		}
		first := r.queue[0]
		r.queue = append([]report(nil), r.queue[1:]...)
		at := max(r.next, now())
		r.next = at.add(reportPause)
		r.mu.Unlock()
		if sleepUntil(r.base, at) != nil || !r.send(first) {
			r.mu.Lock()
			r.dropped++
			r.mu.Unlock()
		}
	}
}

// send makes one attempt. A report that was not recorded has arrived all the same.
func (r *reporter) send(one report) bool {
	sent := request{method: "POST", path: lockPath(one.lock, "/rejections"), body: one.late}
	answer, failed := r.transport.send(r.base, sent, reportPatience)
	return failed == nil && answer.status == 200
}

// close waits for the reports that are queued, for a moment; the end of the client drops the others.
func (r *reporter) close() {
	r.mu.Lock()
	r.closed = true
	sending := r.sending
	r.mu.Unlock()
	if sending == nil {
		return
	}
	moment := time.NewTimer(lastReports)
	defer moment.Stop()
	select {
	case <-sending:
	case <-moment.C:
	}
}
