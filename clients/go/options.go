package palisade

import (
	"crypto/tls"
	"time"

	"palisade.example/palisade/internal/exchange"
)

const (
	millisecond = time.Millisecond
	day         = 24 * time.Hour

	defaultTTL      = 15 * time.Second
	defaultWait     = 30 * time.Second
	defaultPatience = 5 * time.Second

	minTTL           = 100 * millisecond
	maxMetadataBytes = 256
	maxPermits       = 64
	maxLocks         = 64
)

// An Option sets something up in New.
type Option func(*settings)

type settings struct {
	urls     []string
	bearer   *string
	file     *string
	tls      *tls.Config
	tlsFiles *tlsFiles
	patience time.Duration
	margin   time.Duration
	reports  bool
	notices  bool
	exchange exchange.Exchange
}

// Endpoints are the addresses of the servers, http://HOST:PORT or https://HOST:PORT, of which one leads. Without this
// option they are those of PALISADE_URL, separated by commas, or else http://127.0.0.1:7420.
func Endpoints(urls ...string) Option { return func(s *settings) { s.urls = urls } }

// BearerToken is sent as Authorization with every request, with TLS or within this machine only. Without this option it is
// that of PALISADE_TOKEN.
func BearerToken(token string) Option { return func(s *settings) { s.bearer = &token } }

// BearerTokenFile is a file with the token. It is read again for each request, so a token may be replaced while the client
// runs; while the file cannot be used, the last token stays.
func BearerTokenFile(path string) Option { return func(s *settings) { s.file = &path } }

// TLSConfig is for https addresses: authorities, a client certificate. The client stores a copy, and does not read the
// config again: for a certificate that is replaced, use TLSFiles, or GetClientCertificate of the config.
func TLSConfig(config *tls.Config) Option { return func(s *settings) { s.tls = config } }

// TLSFiles are files in PEM for https addresses: the CAs of the servers ("": those of this machine), the client's
// certificate, and its key ("" for both: none). They are read again for each new connection, so they may be replaced while
// the client runs. While the new files do not match, the old ones stay in use. A TLSConfig applies as well.
func TLSFiles(ca, certificate, key string) Option {
	return func(s *settings) { s.tlsFiles = &tlsFiles{ca, certificate, key} }
}

// Patience is how long a call is repeated while there is no answer, 1 ms – 24 h; an acquire for that long after its
// wait. The default is 5 s.
func Patience(d time.Duration) Option { return func(s *settings) { s.patience = d } }

// Margin is subtracted from each deadline: the time to leave between a check and the effect of the next operation, 0 – 24
// h. The default is 0.
func Margin(d time.Duration) Option { return func(s *settings) { s.margin = d } }

// ReportRefusals says whether the client tells the authority of late writes that a fence refused, as a line of `palisade
// history`. It is done in the background, and no caller waits for it. The default is true.
func ReportRefusals(on bool) Option { return func(s *settings) { s.reports = on } }

// WithoutNotices makes a client that does not listen for what the server says about its leases: their ends and who waits for
// them are then learned from renewals, after a third of a TTL, and no further request is sent.
func WithoutNotices() Option { return func(s *settings) { s.notices = false } }

// Through is for package palisadetest, whose servers are no programs: requests go to it, and options about addresses, tokens
// and certificates have no effect.
func Through(e exchange.Exchange) Option { return func(s *settings) { s.exchange = e } }

func (s *settings) check() error {
	if err := within("the patience", s.patience, millisecond, day); err != nil {
		return err
	}
	return within("the margin", s.margin, 0, day)
}

// A LockOption sets up one acquire.
type LockOption func(*wish)

// TTL is how long the lease lasts without renewal, 100 ms – 24 h. The default is 15 s.
func TTL(d time.Duration) LockOption { return func(w *wish) { w.ttl = d } }

// Wait is how long to stay in the queue, 0 – 24 h. 0 tries once. The default is 30 s, and 0 of TryLock.
func Wait(d time.Duration) LockOption { return func(w *wish) { w.wait = d } }

// ClientID is shown to others, 1 – 255 bytes of printable ASCII. A lock that a client id holds is granted to the same
// client id again at once, and its earlier grant is over. By default each acquire has one of its own.
func ClientID(id string) LockOption { return func(w *wish) { w.clientID = id } }

// Metadata is shown with the holder, at most 256 bytes.
func Metadata(text string) LockOption { return func(w *wish) { w.metadata = text } }

// Shared asks for the lock as a reader, beside other readers; a writer keeps all of them out. Readers claim at the resource
// before they read, and never write.
func Shared() LockOption { return func(w *wish) { w.mode = shared } }

// Update asks for the lock as the one reader that may become the writer, by Lease.Upgrade, beside plain readers. It is
// instead of Shared.
func Update() LockOption { return func(w *wish) { w.mode = update } }

// Permits asks for count permits of a semaphore that has so many, 1 – 64, all or none. Claim each of Lease.SlotKeys.
func Permits(count, of int) LockOption {
	return func(w *wish) { w.permits = &wirePermits{count, of} }
}

func within(what string, d, low, high time.Duration) error {
	if d < low || d > high {
		return invalid("%s is %v: %d ms to %d ms are allowed", what, d, low/millisecond, high/millisecond)
	}
	return nil
}

// wholeMilliseconds rounds up.
func wholeMilliseconds(d time.Duration) int64 {
	return int64((d + millisecond - 1) / millisecond)
}
