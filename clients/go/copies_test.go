package palisade_test

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// A copy of a lease would be upgraded a second time, and a copy of a watch or a list would ask for the same once more.
func TestVetFindsCopies(t *testing.T) {
	vet := exec.Command("go", "vet", "-copylocks", "./testdata/copies")
	said, err := vet.CombinedOutput()
	if err == nil {
		t.Fatal("vet has nothing against copies")
	}
	found := regexp.MustCompile(`copies lock value to other(\w+)`).FindAllStringSubmatch(string(said), -1)
	var names []string
	for _, one := range found {
		names = append(names, one[1])
	}
	if got := strings.Join(names, " "); got != "Client Lease Watch Locks" {
		t.Errorf("%q: %s", got, said)
	}
}
