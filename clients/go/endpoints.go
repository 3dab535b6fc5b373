package palisade

import (
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
)

const (
	defaultURL = "http://127.0.0.1:7420"
	// How often a leader is followed in a row.
	maxHops = 5
)

// endpoints stays at the address that last answered, follows the leader, and goes on to the next address after a
// failure.
type endpoints struct {
	urls []string
	// A bearer token is sent, so every address must keep it from others.
	secret bool

	mu     sync.Mutex
	at     int
	leader string
	hops   int
	// The address that answered last.
	alive string
}

func newEndpoints(urls []string, secret bool) (*endpoints, error) {
	if urls == nil {
		from := os.Getenv("PALISADE_URL")
		if from == "" {
			from = defaultURL
		}
		urls = strings.Split(from, ",")
	}
	if len(urls) == 0 {
		return nil, invalid("the address of a server is needed, such as %s", defaultURL)
	}
	checked := make([]string, 0, len(urls))
	for _, address := range urls {
		one, err := checkedURL(address)
		if err != nil {
			return nil, err
		}
		if secret && !keepsSecrets(one) {
			return nil, invalid("a token is not sent to %s without TLS, because others could read it: write https://", one)
		}
		checked = append(checked, one)
	}
	return &endpoints{urls: checked, secret: secret}, nil
}

func (e *endpoints) current() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.currentLocked()
}

func (e *endpoints) currentLocked() string {
	if e.leader != "" {
		return e.leader
	}
	return e.urls[e.at]
}

// isAlive tells whether that address is the one that answered last.
func (e *endpoints) isAlive(address string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.alive == address
}

// failed goes on to the next address, unless another call already did.
func (e *endpoints) failed(address string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failedLocked(address)
}

func (e *endpoints) failedLocked(address string) {
	if e.alive == address {
		e.alive = ""
	}
	switch {
	case address == e.leader:
		e.leader = ""
	case e.leader == "" && address == e.urls[e.at]:
		e.at = (e.at + 1) % len(e.urls)
	}
}

// answered records an answer's information about the address and the leader. It returns true if the leader is to be asked
// at once.
func (e *endpoints) answered(address string, r reply) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alive = address
	if r.status < 500 || r.code() != "not_leader" {
		e.hops = 0
		if r.fault() != nil {
			e.failedLocked(address)
		}
		return false
	}
	e.failedLocked(address)
	e.hops++
	if e.hops > maxHops {
		e.hops = 0
		return false
	}
	leader, err := checkedURL(r.problem().Leader)
	if err != nil || (strings.HasPrefix(address, "https:") && !strings.HasPrefix(leader, "https:")) {
		return false
	}
	if e.secret && !keepsSecrets(leader) {
		return false
	}
	e.leader = leader
	return true
}

// keepsSecrets tells whether nobody on the way can read the requests: they use TLS, or stay on this machine.
func keepsSecrets(address string) bool {
	parsed, err := url.Parse(address)
	if err != nil {
		return false
	}
	host := parsed.Hostname()
	return parsed.Scheme == "https" || host == "localhost" || net.ParseIP(host).IsLoopback()
}

// checkedURL never puts the password of an address into an error.
func checkedURL(address string) (string, error) {
	address = strings.TrimSuffix(strings.TrimSpace(address), "/")
	parsed, err := url.Parse(address)
	switch {
	case err != nil:
		return "", invalid("an address cannot be read: http://HOST:PORT is needed")
	case parsed.User != nil:
		return "", invalid("an address with a password is not supported: use the option BearerToken")
	case parsed.Scheme != "http" && parsed.Scheme != "https",
		parsed.Hostname() == "", parsed.Path != "", parsed.RawQuery != "", parsed.Fragment != "":
		return "", invalid("%q is not the address of a server: http://HOST:PORT is needed", address)
	}
	return address, nil
}
