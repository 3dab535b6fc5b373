package palisade_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/internal/testserver"
)

// A server with `--tls-client-ca`: both sides prove who they are.
func TestServerAndClientCertificates(t *testing.T) {
	folder := t.TempDir()
	file := func(name string) string { return filepath.Join(folder, name) }
	made := exec.Command(testserver.Binary(t), "auth", "cert", "--dir", folder, "127.0.0.1")
	if output, err := made.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	server := testserver.Serve(t, "--tls-cert", file("127.0.0.1.pem"), "--tls-key", file("127.0.0.1.key"),
		"--tls-client-ca", file("ca.pem"))
	certificate, err := tls.LoadX509KeyPair(file("127.0.0.1.pem"), file("127.0.0.1.key"))
	if err != nil {
		t.Fatal(err)
	}
	authority, err := os.ReadFile(file("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(authority)

	proven := &tls.Config{RootCAs: authorities, Certificates: []tls.Certificate{certificate}}
	lease := mustLock(t, newClient(t, palisade.Endpoints(server.URL), palisade.TLSConfig(proven)), "orders")
	if err := lease.Release(within(t)); err != nil {
		t.Error(err)
	}
	for who, config := range map[string]*tls.Config{
		"a client without a certificate":     {RootCAs: authorities},
		"a client of another authority's CA": {Certificates: []tls.Certificate{certificate}},
	} {
		client := newClient(t, palisade.Endpoints(server.URL), palisade.TLSConfig(config), palisade.Patience(time.Second))
		_, err := client.Lock(within(t), "orders", palisade.Wait(0))
		if !errors.Is(err, palisade.ErrUnavailable) && !errors.Is(err, palisade.ErrUnknownOutcome) {
			t.Errorf("%s: %v", who, err)
		}
	}
}
