package palisade_test

import (
	"testing"

	"palisade.example/palisade"
	"palisade.example/palisade/internal/testserver"
	"palisade.example/palisade/palisadetest"
)

// A servedClient is a client with a server of its own.
type servedClient struct {
	*palisade.Client
	// again makes another client of the same server.
	again func(t *testing.T, options ...palisade.Option) *palisade.Client
	// From stop to resume the server answers nothing.
	stop, resume func(t *testing.T)
	double       bool
}

// onBoth runs a test against the program, so that what it shows is true, and against the double, so that this does the same.
func onBoth(t *testing.T, test func(t *testing.T, client servedClient)) {
	t.Run("program", func(t *testing.T) {
		server := testserver.Serve(t)
		again := func(t *testing.T, options ...palisade.Option) *palisade.Client {
			return newClient(t, append(options, palisade.Endpoints(server.URL))...)
		}
		stop, resume := func(t *testing.T) { server.Stop(t) }, func(t *testing.T) { server.Continue(t) }
		test(t, servedClient{again(t), again, stop, resume, false})
	})
	t.Run("double", func(t *testing.T) {
		server := palisadetest.NewServer()
		again := func(t *testing.T, options ...palisade.Option) *palisade.Client {
			client, err := server.Client(options...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			return client
		}
		stop, resume := func(*testing.T) { server.Stall() }, func(*testing.T) { server.Up() }
		test(t, servedClient{again(t), again, stop, resume, true})
	})
}
