package palisadetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"palisade.example/palisade/internal/exchange"
	"palisade.example/palisade/internal/testserver"
)

// An example of docs/reference/protocol.md. clients/holder-suite/protocol_examples.py compares the same ones with the program.
type example struct {
	line                       int
	method, path, body, answer string
	status                     int
	before, meanwhile          [][3]string
}

var (
	exampleStep = regexp.MustCompile(`^<!-- (run|while it waits): (\w+) (\S+)(?: (.*?))? -->$`)
	// Values that differ from run to run.
	exampleForms = map[string]*regexp.Regexp{
		"lock_token":  regexp.MustCompile(`^[0-9a-f]{32}$`),
		"authority":   regexp.MustCompile(`^[0-9a-f]{32}$`),
		"incarnation": regexp.MustCompile(`^[0-9a-f]{32}$`),
		"acquired_at": regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`),
		"time":        regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`),
		"version":     regexp.MustCompile(`.`),
		// For people.
		"message": regexp.MustCompile(`.`),
	}
	// The double has no manual clock of its own.
	notOfTheDouble = map[string]bool{"manual_clock": true}
)

func examples(t *testing.T) (found []example) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(testserver.Root(), "docs/reference/protocol.md"))
	if err != nil {
		t.Fatal(err)
	}
	var next example
	lines := strings.Split(string(page), "\n")
	for at := 0; at < len(lines); at++ {
		if step := exampleStep.FindStringSubmatch(strings.TrimSpace(lines[at])); step != nil {
			one := [3]string{step[2], step[3], step[4]}
			if step[1] == "run" {
				next.before = append(next.before, one)
			} else {
				next.meanwhile = append(next.meanwhile, one)
			}
			continue
		}
		if lines[at] != "```http" {
			continue
		}
		next.line = at + 1
		var text []string
		for at++; lines[at] != "```"; at++ {
			text = append(text, lines[at])
		}
		asked, answered, _ := strings.Cut(strings.Join(text, "\n"), "\n\n")
		head, body, _ := strings.Cut(asked, "\n")
		status, answer, _ := strings.Cut(answered, "\n")
		next.body, next.answer = body, answer
		if _, err := fmt.Sscan(head+" "+status, &next.method, &next.path, &next.status); err != nil {
			t.Fatal(err)
		}
		found = append(found, next)
		next = example{}
	}
	return found
}

// A runner sends the examples to a double whose clock stands still.
type runner struct {
	t      *testing.T
	server *Server

	mu      sync.Mutex
	secrets map[string]string
	at      time.Time
}

func (r *runner) send(method, path, body string) (int, string) {
	r.t.Helper()
	r.mu.Lock()
	for shown, real := range r.secrets {
		body = strings.ReplaceAll(body, shown, real)
	}
	r.mu.Unlock()
	if path == "/v1/clock/advance" {
		var by struct {
			MS int64 `json:"ms"`
		}
		if err := json.Unmarshal([]byte(body), &by); err != nil {
			r.t.Fatal(err)
		}
		r.mu.Lock()
		r.at = r.at.Add(time.Duration(by.MS) * time.Millisecond)
		r.mu.Unlock()
		r.server.mu.Lock()
		r.server.settle()
		r.server.broadcast()
		r.server.mu.Unlock()
		return 200, "{}"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	answer, err := wire{r.server}.Send(ctx, exchange.Request{Method: method, Path: path, Body: []byte(body)})
	if err != nil {
		r.t.Error(err)
		return 0, ""
	}
	defer answer.Body.Close()
	if !strings.HasPrefix(path, "/v1/watch") {
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			r.t.Error(err)
		}
		return answer.Status, string(text)
	}
	text, part := "", make([]byte, 4096)
	for strings.Count(text, "\n\n") < 2 {
		n, err := answer.Body.Read(part)
		if err != nil {
			r.t.Error(err)
			break
		}
		text += string(part[:n])
	}
	return answer.Status, text
}

func (r *runner) step(step [3]string) {
	r.t.Helper()
	if status, text := r.send(step[0], step[1], step[2]); status != 200 {
		r.t.Errorf("%v was answered %d %s", step, status, text)
	}
}

func (r *runner) run(one example) (status int, text string) {
	r.t.Helper()
	for _, step := range one.before {
		r.step(step)
	}
	if len(one.meanwhile) == 0 {
		return r.send(one.method, one.path, one.body)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		status, text = r.send(one.method, one.path, one.body)
	}()
	for waits := 0; waits == 0; {
		r.server.mu.Lock()
		waits = len(r.server.queue) + r.server.listening
		r.server.mu.Unlock()
	}
	for _, step := range one.meanwhile {
		r.step(step)
	}
	<-done
	return status, text
}

// differences between an answer of the page and that of the double.
func (r *runner) differences(at string, shown, real any) (found []string) {
	name := at[strings.LastIndex(at, ".")+1:]
	form := exampleForms[name]
	was, isObject := shown.(map[string]any)
	is, isToo := real.(map[string]any)
	switch {
	case isObject && isToo:
		for key := range was {
			if _, there := is[key]; !there && !notOfTheDouble[key] {
				found = append(found, fmt.Sprintf("%s.%s is only in the page", at, key))
			} else if there {
				found = append(found, r.differences(at+"."+key, was[key], is[key])...)
			}
		}
		for key := range is {
			if _, there := was[key]; !there {
				found = append(found, fmt.Sprintf("%s.%s is only in the answer", at, key))
			}
		}
	case form != nil:
		if !form.MatchString(fmt.Sprint(real)) {
			found = append(found, fmt.Sprintf("%s is %v", at, real))
		}
		if name == "lock_token" {
			r.mu.Lock()
			r.secrets[fmt.Sprint(shown)] = fmt.Sprint(real)
			r.mu.Unlock()
		}
	default:
		list, isList := shown.([]any)
		other, isToo := real.([]any)
		if isList && isToo && len(list) == len(other) {
			for n := range list {
				found = append(found, r.differences(at, list[n], other[n])...)
			}
		} else if !reflect.DeepEqual(shown, real) {
			found = append(found, fmt.Sprintf("%s is %v, the page has %v", at, real, shown))
		}
	}
	return found
}

func (r *runner) compare(one example, status int, text string) []string {
	if status != one.status {
		return []string{fmt.Sprintf("status %d, the page has %d: %s", status, one.status, text)}
	}
	objects := func(text string) (all []any) {
		if !strings.HasPrefix(one.path, "/v1/watch") {
			text = "data: " + strings.ReplaceAll(text, "\n", " ")
		}
		for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
			data, isData := strings.CutPrefix(line, "data: ")
			var object any = line
			if isData {
				if err := json.Unmarshal([]byte(data), &object); err != nil {
					r.t.Fatalf("%s: %v", data, err)
				}
			}
			all = append(all, object)
		}
		return all
	}
	return r.differences("", objects(one.answer), objects(text))
}

// The double answers every example of the page as the program does, so a client sees no difference.
func TestTheDoubleAnswersTheExamplesOfTheProtocol(t *testing.T) {
	all := examples(t)
	if len(all) < 12 {
		t.Fatalf("only %d examples", len(all))
	}
	r := &runner{t: t, server: NewServer(), secrets: map[string]string{}, at: time.Now()}
	r.server.now = func() time.Time {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.at
	}
	for _, one := range all {
		status, text := r.run(one)
		for _, difference := range r.compare(one, status, text) {
			t.Errorf("docs/reference/protocol.md:%d: %s %s: %s", one.line, one.method, one.path, difference)
		}
	}
}
