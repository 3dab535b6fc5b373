package palisade

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// tlsFiles are the CAs of the servers, the client's certificate, and its key, in PEM. "": none.
type tlsFiles struct{ ca, certificate, key string }

// certificates are the content of the files when the last connection was made. A certificate may be valid for an hour, and
// the client may run for weeks, so each connection reads the files again. While the files cannot be used, because one of two
// is being replaced, the old content stays in use.
type certificates struct {
	files tlsFiles
	base  *tls.Config

	mu       sync.Mutex
	contents [3][]byte
	config   *tls.Config
}

func newCertificates(files tlsFiles, base *tls.Config) (*certificates, error) {
	if base == nil {
		base = &tls.Config{}
	}
	if (files.certificate == "") != (files.key == "") {
		return nil, invalid("TLSFiles: a certificate and its key are needed, both or none; got %q and %q", files.certificate, files.key)
	}
	c := &certificates{files: files, base: base.Clone()}
	if err := c.look(); err != nil {
		return nil, invalid("TLSFiles: %v", err)
	}
	return c, nil
}

// look reads the current files.
func (c *certificates) look() error {
	var contents [3][]byte
	for i, name := range []string{c.files.ca, c.files.certificate, c.files.key} {
		if name == "" {
			continue
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		contents[i] = content
	}
	if c.config != nil && bytes.Equal(contents[0], c.contents[0]) &&
		bytes.Equal(contents[1], c.contents[1]) && bytes.Equal(contents[2], c.contents[2]) {
		return nil
	}
	config := c.base.Clone()
	if c.files.ca != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(contents[0]) {
			return fmt.Errorf("%s has no certificate in PEM in it", c.files.ca)
		}
	}
	if c.files.certificate != "" {
		pair, err := tls.X509KeyPair(contents[1], contents[2])
		if err != nil {
			return fmt.Errorf("%s and %s cannot be used together: %w", c.files.certificate, c.files.key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	c.contents, c.config = contents, config
	return nil
}

// dial makes a connection with the current files, or else with the previous ones.
func (c *certificates) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	plain, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	config := c.current()
	if config.ServerName == "" {
		config.ServerName = host
	}
	secure := tls.Client(plain, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		plain.Close()
		return nil, err
	}
	return secure, nil
}

func (c *certificates) current() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	// The old ones stay, and the next connection looks again.
	_ = c.look()
	return c.config.Clone()
}

// ended is the message for a client certificate that has expired by this machine's clock: a server then ends the connection,
// and often its reason does not arrive.
func ended(config *tls.Config) string {
	if config == nil || len(config.Certificates) == 0 || config.Certificates[0].Leaf == nil {
		return ""
	}
	end := config.Certificates[0].Leaf.NotAfter
	if !time.Now().After(end) {
		return ""
	}
	return ". Perhaps because the client's certificate has expired (" + end.UTC().Format(time.RFC3339) + "): put a new one in its place"
}
