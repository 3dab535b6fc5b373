package palisade

import (
	"os"
	"strings"
	"sync"
)

// A bearer is the token that shows who the client is: a fixed one, or that of a file. No error repeats it: it is a secret.
type bearer struct {
	// Empty: the token is fixed.
	file string

	mu    sync.Mutex
	token string
}

func newBearer(s *settings) (*bearer, error) {
	b, err := &bearer{}, error(nil)
	environment, given := os.LookupEnv("PALISADE_TOKEN")
	switch {
	case s.file != nil && s.bearer != nil:
		return nil, invalid("BearerToken and BearerTokenFile are both given: give one of them")
	case s.file != nil:
		b.file = *s.file
		b.token, err = readToken(b.file)
	case s.bearer != nil:
		b.token, err = checkedToken("BearerToken", *s.bearer)
	case given:
		b.token, err = checkedToken("PALISADE_TOKEN", environment)
	}
	return b, err
}

// current is the token as it is now, or "". A file is read again: its token may be replaced before it expires. While the
// file cannot be used, the last token stays.
func (b *bearer) current() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.file != "" {
		if token, err := readToken(b.file); err == nil {
			b.token = token
		}
	}
	return b.token
}

func readToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", invalid("the file of the bearer token cannot be read: %v", err)
	}
	return checkedToken(file, string(text))
}

func checkedToken(name, token string) (string, error) {
	token = strings.TrimSpace(token)
	if token == "" || strings.IndexFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0 {
		return "", invalid("%s: a bearer token is printable ASCII without spaces", name)
	}
	return token, nil
}
