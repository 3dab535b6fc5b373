// Package testserver starts real servers for tests, on free ports and in temporary folders.
package testserver

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"testing"
)

// Binary is the palisade binary: PALISADE_BINARY, or the dev build of the repository.
func Binary(t testing.TB) string {
	t.Helper()
	found := binary()
	if _, err := os.Stat(found); err != nil {
		t.Fatalf("%s is missing: run `cargo build -p palisade`, or set PALISADE_BINARY", found)
	}
	return found
}

func binary() string {
	if named := os.Getenv("PALISADE_BINARY"); named != "" {
		return named
	}
	return filepath.Join(Root(), "target", "debug", "palisade")
}

// Root is the folder of the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..", "..")
}

// A Process is a server that is stopped when the test ends.
type Process struct {
	URL     string
	process *os.Process
}

var listening = regexp.MustCompile(`https?://127\.0\.0\.1:\d+`)

// Serve starts `palisade serve`.
func Serve(t testing.TB, arguments ...string) *Process {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	return Palisade(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--data", data}, arguments...)...)
}

// ServeStrict starts one that knows nobody: every caller is refused.
func ServeStrict(t testing.TB) *Process {
	t.Helper()
	access := filepath.Join(t.TempDir(), "access.toml")
	if err := os.WriteFile(access, []byte("[auth]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return Serve(t, "--access", access)
}

// Palisade starts a subcommand that serves, and waits until it says where.
func Palisade(t testing.TB, arguments ...string) *Process {
	t.Helper()
	started, end, err := launch(Binary(t), arguments...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return started
}

// ForExamples runs the tests with a server whose address is in PALISADE_URL: examples have no testing.TB. It returns the
// exit code.
func ForExamples(m *testing.M) int {
	data, err := os.MkdirTemp("", "palisade-go")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(data)
	started, end, err := launch(binary(), "serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(data, "data"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer end()
	os.Setenv("PALISADE_URL", started.URL)
	return m.Run()
}

func launch(program string, arguments ...string) (started *Process, end func(), err error) {
	command := exec.Command(program, arguments...)
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := command.Start(); err != nil {
		return nil, nil, fmt.Errorf("%w: run `cargo build -p palisade`, or set PALISADE_BINARY", err)
	}
	end = func() {
		_ = command.Process.Signal(syscall.SIGCONT)
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
	}
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if url := listening.FindString(lines.Text()); url != "" {
			go func() {
				for lines.Scan() {
					// A full pipe would stop the server.
				}
			}()
			return &Process{url, command.Process}, end, nil
		}
	}
	end()
	return nil, nil, fmt.Errorf("%v ended before it listened: is it a palisade binary?", command.Args)
}

// Kill ends the process.
func (p *Process) Kill(t testing.TB) { p.signal(t, syscall.SIGKILL) }

// Stop stops the process until the test ends or Continue is called: it answers nothing, and its connections stay open.
func (p *Process) Stop(t testing.TB) { p.signal(t, syscall.SIGSTOP) }

// Continue ends a Stop.
func (p *Process) Continue(t testing.TB) { p.signal(t, syscall.SIGCONT) }

func (p *Process) signal(t testing.TB, signal os.Signal) {
	t.Helper()
	if err := p.process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}
