package sqltest

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/internal/guardrow"
	"palisade.example/palisade/internal/vectors"
)

// Each vector's record is stored, and after the operation the stored record must equal the
// vector's next.
func TestTheGuardRowDecidesAsTheVectorsSay(t *testing.T) {
	onEach(t, func(t *testing.T, e *engine) {
		base := unique("vector")
		tx, err := e.db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		for number, one := range vectors.All(t) {
			if one.Holder == nil {
				// Code without a token does not call the fence here: the triggers refuse it.
				continue
			}
			name := fmt.Sprintf("%s-%d", base, number)
			if _, err := tx.Exec(e.insert, append([]any{name}, guardrow.Values(one.Record)...)...); err != nil {
				t.Fatal(err)
			}
			verdict, told := e.decide(t, tx, name, one)
			var row guardrow.Row
			stored := "SELECT resource, authority, " + e.lock + ", token, written, sequence, digest, result" +
				" FROM palisade_fence WHERE resource = '" + name + "'"
			if err := tx.QueryRow(stored).Scan(row.Columns()...); err != nil {
				t.Fatal(err)
			}
			if verdict != one.Verdict || told != one.Told || !reflect.DeepEqual(row.Record(), one.Next) {
				t.Errorf("%s: %s, %+v, %+v", one.Text, verdict, told, row.Record())
			}
		}
	})
}

// decide has the database decide. A rejection may end the transaction, so there is a savepoint.
func (e *engine) decide(t *testing.T, tx *sql.Tx, name string, one vectors.Case) (string, fence.Rejection) {
	t.Helper()
	inTransaction(t, tx, "SAVEPOINT before_it")
	written, err := e.do(one.Rule, tx, name, one.Holder, one.Operation)
	var rejection *fence.Rejection
	switch {
	case errors.As(err, &rejection):
		inTransaction(t, tx, "ROLLBACK TO SAVEPOINT before_it")
		told := *rejection
		told.Code = ""
		return rejection.Code, told
	case err != nil:
		t.Fatalf("%s: %v", one.Text, err)
	case written.Repeat:
		return "repeat", fence.Rejection{}
	}
	return "admit", fence.Rejection{}
}

func inTransaction(t *testing.T, tx *sql.Tx, statement string) {
	t.Helper()
	if _, err := tx.Exec(statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
