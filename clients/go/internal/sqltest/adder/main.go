// Adder is a holder's work in Go, for proof/fleet: it reads and writes one number, in two steps, under a fence or without
// one. It speaks as crates/palisade-fence/examples/adder.rs.
//
//	adder postgres|http URL RESOURCE fenced|unfenced      then lines: "read TOKEN", "write TOKEN NUMBER"
package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	_ "github.com/lib/pq"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/httpfence"
	"palisade.example/palisade/fence/postgres"
)

// A store has the number. A number of -1 is a read.
type store func(holder fence.Holder, number int64) (int64, error)

func main() {
	if len(os.Args) != 5 {
		fail(errors.New("usage: adder postgres|http URL RESOURCE fenced|unfenced"))
	}
	made := onHTTP
	if os.Args[1] == "postgres" {
		made = onPostgres
	}
	add, err := made(os.Args[2], os.Args[3], os.Args[4] == "fenced")
	if err != nil {
		fail(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println(answer(add, strings.Fields(lines.Text())))
	}
}

func answer(add store, words []string) string {
	token, err := strconv.ParseUint(words[1], 10, 64)
	if err != nil {
		fail(err)
	}
	number := int64(-1)
	if words[0] == "write" {
		if number, err = strconv.ParseInt(words[2], 10, 64); err != nil {
			fail(err)
		}
	}
	found, err := add(fence.Token(token), number)
	var rejection *fence.Rejection
	switch {
	case errors.As(err, &rejection):
		return "rejected " + rejection.Code
	case err != nil:
		fail(err)
	case number >= 0:
		return "written"
	}
	return strconv.FormatInt(found, 10)
}

func onPostgres(url, name string, fenced bool) (store, error) {
	db, err := sql.Open("postgres", url+"?sslmode=disable")
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	return func(holder fence.Holder, number int64) (found int64, err error) {
		work := func(tx *sql.Tx) error {
			if number >= 0 {
				_, err := tx.Exec("UPDATE totals SET total = $1 WHERE name = $2", number, name)
				return err
			}
			return tx.QueryRow("SELECT total FROM totals WHERE name = $1", name).Scan(&found)
		}
		if fenced {
			return found, postgres.Transact(ctx, db, name, holder, work)
		}
		tx, err := db.Begin()
		if err != nil {
			return 0, err
		}
		defer func() { _ = tx.Rollback() }()
		if err := work(tx); err != nil {
			return 0, err
		}
		return found, tx.Commit()
	}, nil
}

func onHTTP(url, name string, fenced bool) (store, error) {
	ask := func(method, body string, holder fence.Holder, claim bool) (string, error) {
		request, err := http.NewRequest(method, url+"/"+name, strings.NewReader(body))
		if err != nil {
			return "", err
		}
		if fenced {
			httpfence.SetHeaders(request.Header, holder)
		}
		if claim {
			request = httpfence.Claim(request)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		if err := httpfence.Check(answer); err != nil {
			return "", err
		}
		text, err := io.ReadAll(answer.Body)
		if err == nil && answer.StatusCode >= 300 {
			err = fmt.Errorf("%s: %s", answer.Status, text)
		}
		return string(text), err
	}
	return func(holder fence.Holder, number int64) (int64, error) {
		if number >= 0 {
			_, err := ask("PUT", strconv.FormatInt(number, 10), holder, false)
			return 0, err
		}
		if fenced {
			if _, err := ask("POST", "", holder, true); err != nil {
				return 0, err
			}
		}
		text, err := ask("GET", "", holder, false)
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(text, 10, 64)
	}, nil
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "adder:", err)
	os.Exit(1)
}
