//go:build linux

package files

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/internal/testserver"
)

var ctx = context.Background()

func opened(t *testing.T, path string) *Folder {
	t.Helper()
	folder, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { folder.Close() })
	return folder
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t *testing.T, code string, err error) *fence.Rejection {
	t.Helper()
	var rejection *fence.Rejection
	if !errors.As(err, &rejection) || rejection.Code != code {
		t.Fatalf("%v is not %s", err, code)
	}
	return rejection
}

func TestANewerHolderShutsTheOlderOneOut(t *testing.T) {
	reports := opened(t, t.TempDir())
	must(t, reports.Claim(ctx, fence.Token(34)))
	if found, err := reports.Read(ctx, fence.Token(34), "/report.csv"); found != nil || err != nil {
		t.Fatalf("%q, %v", found, err)
	}
	must(t, reports.Append(ctx, fence.Token(34), "/report.csv", []byte("one\n")))
	must(t, reports.Claim(ctx, fence.Token(35)))
	late := reports.Append(ctx, fence.Token(34), "/report.csv", []byte("late\n"))
	if refused(t, "stale", late).Highest != 35 || !errors.Is(late, fence.ErrStale) {
		t.Error(late)
	}
	_, err := reports.Read(ctx, fence.Token(34), "/report.csv")
	refused(t, "stale", err)
	refused(t, "tokenless", reports.Put(ctx, nil, "/report.csv", nil))
	if found, err := reports.Observe("/report.csv"); string(found) != "one\n" || err != nil {
		t.Errorf("%q, %v", found, err)
	}
}

func TestWritesAndRepeats(t *testing.T) {
	path := t.TempDir()
	reports := opened(t, path)
	write := Write{Kind: Append, Key: "/a", Content: []byte("one\n"), Numbered: true, Sequence: 1}
	for _, before := range []bool{false, true} {
		if repeat, err := reports.Write(ctx, fence.Token(34), write); repeat != before || err != nil {
			t.Fatalf("%v, %v", repeat, err)
		}
	}
	if found, err := reports.Read(ctx, fence.Token(34), "/a"); string(found) != "one\n" || err != nil {
		t.Errorf("%q, %v", found, err)
	}
	write.Content = []byte("two\n")
	_, err := reports.Write(ctx, fence.Token(34), write)
	refused(t, "sequence_reused", err)
	must(t, os.Chmod(filepath.Join(path, "a"), 0o640))
	must(t, reports.Put(ctx, fence.Token(34), "/a", []byte("whole")))
	if found, err := os.Stat(filepath.Join(path, "a")); err != nil || found.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", found.Mode(), err)
	}
	must(t, os.Link(filepath.Join(path, "a"), filepath.Join(path, "b")))
	if err := reports.Append(ctx, fence.Token(34), "/a", []byte("x")); err == nil || !strings.Contains(err.Error(), "hard links") {
		t.Errorf("%v", err)
	}
	must(t, os.Remove(filepath.Join(path, "b")))
	must(t, reports.Delete(ctx, fence.Token(34), "/a"))
	refused(t, "missing", reports.Delete(ctx, fence.Token(34), "/a"))
	if names, err := reports.disk.names(); err != nil || len(names) != 2 {
		t.Errorf("%v, %v", names, err)
	}
}

func TestTheFormatIsThatOfTheRustFence(t *testing.T) {
	golden, err := os.ReadFile(filepath.Join(testserver.Root(), "vectors/formats/files.palisade-fence"))
	must(t, err)
	// The text of the_text_format_is_unchanged in crates/palisade-fence/src/files/sidecar.rs.
	own := []byte("palisade-fence 1\nrevision 7\ntoken 9007199254740991\nwritten 9007199254740991\n" +
		"digest 18446744073709551615\nauthority a:0f3c\nlock nightly\npending append 120 a file 5\n" +
		"length 140 sum 1\nsum 97923cbe\n")
	for _, text := range [][]byte{golden, own} {
		s, err := decodeState(text)
		must(t, err)
		if s.revision != 7 || s.record.Digest != 1<<64-1 || s.last.length != 140 || !bytes.Equal(s.encode(), text) {
			t.Errorf("%+v\n%s", s, s.encode())
		}
		if p, err := readPending(s.pending); err != nil || p.offset != 120 || p.String() != s.pending {
			t.Errorf("%+v, %v", p, err)
		}
		for at := range text {
			changed := append([]byte(nil), text...)
			changed[at] ^= 1
			for _, broken := range [][]byte{text[:at], changed} {
				if _, err := decodeState(broken); err == nil {
					t.Errorf("read: %q", broken)
				}
			}
		}
	}
}

func TestALostDamagedOrChangedFolderIsRefused(t *testing.T) {
	path := t.TempDir()
	file := func(name string) string { return filepath.Join(path, name) }
	isLost := func(says string) {
		t.Helper()
		if err := opened(t, path).Claim(ctx, fence.Token(35)); !errors.Is(err, ErrFenceLost) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
	must(t, os.WriteFile(file("old"), nil, 0o600))
	isLost("re-arm")
	must(t, os.Remove(file("old")))
	must(t, opened(t, path).Put(ctx, fence.Token(34), "/a", []byte("12345")))
	must(t, os.WriteFile(file("a"), []byte("1234"), 0o600))
	isLost("has 4 bytes")
	must(t, os.Remove(file("a")))
	isLost("a is missing")
	must(t, os.WriteFile(file(".palisade-fence"), []byte("nonsense"), 0o600))
	isLost("damaged")
}

func TestANameOutsideIsRefused(t *testing.T) {
	path := t.TempDir()
	for _, key := range []string{"a", "/", "/..", "/a/b", "/.palisade-fence", "/a\n", "/" + strings.Repeat("x", 256), "/\xff", "",
		"/.PALISADE-fence", "/.pali\u017fade-fence", "/.pal\u200cisade-fence", "/.palisade-fence. "} {
		if err := opened(t, path).Put(ctx, fence.Token(34), key, nil); err == nil || errors.Is(err, fence.ErrRejected) {
			t.Errorf("%q: %v", key, err)
		}
	}
	must(t, os.Symlink("/etc/passwd", filepath.Join(path, "link")))
	if found, err := opened(t, path).Observe("/link"); err == nil {
		t.Errorf("%q", found)
	}
}

// TestHolder is the other process of the tests below.
func TestHolder(t *testing.T) {
	path, does := os.Getenv("PALISADE_TEST_FOLDER"), os.Getenv("PALISADE_TEST_DOES")
	if path == "" {
		t.Skip("the other process of the tests below")
	}
	reports := opened(t, path)
	switch does {
	case "lock":
		_, err := reports.lock(ctx)
		must(t, err)
		fmt.Println("held")
		_, _ = io.ReadAll(os.Stdin)
	case "append":
		for n := 0; ; n++ {
			must(t, reports.Append(ctx, fence.Token(34), "/log", fmt.Appendf(nil, "%06d\n", n)))
			fmt.Println("wrote", n)
		}
	default:
		must(t, reports.Claim(ctx, fence.Token(34)))
		found, err := reports.Read(ctx, fence.Token(34), "/total")
		must(t, err)
		total, _ := strconv.Atoi(string(found))
		fmt.Println("read", total)
		// The test stops this process here.
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		text := []byte(strconv.Itoa(total + 1))
		if does == "unfenced" {
			err = os.WriteFile(filepath.Join(path, "total"), text, 0o600)
		} else {
			err = reports.Put(ctx, fence.Token(34), "/total", text)
		}
		fmt.Println("wrote", err)
	}
}

type other struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
}

func start(t *testing.T, path, does string) *other {
	t.Helper()
	command := exec.Command(os.Args[0], "-test.run=^TestHolder$", "-test.v")
	command.Env = append(os.Environ(), "PALISADE_TEST_FOLDER="+path, "PALISADE_TEST_DOES="+does)
	in, err := command.StdinPipe()
	must(t, err)
	out, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return &other{command, in, bufio.NewScanner(out)}
}

func (o *other) says(t *testing.T, begins string) string {
	t.Helper()
	for o.out.Scan() {
		if strings.HasPrefix(o.out.Text(), begins) {
			return o.out.Text()
		}
	}
	t.Fatalf("it ended without %q", begins)
	return ""
}

func (o *other) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	must(t, o.command.Process.Signal(signal))
}

// A holder is stopped between its read and its write, past its lease.
func TestAStoppedHoldersWriteIsRefused(t *testing.T) {
	run := func(does string) string {
		path := t.TempDir()
		reports := opened(t, path)
		zombie := start(t, path, does)
		zombie.says(t, "read 0")
		zombie.signal(t, syscall.SIGSTOP)
		must(t, reports.Claim(ctx, fence.Token(35)))
		must(t, reports.Put(ctx, fence.Token(35), "/total", []byte("70")))
		zombie.signal(t, syscall.SIGCONT)
		_, err := fmt.Fprintln(zombie.in)
		must(t, err)
		t.Log(zombie.says(t, "wrote"))
		total, err := reports.Observe("/total")
		must(t, err)
		return string(total)
	}
	if total := run("fenced"); total != "70" {
		t.Errorf("the acknowledged write became %s", total)
	}
	// A control: without the fence the acknowledged write is lost.
	if total := run("unfenced"); total != "1" {
		t.Errorf("nothing was lost: %s", total)
	}
}

func TestAHolderThatIsKilledLeavesWholeWrites(t *testing.T) {
	path := t.TempDir()
	reports := opened(t, path)
	whole := regexp.MustCompile(`^(\d{6}\n)*$`)
	for round := 0; round < 5; round++ {
		writer := start(t, path, "append")
		for n := 0; n <= 3*round; n++ {
			writer.says(t, "wrote")
		}
		before, err := reports.Observe("/log")
		must(t, err)
		writer.signal(t, syscall.SIGKILL)
		_ = writer.command.Wait()
		must(t, reports.Claim(ctx, fence.Token(34)))
		after, err := reports.Observe("/log")
		must(t, err)
		acknowledged := before[:len(before)/7*7]
		if !whole.Match(after) || !bytes.HasPrefix(after, acknowledged) || len(after) == 0 {
			t.Errorf("%q after %q", after, before)
		}
	}
}

func TestTheProcessThatHasTheLockIsNamed(t *testing.T) {
	path := t.TempDir()
	reports := opened(t, path)
	reports.Patience = 50 * time.Millisecond
	holder := start(t, path, "lock")
	holder.says(t, "held")
	holder.signal(t, syscall.SIGSTOP)
	says := fmt.Sprintf("process %d (", holder.command.Process.Pid)
	end := fmt.Sprintf("palisade fence unblock %s --url file://%s --yes", filepath.Base(path), filepath.Dir(path))
	err := reports.Claim(ctx, fence.Token(34))
	if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), says) || !strings.HasSuffix(err.Error(), end) {
		t.Errorf("%v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := reports.Claim(ended, fence.Token(34)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	holder.signal(t, syscall.SIGKILL)
	reports.Patience = Patience
	must(t, reports.Claim(ctx, fence.Token(34)))
}

// A holder in Rust (crates/palisade-fence/examples/adder.rs) and one in Go share a folder.
func TestAFolderIsSharedWithRust(t *testing.T) {
	program := os.Getenv("PALISADE_ADDER")
	if program == "" {
		program = filepath.Join(testserver.Root(), "target/debug/examples/adder")
	}
	run := func(t *testing.T, fenced, rustIsLate bool) (total string) {
		url := t.TempDir()
		path := filepath.Join(url, "totals")
		must(t, os.Mkdir(path, 0o700))
		reports := opened(t, path)
		if fenced {
			must(t, reports.Put(ctx, fence.Token(1), "/total", []byte("0")))
		} else {
			must(t, os.WriteFile(filepath.Join(path, "total"), []byte("0"), 0o600))
		}
		command := exec.Command(program, "files", url, "totals", map[bool]string{true: "fenced", false: "unfenced"}[fenced])
		in, err := command.StdinPipe()
		must(t, err)
		out, err := command.StdoutPipe()
		must(t, err)
		if err := command.Start(); err != nil {
			t.Fatalf("%v: run `cargo build -p palisade-fence --all-features --example adder`, or set PALISADE_ADDER", err)
		}
		defer func() {
			in.Close()
			_ = command.Wait()
		}()
		answers := bufio.NewScanner(out)
		rust := func(line string) string {
			fmt.Fprintln(in, line)
			answers.Scan()
			return answers.Text()
		}
		inGo := func(token fence.Token, number string) string {
			if fenced {
				return fmt.Sprint(reports.Put(ctx, token, "/total", []byte(number)))
			}
			return fmt.Sprint(os.WriteFile(filepath.Join(path, "total"), []byte(number), 0o600))
		}
		read := func(token fence.Token) {
			if fenced {
				must(t, reports.Claim(ctx, token))
			}
		}
		if rustIsLate {
			if found := rust("read 2"); found != "0" {
				t.Fatal(found)
			}
			read(3)
			inGo(3, "70")
			if said := rust("write 2 1"); fenced && said != "rejected stale" {
				t.Errorf("Rust says %q", said)
			}
		} else {
			read(2)
			if found := rust("read 3"); found != "0" {
				t.Fatal(found)
			}
			if said := rust("write 3 70"); said != "written" {
				t.Fatal(said)
			}
			if said := inGo(2, "1"); fenced && !strings.Contains(said, "2 is stale: 2 < 3") {
				t.Errorf("Go says %q", said)
			}
		}
		found, err := os.ReadFile(filepath.Join(path, "total"))
		must(t, err)
		return string(found)
	}
	for _, rustIsLate := range []bool{true, false} {
		if total := run(t, true, rustIsLate); total != "70" {
			t.Errorf("the acknowledged write became %s", total)
		}
		// A control: without the fence it is lost.
		if total := run(t, false, rustIsLate); total != "1" {
			t.Errorf("nothing was lost: %s", total)
		}
	}
}
