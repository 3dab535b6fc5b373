// Package testserver starts real servers for tests, on free ports and in temporary folders.
package testserver

import (
	"bufio"
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
	found := os.Getenv("PALISADE_BINARY")
	if found == "" {
		found = filepath.Join(Root(), "target", "debug", "palisade")
	}
	if _, err := os.Stat(found); err != nil {
		t.Fatalf("%s is missing: run `cargo build -p palisade`, or set PALISADE_BINARY", found)
	}
	return found
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

var listening = regexp.MustCompile(`http://127\.0\.0\.1:\d+`)

// Serve starts `palisade serve`.
func Serve(t testing.TB, arguments ...string) *Process {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	return Palisade(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--data", data}, arguments...)...)
}

// Palisade starts a subcommand that serves, and waits until it says where.
func Palisade(t testing.TB, arguments ...string) *Process {
	t.Helper()
	command := exec.Command(Binary(t), arguments...)
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stderr = os.Stderr
	Start(t, command, syscall.SIGTERM)
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if url := listening.FindString(lines.Text()); url != "" {
			go func() {
				for lines.Scan() {
					// A full pipe would stop the server.
				}
			}()
			return &Process{url, command.Process}
		}
	}
	t.Fatalf("%v ended before it listened: is it a palisade binary?", command.Args)
	return nil
}

// Start starts a program, and ends it with that signal when the test ends.
func Start(t testing.TB, command *exec.Cmd, end os.Signal) {
	t.Helper()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGCONT)
		_ = command.Process.Signal(end)
		_ = command.Wait()
	})
}

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
