package testserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"
)

// A Refused is a late write, as `palisade history` knows it.
type Refused struct {
	Resource  string `json:"resource"`
	Highest   uint64 `json:"highest"`
	Operation string `json:"operation"`
	Times     int    `json:"times"`
}

// Refused are the late writes of a grant, once the history has the grant and so many of them.
func (p *Process) Refused(t testing.TB, lock string, token uint64, atLeast int) []Refused {
	t.Helper()
	asked := fmt.Sprintf("%s/v1/history?lock=%s&token=%d", p.URL, url.QueryEscape(lock), token)
	for end := time.Now().Add(30 * time.Second); ; {
		answer, err := http.Get(asked)
		if err != nil {
			t.Fatal(err)
		}
		var found struct {
			Grants []struct {
				Rejections []Refused `json:"rejections"`
			} `json:"grants"`
		}
		err = json.NewDecoder(answer.Body).Decode(&found)
		answer.Body.Close()
		if err != nil || answer.StatusCode != 200 {
			t.Fatalf("%s: %s, %v", asked, answer.Status, err)
		}
		if len(found.Grants) == 1 && len(found.Grants[0].Rejections) >= atLeast {
			return found.Grants[0].Rejections
		}
		if time.Now().After(end) {
			t.Fatalf("%s has no %d refused writes: %+v", asked, atLeast, found)
		}
		// real time: the history follows once a second.
		time.Sleep(50 * time.Millisecond)
	}
}
