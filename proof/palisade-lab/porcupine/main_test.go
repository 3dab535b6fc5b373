package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// enough for histories of a few lines, however busy the machine is.
const enough = time.Minute

func judged(t *testing.T, text string) verdict {
	t.Helper()
	h, err := read(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return judge(h, enough)
}

// script makes a history of short lines: "10-20 client: call -> answer" is a call at 10 ms with an answer at 20 ms, and
// "10 client: call" has no answer.
func script(header, text string) string {
	var lines strings.Builder
	fmt.Fprintln(&lines, header)
	for id, one := range strings.Split(strings.TrimSpace(text), "\n") {
		when, rest, _ := strings.Cut(strings.TrimSpace(one), " ")
		from, to, _ := strings.Cut(when, "-")
		client, rest, _ := strings.Cut(rest, ": ")
		call, answer, answered := strings.Cut(rest, " -> ")
		by := ""
		if client != "-" {
			by = fmt.Sprintf(`,"client":%q`, client)
		}
		fmt.Fprintf(&lines, `{"at":%s000000,"id":%d%s,%s}`+"\n", from, id, by, words(call, "call"))
		if answered {
			fmt.Fprintf(&lines, `{"at":%s000000,"id":%d,%s}`+"\n", to, id, words(answer, "answer"))
		}
	}
	return lines.String()
}

// words turns "acquire lock=a ttl_ms=100" into the fields of a line.
func words(text, kind string) string {
	var all []string
	for i, word := range strings.Fields(text) {
		name, value, named := strings.Cut(word, "=")
		if i == 0 && !named {
			name, value = kind, name
		}
		number := value != "" && strings.Trim(value, "0123456789") == "" || strings.ContainsAny(value, "[]") || value == "true"
		if !number {
			value = fmt.Sprintf("%q", value)
		}
		all = append(all, fmt.Sprintf("%q:%s", name, value))
	}
	return strings.Join(all, ",")
}

const (
	locksHeader     = `{"palisade_history":1,"expiry":"lazy"}`
	resourcesHeader = `{"palisade_resources":1}`
)

// A clean history of locks. The authority was killed and started again between 700 and 900 ms.
const cleanLocks = `
	10-20 a: acquire lock=l ttl_ms=1000 -> granted token=1
	30-40 a: renew lock=l token=1 -> renewed token=1
	35-45 b: acquire lock=l ttl_ms=1000 -> held token=1 holder=a
	50-130 b: acquire lock=l ttl_ms=1000 request=w -> granted token=2
	60-70 c: acquire lock=m ttl_ms=100 -> granted token=3
	100-120 a: release lock=l token=1 -> released token=1
	125-140 c: show lock=l -> held token=2 holder=b
	150-155 b: acquire lock=l ttl_ms=1000 request=w -> granted token=2
	160-170 d: acquire lock=m ttl_ms=1000 -> granted token=4
	180-190 c: renew lock=m token=3 -> ended token=3 how=expired
	200-210 e: acquire lock=r ttl_ms=1000 shared=true -> granted token=5 phase=5
	220-230 f: acquire lock=r ttl_ms=1000 update=true -> granted token=6 phase=5
	240-250 e: release lock=r token=5 -> released token=5
	260-270 f: acquire lock=r under=6 upgrade=true -> granted token=7 lease=6
	280-290 f: release lock=r token=7 -> released token=7
	300-310 g: acquire lock=s ttl_ms=1000 permits=2 of=3 -> granted token=8 slots=[1,2]
	320-330 h: acquire lock=s ttl_ms=1000 permits=1 of=3 -> granted token=9 slots=[3]
	340-350 i: acquire lock=t also=["u"] ttl_ms=1000 -> granted token=10
	360-370 i: release lock=t token=10 -> released token=10
	380-390 i: show lock=t -> free
	400-410 b: release lock=l token=2 -> released token=2
	800 j: acquire lock=l ttl_ms=1000 request=x
	950-990 j: acquire lock=l ttl_ms=1000 request=x -> granted token=11
	1000-1010 k: acquire lock=v ttl_ms=1000 -> granted token=12
`

// Each corruption replaces one piece of the clean history.
var lockCorruptions = []struct{ name, from, to, where string }{
	{"two holders at once", "100-120 a: release lock=l token=1 -> released token=1", "500-510 a: release lock=l token=1 -> released token=1", "l"},
	{"a token is repeated", "-> granted token=12", "-> granted token=11", "all tokens"},
	{"a token is lower after a restart", "-> granted token=11", "-> granted token=2", "l"},
	{"a token of another lock is lower after a restart", "-> granted token=12", "-> granted token=4", "all tokens"},
	{"a renewal after the release", "30-40 a: renew lock=l", "121-122 a: renew lock=l", "l"},
	{"a release of another client's grant", "100-120 a: release", "100-120 z: release", "l"},
	{"a release under another token", "released token=1\n", "released token=2\n", "l"},
	{"a waiter is granted beside the holder", "50-130 b:", "50-55 b:", "l"},
	{"a grant before the other lease can have ended", "60-70 c: acquire lock=m ttl_ms=100", "60-70 c: acquire lock=m ttl_ms=111", "m"},
	{"a repeated request gets another grant", "request=w -> granted token=2\n\t160", "request=w -> granted token=4\n\t160", "l"},
	{"a live grant is called expired", "30-40 a: renew lock=l token=1 -> renewed token=1", "30-40 a: renew lock=l token=1 -> ended token=1 how=expired", "l"},
	{"an expired grant is called released", "how=expired", "how=released", "m"},
	{"a writer beside a reader", "240-250 e: release", "440-450 e: release", "r"},
	{"a reader of another phase", "token=6 phase=5", "token=6 phase=6", "r"},
	{"two readers in mode update", "200-210 e: acquire lock=r ttl_ms=1000 shared=true", "200-210 e: acquire lock=r ttl_ms=1000 update=true", "r"},
	{"an upgrade without mode update", "lock=r ttl_ms=1000 update=true", "lock=r ttl_ms=1000 shared=true", "r"},
	{"a slot with two holders", "slots=[3]", "slots=[2]", "s"},
	{"fewer slots than asked for", "slots=[1,2]", "slots=[1]", "s"},
	{"a held lock is shown as free", "380-390 i: show lock=t", "380-390 i: show lock=u", "u"},
	{"a holder that nobody can be", "held token=1 holder=a", "held token=1 holder=c", "l"},
}

func TestCorruptHistoriesOfLocksAreFound(t *testing.T) {
	if v := judged(t, script(locksHeader, cleanLocks)); v.result != porcupine.Ok {
		t.Fatalf("the clean history: %s", v)
	}
	for _, one := range lockCorruptions {
		corrupt(t, locksHeader, cleanLocks, one.name, one.from, one.to, one.where)
	}
}

func corrupt(t *testing.T, header, clean, name, from, to, where string) {
	t.Run(name, func(t *testing.T) {
		if strings.Count(clean, from) != 1 {
			t.Fatalf("%q is not there once", from)
		}
		v := judged(t, script(header, strings.Replace(clean, from, to, 1)))
		if v.result != porcupine.Illegal || v.where != where {
			t.Errorf("%s, expected a violation at %s", v, where)
		}
	})
}

// A clean history of resources: b takes over from a, whose late write is rejected. The last line has no token.
const cleanResources = `
	10-20 -: claim resource=x token=1 -> admitted
	30-40 -: read resource=x token=1 -> admitted content=
	50-60 -: write resource=x token=1 content=one -> admitted
	70-90 -: claim resource=x token=2 -> admitted
	75-85 -: write resource=x token=1 content=two -> admitted
	100-110 -: read resource=x token=2 -> admitted content=two
	120-130 -: write resource=x token=1 content=late -> rejected highest=2
	140-150 -: write resource=x token=2 content=three -> admitted
	160-170 -: claim resource=y token=1 -> admitted
	200-210 -: read resource=x -> admitted content=three
`

var resourceCorruptions = []struct{ name, from, to string }{
	{"a stale write is admitted", "content=late -> rejected highest=2", "content=late -> admitted"},
	{"an acknowledged write is lost", "read resource=x -> admitted content=three", "read resource=x -> admitted content=two"},
	{"an acknowledged write is not read", "token=2 -> admitted content=two", "token=2 -> admitted content=one"},
	{"a rejected write took effect", "read resource=x -> admitted content=three", "read resource=x -> admitted content=late"},
	{"a write of nobody is read", "token=2 -> admitted content=two", "token=2 -> admitted content=other"},
	{"the newest holder is rejected", "write resource=x token=2 content=three -> admitted", "write resource=x token=2 content=three -> rejected highest=2"},
	{"a rejection names a token that nobody showed", "rejected highest=2", "rejected highest=3"},
	{"the mark is lower after a restart", "140-150 -: write resource=x token=2", "140-150 -: write resource=x token=1"},
}

func TestCorruptHistoriesOfResourcesAreFound(t *testing.T) {
	if v := judged(t, script(resourcesHeader, cleanResources)); v.result != porcupine.Ok {
		t.Fatalf("the clean history: %s", v)
	}
	for _, one := range resourceCorruptions {
		corrupt(t, resourcesHeader, cleanResources, one.name, one.from, one.to, "x")
	}
}

// A call without an answer may have taken effect, or not: each history is illegal without it.
func TestAnUnknownOutcomeExplains(t *testing.T) {
	tests := []struct{ name, header, without, at, unknown string }{
		{"a release", locksHeader, `
			10-20 a: acquire lock=l ttl_ms=1000 -> granted token=1
			40-50 b: acquire lock=l ttl_ms=1000 -> granted token=2`, "30", "a: release lock=l token=1"},
		{"an acquire", locksHeader, `
			10-20 b: acquire lock=l ttl_ms=1000 -> held token=1 holder=a`, "5", "a: acquire lock=l ttl_ms=1000"},
		{"an acquire of the holder", locksHeader, `
			10-20 a: acquire lock=l ttl_ms=1000 -> granted token=1
			40-50 a: renew lock=l token=1 -> ended token=1 how=superseded`, "30", "a: acquire lock=l ttl_ms=1000"},
		{"a reader", locksHeader, `
			20-30 b: acquire lock=l ttl_ms=1000 shared=true -> granted token=2 phase=1`,
			"10", "a: acquire lock=l ttl_ms=1000 shared=true"},
		{"an abandoned request", locksHeader, `
			10-20 a: acquire lock=l ttl_ms=1000 request=w -> granted token=1
			40-50 b: acquire lock=l ttl_ms=1000 -> granted token=2`, "30", "a: abandon lock=l request=w"},
		{"a write", resourcesHeader, `
			20-30 -: read resource=x token=2 -> admitted content=one`, "10", "-: write resource=x token=1 content=one"},
		{"a claim", resourcesHeader, `
			20-30 -: write resource=x token=1 content=one -> rejected highest=2`, "10", "-: claim resource=x token=2"},
	}
	for _, one := range tests {
		if v := judged(t, script(one.header, one.without)); v.result != porcupine.Illegal {
			t.Errorf("%s, without: %s", one.name, v)
		}
		for at, expected := range map[string]porcupine.CheckResult{one.at: porcupine.Ok, "900": porcupine.Illegal} {
			v := judged(t, script(one.header, fmt.Sprintf("%s\n%s %s", one.without, at, one.unknown)))
			if v.result != expected {
				t.Errorf("%s, sent at %s: %s", one.name, at, v)
			}
		}
	}
}

func TestAnUnreadableHistoryIsRefused(t *testing.T) {
	for _, text := range []string{
		"", "{}", locksHeader, "nonsense", locksHeader + "\n" + `{"at":1,"id":1,"answer":"free"}`,
		locksHeader + "\n" + `{"at":1,"id":1,"client":"a","call":"show","lock":"l","more":1}`,
	} {
		if _, err := read(strings.NewReader(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

// Not decided is not fine.
func TestExitStatus(t *testing.T) {
	for result, status := range map[porcupine.CheckResult]int{
		porcupine.Ok: explained, porcupine.Illegal: unexplained, porcupine.Unknown: undetermined,
	} {
		if got := (verdict{result: result}).exit(); got != status {
			t.Errorf("%s: %d, expected %d", result, got, status)
		}
	}
}
