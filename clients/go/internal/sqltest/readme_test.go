package sqltest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"palisade.example/palisade"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/postgres"
	"palisade.example/palisade/internal/testserver"
)

var block = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```")

func blocks(t *testing.T, language string) []string {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(testserver.Root(), "clients/go/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, one := range block.FindAllStringSubmatch(string(readme), -1) {
		if one[1] == language {
			found = append(found, one[2])
		}
	}
	return found
}

// Each Go block of the README stands in a file of examples, which are run.
func TestTheExamplesOfTheReadmeAreThoseThatRun(t *testing.T) {
	var examples string
	for _, file := range []string{"example_test.go", "fence/httpfence/example_test.go", "palisadetest/server_test.go", "internal/sqltest/example_test.go"} {
		text, err := os.ReadFile(filepath.Join(testserver.Root(), "clients/go", file))
		if err != nil {
			t.Fatal(err)
		}
		examples += string(text)
	}
	found := blocks(t, "go")
	if len(found) < 3 {
		t.Errorf("only %d examples", len(found))
	}
	for _, one := range found {
		if !strings.Contains(examples, one) {
			t.Errorf("no example has this text:\n%s", one)
		}
	}
	if lines := strings.Count(found[0]+blocks(t, "sh")[0], "\n"); lines >= 10 {
		t.Errorf("from go get to a fenced write: %d lines", lines)
	}
}

// The first example, in the database that `palisade fence install` made ready; then a newer holder claims.
func TestAFencedWriteOfALease(t *testing.T) {
	e := onPostgres(t)
	client, err := palisade.New(palisade.Endpoints(testserver.Serve(t).URL))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	name := unique("shop")
	execute(t, e.db, "CREATE DATABASE "+name)
	testserver.InstallFence(t, postgresURL(t, name))
	shop := e.other(name)
	defer shop.Close()
	execute(t, shop, "CREATE TABLE orders (total int)", "INSERT INTO orders VALUES (41)")
	if err := order(ctx, client, shop); err != nil {
		t.Fatal(err)
	}
	var total, token int
	var lock string
	if err := shop.QueryRow("SELECT total FROM orders").Scan(&total); err != nil || total != 42 {
		t.Errorf("%d, %v", total, err)
	}
	row := shop.QueryRow("SELECT token, lock FROM palisade_fence WHERE resource = 'orders'")
	if err := row.Scan(&token, &lock); err != nil || token != 1 || lock != "orders" {
		t.Errorf("%d, %s, %v", token, lock, err)
	}
	status, err := client.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	newer := fence.NewPass(9, status.Authority, "orders")
	if err := postgres.Transact(ctx, shop, "orders", newer, nothing); err != nil {
		t.Fatal(err)
	}
	if err := order(ctx, client, shop); !errors.Is(err, fence.ErrStale) {
		t.Errorf("an older holder: %v", err)
	}
}

// The commands of the README, in a new module beside the repository.
func TestTheClientInstallsIntoANewModule(t *testing.T) {
	place := t.TempDir()
	if err := os.Symlink(testserver.Root(), filepath.Join(place, "palisade")); err != nil {
		t.Fatal(err)
	}
	app := filepath.Join(place, "app")
	program := "package main\n\nimport \"palisade.example/palisade\"\n\nfunc main() { _, _ = palisade.New() }\n"
	if err := os.Mkdir(app, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(app, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	commands := []string{"go mod init app"}
	for _, line := range strings.Split(blocks(t, "sh")[0], "\n") {
		if strings.HasPrefix(line, "go ") {
			commands = append(commands, line)
		}
	}
	if len(commands) != 3 {
		t.Errorf("%q", commands)
	}
	for _, line := range append(commands, "go build") {
		words := strings.Fields(line)
		command := exec.Command(words[0], words[1:]...)
		command.Dir = app
		command.Env = append(os.Environ(), "GOFLAGS=", "GOPROXY=off")
		testserver.Run(t, command)
	}
}
