//go:build linux || darwin || freebsd

package files

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"palisade.example/palisade/fence"
)

var (
	// ErrBusy: another process was inside the fence for too long. Nothing happened; the message names it, where the system
	// tells.
	ErrBusy = errors.New("palisade: another process is inside the fence")
	// ErrFenceLost: the fence of the folder is missing or damaged, or something wrote a file without it. An operator must
	// look, and re-arm it (palisade fence rearm).
	ErrFenceLost = errors.New("palisade: the fence of the folder is lost")
)

// Patience is how long an operation waits for another process that is inside the fence, unless a Folder says otherwise.
const Patience = 10 * time.Second

// A Folder is one whose files are written under a fence. Any number of goroutines and processes may open it.
type Folder struct {
	// Rule is by default fence.Claim.
	Rule fence.Rule
	// Patience is how long to wait for another process that is inside the fence. The context may end it earlier.
	Patience time.Duration

	name string
	// Held open: renaming the folder, or a symbolic link on the way, does not redirect it.
	disk disk
}

// Open opens a folder that exists.
func Open(path string) (*Folder, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Folder{Rule: fence.Claim, Patience: Patience, name: path, disk: disk{root}}, nil
}

// Close closes the folder. Its fence stays.
func (f *Folder) Close() error { return f.disk.root.Close() }

// A Kind is the kind of a write.
type Kind string

// A put replaces a file; a delete needs one.
const (
	Put    Kind = "put"
	Append Kind = "append"
	Delete Kind = "delete"
)

// A Write changes one file.
type Write struct {
	Kind Kind
	// Key is a slash and the file's name: every file of a fenced folder is directly in the folder.
	Key     string
	Content []byte
	// Numbered: the write has a number among those of the grant, so it is safe to repeat. The highest counts.
	Numbered bool
	Sequence uint64
}

// Claim raises the fence, before the first read: durable when it returns.
func (f *Folder) Claim(ctx context.Context, holder fence.Holder) error {
	return f.raise(ctx, holder, fence.KindClaim, func() error { return nil })
}

// Read reads a file in order to write; nil if there is none.
func (f *Folder) Read(ctx context.Context, holder fence.Holder, key string) (content []byte, err error) {
	name, err := fileOf(key)
	if err != nil {
		return nil, err
	}
	err = f.raise(ctx, holder, fence.KindRead, func() (err error) {
		content, err = f.disk.read(name)
		return err
	})
	return content, err
}

// Put replaces a file. It is durable when it returns. A nil holder is code without a token, which is refused once the folder
// is fenced.
func (f *Folder) Put(ctx context.Context, holder fence.Holder, key string, content []byte) error {
	_, err := f.Write(ctx, holder, Write{Kind: Put, Key: key, Content: content})
	return err
}

// Append is as Put, at the end of the file.
func (f *Folder) Append(ctx context.Context, holder fence.Holder, key string, content []byte) error {
	_, err := f.Write(ctx, holder, Write{Kind: Append, Key: key, Content: content})
	return err
}

// Delete is as Put. If there is nothing to delete, it returns a *fence.Rejection with the code missing.
func (f *Folder) Delete(ctx context.Context, holder fence.Holder, key string) error {
	_, err := f.Write(ctx, holder, Write{Kind: Delete, Key: key})
	return err
}

// Write carries a write out, and tells whether this numbered write was carried out before: then nothing changed.
func (f *Folder) Write(ctx context.Context, holder fence.Holder, w Write) (repeat bool, err error) {
	name, err := fileOf(w.Key)
	if err != nil {
		return false, err
	}
	code, known := kinds[w.Kind]
	if !known {
		return false, fmt.Errorf("palisade: %q is none of put, append and delete", w.Kind)
	}
	if err := fence.CheckSequence(w.Sequence); err != nil {
		return false, err
	}
	operation := fence.Operation{Kind: fence.KindWrite}
	if w.Numbered {
		operation = fence.WriteOperation(&fence.Number{Sequence: w.Sequence, Digest: w.digest(code)})
	}
	if holder != nil {
		if err := fence.CheckHolder(holder); err != nil {
			return false, err
		}
	}
	err = f.enter(ctx, func(s state) error {
		next, again, rejected := f.Rule.Decide(s.record, holder, operation)
		if rejected != nil {
			return rejected
		}
		if repeat = again; again {
			return nil
		}
		s.record = next
		return f.carryThrough(s, name, w)
	})
	return repeat, fence.Tell(holder, f.name, string(w.Kind), err)
}

// Observe is a plain read for observers, which never waits; nil if there is no such file. It may see part of an append that
// is in progress.
func (f *Folder) Observe(key string) ([]byte, error) {
	name, err := fileOf(key)
	if err != nil {
		return nil, err
	}
	return f.disk.read(name)
}

func (f *Folder) raise(ctx context.Context, holder fence.Holder, kind fence.Kind, then func() error) error {
	if err := fence.CheckHolder(holder); err != nil {
		return err
	}
	err := f.enter(ctx, func(s state) error {
		next, _, rejected := f.Rule.Decide(s.record, holder, fence.Operation{Kind: kind})
		if rejected != nil {
			return rejected
		}
		if !same(next, s.record) {
			s.record, s.pending = next, ""
			if _, err := f.replace(s); err != nil {
				return err
			}
		}
		return then()
	})
	return fence.Tell(holder, f.name, kind.String(), err)
}

// enter takes the lock, completes a write that a crash interrupted, and checks that the folder is as it was left.
func (f *Folder) enter(ctx context.Context, work func(state) error) error {
	lock, err := f.lock(ctx)
	if err != nil {
		return err
	}
	// It ends with the file, and with its process: so it never has to be broken.
	defer lock.Close()
	s, err := f.load()
	if err != nil {
		return err
	}
	if err := f.finish(s); err != nil {
		return err
	}
	if err := f.checkUnchanged(s); err != nil {
		return err
	}
	return work(s)
}

func (f *Folder) lock(ctx context.Context) (*os.File, error) {
	end, pause := time.Now().Add(f.Patience), 100*time.Microsecond
	file, err := f.disk.openLock()
	if err != nil {
		return nil, err
	}
	for {
		locked, err := tryLock(file)
		if locked {
			return file, nil
		}
		if err == nil && time.Now().After(end) {
			err = fmt.Errorf("%w: %s, for %v; %s", ErrBusy, f.name, f.Patience, inTheWay(file, f.name))
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			file.Close()
			return nil, err
		}
		// real time: a lock of the file system can be waited for with a bound only by asking again.
		time.Sleep(pause)
		pause = min(2*pause, 20*time.Millisecond)
	}
}

func (f *Folder) load() (state, error) {
	content, err := f.disk.read(stateFile)
	if err != nil {
		return state{}, err
	}
	if content == nil {
		names, err := f.disk.names()
		if err != nil {
			return state{}, err
		}
		for _, name := range names {
			if !strings.HasPrefix(name, own) {
				return state{}, fmt.Errorf("%w: %s has files and no fence: an operator must re-arm it with a floor", ErrFenceLost, f.name)
			}
		}
		return state{}, nil
	}
	s, err := decodeState(content)
	if err != nil {
		return state{}, fmt.Errorf("%w: %s/%s is damaged: %v", ErrFenceLost, f.name, stateFile, err)
	}
	return s, nil
}

func (f *Folder) checkUnchanged(s state) error {
	if s.last.name == "" {
		return nil
	}
	found, is, err := f.disk.length(s.last.name)
	if err != nil || (is && found == s.last.length) {
		return err
	}
	now := fmt.Sprintf("has %d bytes", found)
	if !is {
		now = "is missing"
	}
	return fmt.Errorf("%w: %s: %s %s, and the fence left it with %d: something wrote it without the fence; "+
		"an operator must look and re-arm it", ErrFenceLost, f.name, s.last.name, now, s.last.length)
}

// carryThrough stages the write, decides it together with the fence by one rename, and carries it out.
func (f *Folder) carryThrough(s state, name string, w Write) error {
	before, exists, err := f.disk.length(name)
	if err != nil {
		return err
	}
	if w.Kind == Delete && !exists {
		return &fence.Rejection{Code: "missing"}
	}
	offset := int64(0)
	if w.Kind == Append {
		if exists && f.disk.hasOtherNames(name) {
			return fmt.Errorf("palisade: %q has other names (hard links), and an append would change those files too: put it whole", name)
		}
		offset = before
	}
	stage := staged(s.revision + 1)
	if err = f.disk.write(stage, w.Content, name); err == nil {
		err = f.disk.syncNames()
	}
	if err != nil {
		// Nothing is decided yet.
		_ = f.disk.remove(stage)
		return err
	}
	s.pending = pending{w.Kind, offset, name}.String()
	s.last = file{}
	if w.Kind != Delete {
		s.last = file{offset + int64(len(w.Content)), name}
	}
	if s, err = f.replace(s); err != nil {
		return err
	}
	return f.finish(s)
}

// replace is the step that decides.
func (f *Folder) replace(s state) (state, error) {
	s.revision++
	if err := f.disk.write(nextState, s.encode(), ""); err != nil {
		return s, err
	}
	if err := f.disk.root.Rename(nextState, stateFile); err != nil {
		return s, err
	}
	return s, f.disk.syncNames()
}

// finish carries out the decided and staged write, and removes a staged file that was never decided. To carry a write out
// twice does no harm, and its staged file is removed last.
func (f *Folder) finish(s state) error {
	stage := staged(s.revision)
	_, exists, err := f.disk.length(stage)
	if err != nil {
		return err
	}
	if s.pending != "" && exists {
		p, err := readPending(s.pending)
		if err != nil {
			return fmt.Errorf("%w: %s/%s is damaged: %v", ErrFenceLost, f.name, stateFile, err)
		}
		if err := f.carryOut(p, stage); err != nil {
			return err
		}
	}
	return f.disk.remove(staged(s.revision + 1))
}

func (f *Folder) carryOut(p pending, stage string) error {
	if p.kind == Put {
		if err := f.disk.root.Rename(stage, p.name); err != nil {
			return err
		}
		return f.disk.syncNames()
	}
	var err error
	if p.kind == Append {
		var content []byte
		if content, err = f.disk.read(stage); err == nil {
			err = f.disk.writeAt(p.name, content, p.offset)
		}
	} else {
		err = f.disk.remove(p.name)
	}
	if err == nil {
		err = f.disk.syncNames()
	}
	if err == nil {
		err = f.disk.remove(stage)
	}
	return err
}

var kinds = map[Kind]byte{Put: 1, Append: 2, Delete: 3}

// digest is a checksum of a write's content and length; the same in Rust and Python.
func (w Write) digest(kind byte) uint64 {
	sum := crc32.ChecksumIEEE([]byte(w.Key))
	sum = crc32.Update(sum, crc32.IEEETable, []byte{kind})
	sum = crc32.Update(sum, crc32.IEEETable, w.Content)
	return uint64(sum)<<32 | uint64(uint32(len(w.Content)))
}

// fileOf is the name behind the slash.
func fileOf(key string) (string, error) {
	name, isKey := strings.CutPrefix(key, "/")
	controls := strings.IndexFunc(name, unicode.IsControl) >= 0
	if !isKey || name == "" || name == "." || name == ".." || strings.Contains(name, "/") || controls ||
		!utf8.ValidString(name) || len(key) > 256 {
		return "", fmt.Errorf("palisade: %q is not a slash and the name of a file in the folder, 1 to 255 bytes", key)
	}
	if strings.HasPrefix(folded(name), own) {
		return "", fmt.Errorf("palisade: %q belongs to the fence: names that begin with %s are not data", name, own)
	}
	return name, nil
}

// folded is a name as a file system may compare it that ignores case, and characters that are not seen.
func folded(name string) string {
	return strings.ToLower(strings.Map(func(r rune) rune {
		switch {
		case r == 'ſ':
			return 's'
		case r > unicode.MaxASCII:
			return -1
		}
		return r
	}, name))
}

func same(a, b fence.Record) bool {
	return a.Authority == b.Authority && a.Lock == b.Lock && a.Token == b.Token && a.Written == b.Written &&
		a.Numbered == b.Numbered && a.Sequence == b.Sequence && a.HasDigest == b.HasDigest && a.Digest == b.Digest
}
