package palisade_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/internal/testserver"
)

// An authority is a folder with a CA, a certificate for a server, and one for a client.
type authority string

func newAuthority(t *testing.T) authority {
	t.Helper()
	folder := t.TempDir()
	for _, subject := range []string{"127.0.0.1", "me"} {
		made := exec.Command(testserver.Binary(t), "auth", "cert", "--dir", folder, subject)
		if output, err := made.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	return authority(folder)
}

func (a authority) file(name string) string { return filepath.Join(string(a), name) }

// serve starts a server with `--tls-client-ca`: both sides prove who they are.
func (a authority) serve(t *testing.T) *testserver.Process {
	t.Helper()
	return testserver.Serve(t, "--tls-cert", a.file("127.0.0.1.pem"), "--tls-key", a.file("127.0.0.1.key"),
		"--tls-client-ca", a.file("ca.pem"))
}

// config belongs to a client that reads the files once.
func (a authority) config(t *testing.T) *tls.Config {
	t.Helper()
	certificate, err := tls.LoadX509KeyPair(a.file("me.pem"), a.file("me.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(a.file("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: authorities, Certificates: []tls.Certificate{certificate}}
}

func TestServerAndClientCertificates(t *testing.T) {
	ca := newAuthority(t)
	server := ca.serve(t)
	proven := ca.config(t)
	for who, option := range map[string]palisade.Option{
		"with a config": palisade.TLSConfig(proven),
		"with files":    palisade.TLSFiles(ca.file("ca.pem"), ca.file("me.pem"), ca.file("me.key")),
	} {
		lease := mustLock(t, newClient(t, palisade.Endpoints(server.URL), option), "orders")
		if err := lease.Release(within(t)); err != nil {
			t.Errorf("%s: %v", who, err)
		}
	}
	for who, option := range map[string]palisade.Option{
		"a client without a certificate":     palisade.TLSConfig(&tls.Config{RootCAs: proven.RootCAs}),
		"a client of another authority's CA": palisade.TLSConfig(&tls.Config{Certificates: proven.Certificates}),
		"without a certificate, with files":  palisade.TLSFiles(ca.file("ca.pem"), "", ""),
		"of another CA, with files":          palisade.TLSFiles("", ca.file("me.pem"), ca.file("me.key")),
	} {
		client := newClient(t, palisade.Endpoints(server.URL), option, palisade.Patience(time.Second))
		_, err := client.Lock(within(t), "orders", palisade.Wait(0))
		if !errors.Is(err, palisade.ErrUnavailable) && !errors.Is(err, palisade.ErrUnknownOutcome) {
			t.Errorf("%s: %v", who, err)
		}
	}
}

func TestANewConnectionHasWhatIsInTheFiles(t *testing.T) {
	old, fresh, mine := newAuthority(t), newAuthority(t), authority(t.TempDir())
	// As Kubernetes does: the new file takes the old one's place.
	take := func(from authority, names ...string) {
		t.Helper()
		for _, name := range names {
			content, err := os.ReadFile(from.file(name))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(mine.file("next"), content, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(mine.file("next"), mine.file(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	take(old, "ca.pem", "me.pem", "me.key")
	first, second, third := old.serve(t), old.serve(t), fresh.serve(t)
	all := palisade.Endpoints(first.URL, second.URL, third.URL)
	client := newClient(t, all, palisade.TLSFiles(mine.file("ca.pem"), mine.file("me.pem"), mine.file("me.key")))
	once := newClient(t, all, palisade.TLSConfig(mine.config(t)), palisade.Patience(time.Second))
	show(t, client, "orders")
	show(t, once, "orders")
	// One of two files is replaced: the old pair stays in use.
	take(fresh, "me.pem")
	first.Kill(t)
	show(t, client, "orders")
	show(t, once, "orders")
	take(fresh, "me.key", "ca.pem")
	second.Kill(t)
	show(t, client, "orders")
	// A control: a client that reads its files once is refused, and trusts nobody there.
	if _, err := once.Show(within(t), "orders"); err == nil {
		t.Error("a client that reads its files once was served")
	}
}

// A forgetful server knows who a connection belongs to for its first answers only, as if its certificate were over.
func forgetful(t *testing.T, knows int) (address palisade.Option, asked func() string) {
	t.Helper()
	var mu sync.Mutex
	var paths []string
	answers := make(map[net.Conn]int)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connection := r.Context().Value(http.LocalAddrContextKey).(*countedAddr)
		mu.Lock()
		paths = append(paths, r.URL.Path)
		answers[connection.inner]++
		known := answers[connection.inner] <= knows
		mu.Unlock()
		w.Header().Set("Palisade-Nonce", r.Header.Get("Palisade-Nonce"))
		switch {
		case !known:
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error": {"code": "unauthenticated", "message": "the client certificate has expired"}}`)
		case strings.HasSuffix(r.URL.Path, "/watch"):
			fmt.Fprint(w, "id: 7\nevent: missed\ndata: {\"missed\": 2}\n\n")
		default:
			fmt.Fprint(w, `{"resource_id": "orders", "holder": null, "waiters": 0}`)
		}
	}))
	server.Listener = countedListener{server.Listener}
	server.StartTLS()
	t.Cleanup(server.Close)
	return palisade.Endpoints(server.URL), func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(paths, " ")
	}
}

// A handler finds the connection that a request came on by its local address.
type (
	countedListener struct{ net.Listener }
	countedConn     struct{ net.Conn }
	countedAddr     struct {
		net.Addr
		inner net.Conn
	}
)

func (l countedListener) Accept() (net.Conn, error) {
	connection, err := l.Listener.Accept()
	return countedConn{connection}, err
}

func (c countedConn) LocalAddr() net.Addr { return &countedAddr{c.Conn.LocalAddr(), c.Conn} }

func TestAConnectionWhoseCertificateIsOverIsReplaced(t *testing.T) {
	trusting := palisade.TLSConfig(&tls.Config{InsecureSkipVerify: true})
	address, asked := forgetful(t, 1)
	client := newClient(t, address, trusting)
	show(t, client, "orders")
	show(t, client, "orders")
	watch := client.Watch(within(t), "")
	defer watch.Close()
	if !watch.Next() || watch.Event().Kind != "missed" {
		t.Errorf("%v", watch.Err())
	}
	if got := asked(); got != strings.Repeat("/v1/locks/orders ", 3)+"/v1/watch /v1/watch" {
		t.Errorf("%s", got)
	}
	// A control: a caller that is unknown on a new connection, too, gets the error after one more attempt.
	address, asked = forgetful(t, 0)
	var refused *palisade.Error
	stranger := newClient(t, address, trusting)
	if _, err := stranger.Show(within(t), "orders"); !errors.As(err, &refused) || refused.Code != "unauthenticated" {
		t.Errorf("%v", err)
	}
	if got := asked(); got != "/v1/locks/orders /v1/locks/orders" {
		t.Errorf("%s", got)
	}
}

func TestFilesThatCannotBeUsedAreNamed(t *testing.T) {
	ca := newAuthority(t)
	for says, option := range map[string]palisade.Option{
		"nobody.pem":             palisade.TLSFiles(ca.file("nobody.pem"), "", ""),
		"me.key has no":          palisade.TLSFiles(ca.file("me.key"), "", ""),
		"cannot be used togethe": palisade.TLSFiles("", ca.file("me.pem"), ca.file("127.0.0.1.key")),
		"both or none":           palisade.TLSFiles("", ca.file("me.pem"), ""),
	} {
		if _, err := palisade.New(option); !errors.Is(err, palisade.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}
