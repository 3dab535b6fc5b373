// Package sqltest tests the SQL fences with real drivers and real servers.
package sqltest

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
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
	postgresServer string
	mariaPort      int
	ends           []func()
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, end := range ends {
		end()
	}
	os.Exit(code)
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

func postgresURL(t *testing.T, database string) string {
	t.Helper()
	if postgresServer == "" {
		url, end := testserver.Postgres(t)
		postgresServer, ends = url, append(ends, end)
	}
	return strings.Replace(postgresServer, "/postgres?", "/"+database+"?", 1)
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
		place, port := folder(t), testserver.FreePort(t)
		me, err := user.Current()
		if err != nil {
			t.Fatal(err)
		}
		shared := []string{"--no-defaults", "--user=" + me.Username, "--datadir=" + place + "/data", "--tmpdir=" + place}
		testserver.Run(t, exec.Command(install, append(shared, "--auth-root-authentication-method=normal", "--skip-test-db")...))
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
