// Package copies copies values that must not be copied; `go vet` has to report it.
package copies

import "palisade.example/palisade"

func copies(client *palisade.Client, lease *palisade.Lease, watch *palisade.Watch, locks *palisade.Locks) {
	otherClient := *client
	otherLease := *lease
	otherWatch := *watch
	otherLocks := *locks
	shares(&otherClient, &otherLease, &otherWatch, &otherLocks)
}

// shares is the control: pointers may be copied.
func shares(client *palisade.Client, lease *palisade.Lease, watch *palisade.Watch, locks *palisade.Locks) {
	if client != nil && lease != nil && watch != nil && locks != nil {
		shares(client, lease, watch, locks)
	}
}
