//go:build linux || darwin || freebsd

package files

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"unicode/utf8"

	"palisade.example/palisade/fence"
)

const (
	own       = ".palisade-"
	lockFile  = ".palisade-lock"
	stateFile = ".palisade-fence"
	nextState = ".palisade-fence-next"
	head      = "palisade-fence 1"
)

// A state is the content of .palisade-fence (docs/reference/fence-formats.md).
type state struct {
	// Counts the writes of this file; part of the name of its staged file.
	revision uint64
	record   fence.Record
	// The write that is decided: "put NAME", "append OFFSET NAME" or "delete NAME".
	pending string
	// The file that was written last, as it was then.
	last file
}

type file struct {
	length int64
	name   string
}

type pending struct {
	kind   Kind
	offset int64
	name   string
}

func (p pending) String() string {
	if p.kind == Append {
		return fmt.Sprintf("append %d %s", p.offset, p.name)
	}
	return fmt.Sprintf("%s %s", p.kind, p.name)
}

func readPending(text string) (pending, error) {
	kind, rest, _ := strings.Cut(text, " ")
	p := pending{kind: Kind(kind), name: rest}
	if p.kind == Append {
		offset, name, _ := strings.Cut(rest, " ")
		n, err := strconv.ParseInt(offset, 10, 64)
		if err != nil {
			return p, err
		}
		p.offset, p.name = n, name
	}
	if kinds[p.kind] == 0 || p.name == "" {
		return p, fmt.Errorf("%q is no pending write", text)
	}
	return p, nil
}

func staged(revision uint64) string { return fmt.Sprintf("%sstaged-%d", own, revision) }

func (s state) encode() []byte {
	r := s.record
	number := func(there bool, n uint64) string {
		if !there {
			return ""
		}
		return strconv.FormatUint(n, 10)
	}
	written := number(r.Numbered, r.Sequence)
	if r.Written && !r.Numbered {
		written = "yes"
	}
	last := ""
	if s.last.name != "" {
		last = fmt.Sprintf("%d %s", s.last.length, s.last.name)
	}
	text := fmt.Sprintf("%s\nrevision %d\ntoken %s\nwritten %s\ndigest %s\nauthority %s\nlock %s\npending %s\nlength %s\n",
		head, s.revision, number(r.Token != 0, r.Token), written, number(r.HasDigest, r.Digest), r.Authority, r.Lock, s.pending, last)
	return fmt.Appendf(nil, "%ssum %08x\n", text, crc32.ChecksumIEEE([]byte(text)))
}

// decodeState returns an error for anything that encode does not write.
func decodeState(content []byte) (state, error) {
	text := string(content)
	at := strings.LastIndex(text, "sum ")
	if at < 0 || !utf8.Valid(content) {
		return state{}, errors.New("it has no sum")
	}
	body := text[:at]
	if text[at:] != fmt.Sprintf("sum %08x\n", crc32.ChecksumIEEE([]byte(body))) || !strings.HasSuffix(body, "\n") {
		return state{}, errors.New("the sum is wrong")
	}
	names := []string{"revision", "token", "written", "digest", "authority", "lock", "pending", "length"}
	lines := strings.Split(strings.TrimSuffix(body, "\n"), "\n")
	if lines[0] != head || len(lines) != len(names)+1 {
		return state{}, fmt.Errorf("it is not a state of the form %q", head)
	}
	value := map[string]string{}
	for at, name := range names {
		rest, found := strings.CutPrefix(lines[at+1], name+" ")
		if !found {
			return state{}, fmt.Errorf("no line %q where it belongs", name)
		}
		value[name] = rest
	}
	s := state{pending: value["pending"]}
	r := &s.record
	r.Authority, r.Lock, r.Written = value["authority"], value["lock"], value["written"] != ""
	var errs [5]error
	s.revision, _, errs[0] = number(value["revision"], fence.MaxToken)
	r.Token, _, errs[1] = number(value["token"], fence.MaxToken)
	if value["written"] != "yes" {
		r.Sequence, r.Numbered, errs[2] = number(value["written"], fence.MaxToken)
	}
	r.Digest, r.HasDigest, errs[3] = number(value["digest"], 1<<64-1)
	if value["length"] != "" {
		length, name, _ := strings.Cut(value["length"], " ")
		n, _, err := number(length, 1<<63-1)
		if name == "" {
			err = errors.New("length has no name")
		}
		s.last, errs[4] = file{int64(n), name}, err
	}
	return s, errors.Join(errs[:]...)
}

func number(text string, high uint64) (n uint64, there bool, err error) {
	if text == "" {
		return 0, false, nil
	}
	n, err = strconv.ParseUint(text, 10, 64)
	if err != nil || n > high {
		return 0, false, fmt.Errorf("%q is no number of 0 to %d", text, high)
	}
	return n, true, nil
}
