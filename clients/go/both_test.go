package palisade_test

import (
	"testing"

	"palisade.example/palisade"
)

// A served is a client with a server of its own.
type servedClient struct {
	*palisade.Client
	// again makes another client of the same server.
	again func(t *testing.T) *palisade.Client
}

// onBoth runs a test against the program, so that what it shows is true.
func onBoth(t *testing.T, test func(t *testing.T, client servedClient)) {
	t.Run("program", func(t *testing.T) {
		client, server := served(t)
		test(t, servedClient{client, func(t *testing.T) *palisade.Client {
			return newClient(t, palisade.Endpoints(server.URL))
		}})
	})
}
