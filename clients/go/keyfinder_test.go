package palisade_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"strconv"
	"sync/atomic"
)

// keyFinder is a proxy that reads the lease key of a grant on its way.
func keyFinder(proxy *httputil.ReverseProxy, host string, key *atomic.Value) http.Handler {
	direct := proxy.Director
	proxy.Director = func(r *http.Request) { direct(r); r.Host = host }
	proxy.ModifyResponse = func(r *http.Response) error {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		var grant struct {
			Key string `json:"lock_token"`
		}
		if json.Unmarshal(body, &grant) == nil && grant.Key != "" {
			key.Store(grant.Key)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.Header.Set("Content-Length", strconv.Itoa(len(body)))
		return nil
	}
	return proxy
}
