package testserver

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
)

const workerMode = "PALISADE_TEST_WORKER"

// Mode is what a Worker is to do, in its own process; "" in that of the tests. TestMain asks for it.
func Mode() string { return os.Getenv(workerMode) }

// A Worker is the test program itself in a process of its own, which stops in the middle of its work.
type Worker struct {
	process *os.Process
	lines   *bufio.Scanner
}

// StartWorker starts one, with more variables of the environment, NAME=VALUE.
func StartWorker(t testing.TB, mode string, environment ...string) *Worker {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(append(os.Environ(), environment...), workerMode+"="+mode)
	command.Stderr = os.Stderr
	// A test that runs into its time limit cleans nothing up.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return &Worker{command.Process, bufio.NewScanner(output)}
}

// StopHere is called in the worker: SIGSTOP for its own process, until the test calls Continue. The caller's thread may go on
// for a moment while another one takes the signal, so it waits.
func StopHere() {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		panic(err)
	}
	<-continued
	signal.Stop(continued)
}

// AwaitStop returns when the worker has stopped.
func (w *Worker) AwaitStop(t testing.TB) {
	t.Helper()
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(w.process.Pid, &status, syscall.WUNTRACED, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || !status.Stopped() {
			t.Fatalf("the worker did not stop: %v, %v", status, err)
		}
		return
	}
}

// Continue ends its stop.
func (w *Worker) Continue(t testing.TB) {
	t.Helper()
	if err := w.process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// Line is the next line that it prints; "" at the end.
func (w *Worker) Line(t testing.TB) string {
	t.Helper()
	if !w.lines.Scan() {
		return fmt.Sprint("the worker ended: ", w.lines.Err())
	}
	return w.lines.Text()
}
