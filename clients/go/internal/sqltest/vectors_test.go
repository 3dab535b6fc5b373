package sqltest

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/internal/guardrow"
	"palisade.example/palisade/internal/testserver"
)

type vectorRecord struct {
	Authority string  `json:"authority"`
	Lock      string  `json:"lock"`
	Token     uint64  `json:"token"`
	Written   bool    `json:"written"`
	Sequence  *uint64 `json:"sequence"`
	Digest    *string `json:"digest"`
	Result    *string `json:"result"`
}

type vector struct {
	Mode      string       `json:"mode"`
	MaxJump   uint64       `json:"max_jump"`
	Record    vectorRecord `json:"record"`
	Operation struct {
		Kind      string  `json:"kind"`
		Token     *uint64 `json:"token"`
		Authority string  `json:"authority"`
		Lock      string  `json:"lock"`
		Sequence  *uint64 `json:"sequence"`
		Digest    *string `json:"digest"`
	} `json:"operation"`
	Verdict string        `json:"verdict"`
	Next    *vectorRecord `json:"next"`
}

func digest(t *testing.T, text *string) (uint64, bool) {
	t.Helper()
	if text == nil {
		return 0, false
	}
	n, err := strconv.ParseUint(*text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n, true
}

func (v vectorRecord) record(t *testing.T) fence.Record {
	t.Helper()
	r := fence.Record{Authority: v.Authority, Lock: v.Lock, Token: v.Token, Written: v.Written}
	r.Digest, r.HasDigest = digest(t, v.Digest)
	if v.Sequence != nil {
		r.Numbered, r.Sequence = true, *v.Sequence
	}
	if v.Result != nil {
		r.Result = []byte(*v.Result)
	}
	return r
}

func (v vector) operation(t *testing.T) fence.Operation {
	t.Helper()
	kinds := map[string]fence.Kind{"claim": fence.KindClaim, "read": fence.KindRead, "write": fence.KindWrite}
	operation := fence.Operation{Kind: kinds[v.Operation.Kind]}
	operation.Digest, operation.HasDigest = digest(t, v.Operation.Digest)
	if v.Operation.Sequence != nil {
		operation.Numbered, operation.Sequence = true, *v.Operation.Sequence
	}
	return operation
}

// Each vector's record is stored, and what is stored after the operation is the vector's next.
func TestTheGuardRowDecidesAsTheVectorsSay(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(testserver.Root(), "vectors/fence.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []vector
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	onEach(t, func(t *testing.T, e *engine) {
		base, ran := unique("vector"), 0
		tx, err := e.db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		for number, one := range cases {
			if one.Operation.Token == nil {
				// Code without a token does not call the fence here: the triggers refuse it.
				continue
			}
			ran++
			name, before := fmt.Sprintf("%s-%d", base, number), one.Record.record(t)
			if _, err := tx.Exec(e.insert, append([]any{name}, guardrow.Values(before)...)...); err != nil {
				t.Fatal(err)
			}
			// A rejection may end the transaction.
			inTransaction(t, tx, "SAVEPOINT before_it")
			holder := fence.NewPass(*one.Operation.Token, one.Operation.Authority, one.Operation.Lock)
			verdict, expected := "admit", before
			written, err := e.do(fence.Rule{Strict: one.Mode == "strict", MaxJump: one.MaxJump}, tx, name, holder, one.operation(t))
			var rejection *fence.Rejection
			switch {
			case errors.As(err, &rejection):
				verdict = rejection.Code
				inTransaction(t, tx, "ROLLBACK TO SAVEPOINT before_it")
			case err != nil:
				t.Fatalf("%+v: %v", one, err)
			case written.Repeat:
				verdict = "repeat"
			}
			if one.Next != nil {
				expected = one.Next.record(t)
			}
			var row guardrow.Row
			stored := "SELECT resource, authority, " + e.lock + ", token, written, sequence, digest, result" +
				" FROM palisade_fence WHERE resource = '" + name + "'"
			if err := tx.QueryRow(stored).Scan(row.Columns()...); err != nil {
				t.Fatal(err)
			}
			if verdict != one.Verdict || !reflect.DeepEqual(row.Record(), expected) {
				t.Errorf("%+v: %s, %+v", one, verdict, row.Record())
			}
		}
		if ran < 1000 {
			t.Errorf("only %d vectors", ran)
		}
	})
}

func inTransaction(t *testing.T, tx *sql.Tx, statement string) {
	t.Helper()
	if _, err := tx.Exec(statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
