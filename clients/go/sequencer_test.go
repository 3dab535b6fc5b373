package palisade_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/fence/sequencer"
	"palisade.example/palisade/internal/testserver"
)

type sequencerVectors struct {
	JWKS  json.RawMessage `json:"jwks"`
	Cases []struct {
		Name      string `json:"name"`
		Sequencer string `json:"sequencer"`
		Resource  string `json:"resource"`
		Writes    bool   `json:"writes"`
		Verdict   string `json:"verdict"`
		Claims    struct {
			Authority string   `json:"iss"`
			Lock      string   `json:"lock"`
			Mode      string   `json:"mode"`
			Principal string   `json:"sub"`
			Slots     []uint32 `json:"slots"`
			Token     uint64   `json:"token"`
		} `json:"claims"`
	} `json:"cases"`
}

func readSequencers(t *testing.T) sequencerVectors {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testserver.Root(), "vectors", "sequencers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var found sequencerVectors
	if err := json.Unmarshal(text, &found); err != nil || len(found.Cases) < 50 {
		t.Fatalf("%v, %d vectors", err, len(found.Cases))
	}
	return found
}

func parsed(t *testing.T, jwks []byte) *sequencer.Keys {
	t.Helper()
	keys, err := sequencer.ParseKeys(jwks)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func codeOf(err error) string {
	var bad *sequencer.BadSequencer
	if errors.As(err, &bad) {
		return bad.Code
	}
	return fmt.Sprint(err)
}

func TestEverySequencerIsDecidedAlike(t *testing.T) {
	vectors := readSequencers(t)
	keys := parsed(t, vectors.JWKS)
	for _, one := range vectors.Cases {
		s, err := keys.Check(one.Sequencer, one.Resource, one.Writes)
		if one.Verdict != "admit" {
			if codeOf(err) != one.Verdict {
				t.Errorf("%s: %v", one.Name, err)
			}
			continue
		}
		c := one.Claims
		if err != nil || s.Authority() != c.Authority || s.Name() != c.Lock || s.Mode() != c.Mode || s.Token() != c.Token ||
			s.Principal() != c.Principal || !reflect.DeepEqual(s.Slots(), c.Slots) {
			t.Errorf("%s: %v, %+v", one.Name, err, s)
		}
	}
}

func TestALineEndInASequencerIsRefused(t *testing.T) {
	vectors := readSequencers(t)
	right := vectors.Cases[0].Sequencer
	if _, err := parsed(t, vectors.JWKS).Verify(right[:len(right)-2] + "\n" + right[len(right)-2:]); codeOf(err) != "bad_sequencer" {
		t.Errorf("%v", err)
	}
}

func TestWhatIsNoSetOfKeysIsRefused(t *testing.T) {
	const key = `{"kty": "OKP", "crv": "Ed25519", "kid": "k1", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`
	for jwks, says := range map[string]string{
		``:                              "not a set",
		`[]`:                            "not a set",
		`{"issuer": "a", "keys": [1]}`:  "not a set",
		`{"keys": [` + key + `]}`:       "issuer",
		`{"issuer": "a\n", "keys": []}`: "issuer",
		`{"issuer": "a", "keys": []}`:   "no key for Ed25519",
		`{"issuer": "a", "keys": [{}]}`: "no key for Ed25519",
		`{"issuer": "a", "keys": [` + key + `, ` + key + `]}`:                        `two keys are called "k1"`,
		`{"issuer": "a", "keys": [` + strings.Replace(key, "11qY", "", 1) + `]}`:     "32 bytes",
		`{"issuer": "a", "keys": [` + strings.Replace(key, `"k1"`, "null", 1) + `]}`: "no kid",
	} {
		if _, err := sequencer.ParseKeys([]byte(jwks)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", jwks, err)
		}
	}
}

func keysOf(t *testing.T, server *testserver.Process) *sequencer.Keys {
	t.Helper()
	answer, err := http.Get(server.URL + "/.well-known/jwks.json")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	jwks, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return parsed(t, jwks)
}

func TestASequencerIsBelievedWithTheKeysOfItsOwnServer(t *testing.T) {
	client, server := served(t)
	elsewhere, other := served(t)
	keys := keysOf(t, server)
	both, err := client.Locks(within(t), []string{"a", "b"}, palisade.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := both.Sequencer(within(t), "b")
	if err != nil {
		t.Fatal(err)
	}
	s, err := keys.Check(signed, "b", true)
	if err != nil || s.Token() != both.Token() || s.Authority() != both.Authority() || s.Name() != "b" {
		t.Errorf("%v, %+v", err, s)
	}
	if _, err := keys.Check(signed, "a", true); codeOf(err) != "wrong_lock" {
		t.Errorf("%v", err)
	}
	if _, err := keysOf(t, other).Verify(signed); codeOf(err) != "bad_sequencer" {
		t.Errorf("another server's keys: %v", err)
	}
	if _, err := both.Sequencer(within(t), "c"); !errors.Is(err, palisade.ErrInvalid) {
		t.Errorf("%v", err)
	}
	reader, err := elsewhere.Lock(within(t), "report", palisade.Shared())
	if err != nil {
		t.Fatal(err)
	}
	signed, err = reader.Sequencer(within(t), "report")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keysOf(t, other).Check(signed, "report", true); codeOf(err) != "bad_sequencer" {
		t.Errorf("a reader that writes: %v", err)
	}
	if err := client.Break(within(t), "b", both.Token(), "the test"); err != nil {
		t.Fatal(err)
	}
	var lost *palisade.LostError
	if _, err := both.Sequencer(within(t), "b"); !errors.As(err, &lost) || lost.Err.Code != "revoked" || lost.Name != "b" {
		t.Errorf("%v", err)
	}
	if err := both.Check(); !errors.Is(err, palisade.ErrLost) {
		t.Errorf("the lease is over: %v", err)
	}
}
