// Judges a recorded history with porcupine, a checker that nobody of this project wrote. See README.md.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	explained    = 0
	unexplained  = 1
	unreadable   = 2
	undetermined = 3
)

func main() {
	damages := flag.Int("damage", 0, "also damage each history so many times in each way, and expect each to be found")
	seed := flag.Uint64("seed", 1, "the seed of the damages")
	timeout := flag.Duration("timeout", 20*time.Second, "how long one lock or resource may take")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: judge [--damage N] [--seed N] [--timeout TIME] HISTORY...")
		os.Exit(unreadable)
	}
	worst := explained
	for _, file := range flag.Args() {
		worst = max(worst, judgeFile(file, *damages, *seed, *timeout))
	}
	os.Exit(worst)
}

func judgeFile(file string, damages int, seed uint64, timeout time.Duration) int {
	text, err := os.Open(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return unreadable
	}
	defer text.Close()
	h, err := read(text)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
		return unreadable
	}
	begun := time.Now()
	v := judge(h, timeout)
	took := time.Since(begun).Round(time.Millisecond)
	fmt.Printf("%s: %d calls in %d parts, %s: %s\n", file, len(h.calls), v.parts, took, v)
	if v.result != porcupine.Ok || damages == 0 {
		return v.exit()
	}
	return tryDamages(h, damages, seed, timeout)
}

// verdict is the result for a history, with the first part that is not linearizable.
type verdict struct {
	result porcupine.CheckResult
	parts  int
	where  string
	why    string
}

func (v verdict) exit() int {
	switch v.result {
	case porcupine.Ok:
		return explained
	case porcupine.Illegal:
		return unexplained
	}
	return undetermined
}

func (v verdict) String() string {
	switch v.result {
	case porcupine.Ok:
		return "linearizable"
	case porcupine.Illegal:
		return fmt.Sprintf("NOT LINEARIZABLE at %s; the first that no order explains: %s", v.where, v.why)
	}
	return fmt.Sprintf("not decided in time at %s", v.where)
}

// judge judges each part of a history.
func judge(h *history, timeout time.Duration) verdict {
	var parts []part
	if h.resources {
		parts = resourceParts(h)
	} else {
		parts = lockParts(h)
	}
	v := verdict{result: porcupine.Ok, parts: len(parts)}
	for _, one := range parts {
		result := porcupine.CheckOperationsTimeout(one.model, one.operations, timeout)
		if result != porcupine.Ok && v.result != porcupine.Illegal {
			v.result, v.where = result, one.name
			if result == porcupine.Illegal {
				v.why = firstUnexplained(one, timeout)
			}
		}
	}
	return v
}

// firstUnexplained is the earliest operation that is not in the longest order that porcupine found.
func firstUnexplained(one part, timeout time.Duration) string {
	_, info := porcupine.CheckOperationsVerbose(one.model, one.operations, timeout)
	var longest []porcupine.Operation
	for _, orders := range info.PartialLinearizationsOperations() {
		for _, order := range orders {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	var first *porcupine.Operation
	for i, candidate := range one.operations {
		in := slices.ContainsFunc(longest, func(o porcupine.Operation) bool { return o.Input == candidate.Input })
		if !in && (first == nil || candidate.Return < first.Return) {
			first = &one.operations[i]
		}
	}
	if first == nil {
		return "(unknown)"
	}
	switch in := first.Input.(type) {
	case *step:
		return in.text
	case *access:
		return in.text
	}
	return "(unknown)"
}
