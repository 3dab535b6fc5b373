package palisade_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync/atomic"
)

// keyFinder is a proxy that reads the lease key of a grant on its way.
func keyFinder(behind *url.URL, key *atomic.Value) http.Handler {
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(behind) }}
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
