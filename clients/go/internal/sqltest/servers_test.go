// Package sqltest tests the SQL fences with real drivers and real servers.
package sqltest

import (
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"

	"palisade.example/palisade/internal/testserver"
)

const startTimeout = time.Minute

// The servers are started once, by the first test that needs one, and ended by TestMain.
var (
	postgresPort, mariaPort int
	ends                    []func()
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, end := range ends {
		end()
	}
	os.Exit(code)
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func folder(t *testing.T) string {
	t.Helper()
	// Not t.TempDir: its name is too long for a socket, and it ends with one test.
	made, err := os.MkdirTemp("", "palisade-go")
	if err != nil {
		t.Fatal(err)
	}
	ends = append(ends, func() { os.RemoveAll(made) })
	return made
}

func run(t *testing.T, command *exec.Cmd) {
	t.Helper()
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", command.Args, err, output)
	}
}

// start starts a server and waits until the database answers.
func start(t *testing.T, command *exec.Cmd, end os.Signal, driver, source string) {
	t.Helper()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = command.Wait()
		close(ended)
	}()
	// Folders are removed after the servers that use them have ended.
	ends = append([]func(){func() {
		_ = command.Process.Signal(end)
		<-ended
	}}, ends...)
	db := open(t, driver, source)
	defer db.Close()
	for timeout := time.Now().Add(startTimeout); db.Ping() != nil; {
		select {
		case <-ended:
			t.Fatalf("%v ended", command.Args)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(timeout) {
			t.Fatalf("%v does not answer: %v", command.Args, db.Ping())
		}
	}
}

func open(t *testing.T, driver, source string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func execute(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// asPostgres: PostgreSQL does not run as root.
func asPostgres(t *testing.T, folder string, command *exec.Cmd) *exec.Cmd {
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

func postgresURL(t *testing.T, database string) string {
	t.Helper()
	if postgresPort == 0 {
		programs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
		if len(programs) == 0 {
			t.Fatal("PostgreSQL is missing: install the Debian package postgresql")
		}
		place, at, port := folder(t), programs[len(programs)-1], freePort(t)
		data := filepath.Join(place, "data")
		run(t, asPostgres(t, place, exec.Command(at+"/initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync")))
		server := exec.Command(at+"/postgres", "-D", data, "-k", place, "-p", strconv.Itoa(port),
			"-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "statement_timeout=30s")
		// Fast: with SIGTERM it would wait for clients that are still connected.
		start(t, asPostgres(t, place, server), syscall.SIGINT, "postgres", urlOf(port, "postgres"))
		postgresPort = port
		installFence(t, urlOf(port, "postgres"))
	}
	return urlOf(postgresPort, database)
}

func urlOf(port int, database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", port, database)
}

func installFence(t *testing.T, url string) {
	t.Helper()
	run(t, exec.Command(testserver.Binary(t), "fence", "install", "postgres", "--url", url))
}

func mariaSource(t *testing.T, database string) string {
	t.Helper()
	source := func(port int, database string) string {
		return fmt.Sprintf("palisade@tcp(127.0.0.1:%d)/%s?multiStatements=true", port, database)
	}
	if mariaPort == 0 {
		const install = "/usr/bin/mariadb-install-db"
		if _, err := os.Stat(install); err != nil {
			t.Fatal("MariaDB is missing: install the Debian package mariadb-server")
		}
		place, port := folder(t), freePort(t)
		me, err := user.Current()
		if err != nil {
			t.Fatal(err)
		}
		shared := []string{"--no-defaults", "--user=" + me.Username, "--datadir=" + place + "/data", "--tmpdir=" + place}
		run(t, exec.Command(install, append(shared, "--auth-root-authentication-method=normal", "--skip-test-db")...))
		init := "CREATE DATABASE palisade;\nCREATE USER 'palisade'@'%';\nGRANT ALL ON *.* TO 'palisade'@'%' WITH GRANT OPTION;\n"
		if err := os.WriteFile(place+"/init.sql", []byte(init), 0o600); err != nil {
			t.Fatal(err)
		}
		server := exec.Command("/usr/sbin/mariadbd", append(shared, fmt.Sprintf("--port=%d", port),
			"--socket="+place+"/socket", "--pid-file="+place+"/pid", "--init-file="+place+"/init.sql",
			"--bind-address=127.0.0.1", "--skip-name-resolve")...)
		start(t, server, syscall.SIGTERM, "mysql", source(port, "palisade"))
		mariaPort = port
		db := open(t, "mysql", source(port, "palisade"))
		defer db.Close()
		files, _ := filepath.Glob(filepath.Join(testserver.Root(), "crates/palisade-fence/sql/mysql/0*.sql"))
		if len(files) == 0 {
			t.Fatal("there are no files of the fence in crates/palisade-fence/sql/mysql")
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			execute(t, db, string(text))
		}
	}
	return source(mariaPort, database)
}
