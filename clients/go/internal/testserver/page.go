package testserver

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var marked = regexp.MustCompile("(?ms)^<!-- (\\S+) -->\n```go\n(.*?)^```")

// CheckPage compares the examples of docs/use/go.md that carry one of these marks with the file of examples in the test's
// own folder: each stands there, and has fewer than ten lines.
func CheckPage(t *testing.T, file string, marks ...string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(Root(), "docs/use/go.md"))
	if err != nil {
		t.Fatal(err)
	}
	examples, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, one := range marked.FindAllStringSubmatch(string(page), -1) {
		found[one[1]] = one[2]
	}
	for _, mark := range marks {
		text := found[mark]
		if text == "" {
			t.Errorf("the page has no example %s", mark)
		}
		if !strings.Contains(string(examples), text) {
			t.Errorf("%s does not have the page's example %s:\n%s", file, mark, text)
		}
		if lines := strings.Count(text, "\n"); lines >= 10 {
			t.Errorf("%s: %d lines to a fenced write", mark, lines)
		}
	}
}
