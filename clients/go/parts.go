package palisade

import "sync"

// parts are the locks of a lease, in the order of their names.
type parts struct {
	mu sync.Mutex
	// The locks that renewals extend.
	held []string
	// The locks whose release the server has not acknowledged.
	unreleased []string
}

func newParts(names []string) *parts {
	return &parts{held: copied(names), unreleased: copied(names)}
}

func (p *parts) toRenew() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return copied(p.held)
}

func (p *parts) toRelease() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return copied(p.unreleased)
}

func (p *parts) holds(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return contains(p.held, name)
}

// giveUp records that one is not held from now on, and tells whether any other is.
func (p *parts) giveUp(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = without(p.held, name)
	return len(p.held) > 0
}

func (p *parts) released(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unreleased = without(p.unreleased, name)
}

func copied(names []string) []string { return append([]string(nil), names...) }

func contains(names []string, name string) bool { return len(without(names, name)) < len(names) }

func without(names []string, name string) []string {
	var left []string
	for _, each := range names {
		if each != name {
			left = append(left, each)
		}
	}
	return left
}
