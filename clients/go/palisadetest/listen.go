package palisadetest

import (
	"context"
	"encoding/json"
	"time"
)

const (
	maxListened       = 100
	defaultListenTime = 20_000
	maxListenTime     = 60_000
)

type listenBody struct {
	Grants []struct {
		Lock    string `json:"resource_id"`
		Waiters int    `json:"waiters"`
		named
	} `json:"grants"`
	Wait *int64 `json:"wait_ms"`
}

// listen answers when there is something to say about one of the grants, or when the time is over.
func (s *Server) listen(ctx context.Context, text []byte) (int, fields, error) {
	var b listenBody
	if err := json.Unmarshal(text, &b); err != nil {
		return s.refused(invalid("the body cannot be read: %v", err))
	}
	if why := b.check(); why != nil {
		return s.refused(why)
	}
	wait := int64(defaultListenTime)
	if b.Wait != nil {
		wait = *b.Wait
	}
	until := s.now().Add(time.Duration(wait) * time.Millisecond)
	s.listening++
	defer func() { s.listening-- }()
	for {
		s.settle()
		if s.state == down {
			return s.refused(&refusal{status: 503, code: "unavailable", message: "the double is down"})
		}
		if told := s.notices(b); len(told) > 0 || !s.now().Before(until) {
			return 200, fields{"notices": told}, nil
		}
		if err := s.wait(ctx, s.until(until)); err != nil {
			return 0, nil, err
		}
	}
}

func (b listenBody) check() *refusal {
	if len(b.Grants) < 1 || len(b.Grants) > maxListened {
		return invalid("%d grants are named: 1 to %d are allowed", len(b.Grants), maxListened)
	}
	if b.Wait != nil && (*b.Wait < 0 || *b.Wait > maxListenTime) {
		return invalid("wait_ms is %d: 0 to %d are allowed", *b.Wait, maxListenTime)
	}
	seen := map[ending]bool{}
	for _, each := range b.Grants {
		grant := ending{lock: each.Lock, number: each.Token}
		if each.Lock == "" || each.LeaseKey == "" || each.Token == 0 || each.Waiters < 0 {
			return invalid("a grant needs resource_id, lock_token and fencing_token, and waiters from 0")
		}
		if seen[grant] {
			return invalid("the grant %d of %q is named twice", each.Token, each.Lock)
		}
		seen[grant] = true
	}
	return nil
}

// notices are what there is to say about the grants now.
func (s *Server) notices(b listenBody) []fields {
	told := []fields{}
	for _, each := range b.Grants {
		notice := fields{"resource_id": each.Lock, "fencing_token": each.Token}
		held, why := s.find(each.Lock, each.named)
		if why != nil {
			notice["event"], notice["how"] = "ended", "unknown"
			was := ending{each.LeaseKey, each.Lock, each.Token}
			if how := s.ended[was]; how != "" {
				notice["how"] = kindOf(how)
			}
			if reason := s.reasons[was]; reason != "" {
				notice["reason"] = reason
			}
			told = append(told, notice)
			continue
		}
		if waiters := s.waiters(held.lock.name); waiters > each.Waiters || waiters == 0 && each.Waiters > 0 {
			notice["event"], notice["waiters"] = "wanted", waiters
			told = append(told, notice)
		}
	}
	return told
}

// kindOf is how a grant ended, as it is told: not_held is a release.
func kindOf(code string) string {
	if code == "not_held" {
		return "released"
	}
	return code
}

// waiters is how many requests wait for any of the locks.
func (s *Server) waiters(names ...string) (n int) {
	for _, p := range s.queue {
		for _, name := range names {
			if p.wants(name) {
				n++
				break
			}
		}
	}
	return n
}

func (p *pending) wants(name string) bool {
	for _, wanted := range p.names {
		if wanted == name {
			return true
		}
	}
	return false
}
