package testserver

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const startTimeout = time.Minute

// Postgres starts PostgreSQL with the fence in its database postgres, and returns that database's address. Call end when all
// tests that share it have ended.
func Postgres(t testing.TB) (url string, end func()) {
	t.Helper()
	programs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if len(programs) == 0 {
		t.Fatal("PostgreSQL is missing: install the Debian package postgresql")
	}
	at := programs[len(programs)-1]
	// Not t.TempDir: its name is too long for a socket, and it ends with one test.
	place, err := os.MkdirTemp("", "palisade-go")
	if err != nil {
		t.Fatal(err)
	}
	port, data := FreePort(t), filepath.Join(place, "data")
	Run(t, asPostgres(t, place, exec.Command(at+"/initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync")))
	server := asPostgres(t, place, exec.Command(at+"/postgres", "-D", data, "-k", place, "-p", strconv.Itoa(port),
		"-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "statement_timeout=30s"))
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = server.Wait()
		close(ended)
	}()
	end = func() {
		// Fast: with SIGTERM it would wait for clients that are still connected.
		_ = server.Process.Signal(syscall.SIGINT)
		<-ended
		os.RemoveAll(place)
	}
	for timeout := time.Now().Add(startTimeout); ; {
		ready := exec.Command(at+"/pg_isready", "-q", "-h", "127.0.0.1", "-p", strconv.Itoa(port))
		if ready.Run() == nil {
			break
		}
		select {
		case <-ended:
			t.Fatalf("%v ended", server.Args)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(timeout) {
			end()
			t.Fatalf("%v does not answer", server.Args)
		}
	}
	url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port)
	InstallFence(t, url)
	return url, end
}

var databases atomic.Int64

// Database makes a database with the fence in the server that Postgres has started, and returns its address.
func Database(t testing.TB, server string) (url string) {
	t.Helper()
	programs, _ := filepath.Glob("/usr/lib/postgresql/*/bin/createdb")
	name := fmt.Sprint("shop", databases.Add(1))
	Run(t, exec.Command(programs[len(programs)-1], "--maintenance-db", server, name))
	url = strings.Replace(server, "/postgres?", "/"+name+"?", 1)
	InstallFence(t, url)
	return url
}

// InstallFence makes the tables of the fence in a database of PostgreSQL, and guards tables that are named.
func InstallFence(t testing.TB, url string, tables ...string) {
	t.Helper()
	Run(t, exec.Command(Binary(t), append([]string{"fence", "install", "postgres", "--url", url}, tables...)...))
}

// FreePort is a port of 127.0.0.1 on which nobody listens.
func FreePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// Run runs a command that must succeed.
func Run(t testing.TB, command *exec.Cmd) {
	t.Helper()
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", command.Args, err, output)
	}
}

// asPostgres: PostgreSQL does not run as root.
func asPostgres(t testing.TB, folder string, command *exec.Cmd) *exec.Cmd {
	t.Helper()
	command.Dir = "/"
	if os.Getuid() != 0 {
		return command
	}
	postgres, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(postgres.Uid)
	gid, _ := strconv.Atoi(postgres.Gid)
	if err := os.Chown(folder, uid, gid); err != nil {
		t.Fatal(err)
	}
	credential := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	command.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	return command
}
