package httpfence_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"palisade.example/palisade/fence"
	"palisade.example/palisade/fence/httpfence"
)

func pay(ctx context.Context, holder fence.Holder, url string) error {
	api := &http.Client{Transport: httpfence.Transport(holder, nil)}
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader(`{"paid": true}`))
	if err != nil {
		return err
	}
	answer, err := api.Do(httpfence.Numbered(request, 1)) // with a number it is safe to repeat
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	return httpfence.Check(answer) // fence.ErrStale: a newer holder has claimed; give up
}

// The service here only shows its requests; in production, `palisade gateway` is in front of it.
func ExampleTransport() {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"X-Fencing-Token", "X-Fencing-Lock", "X-Fencing-Sequence"} {
			fmt.Println(name, r.Header.Get(name))
		}
	}))
	defer service.Close()
	fmt.Println(pay(context.Background(), fence.NewPass(34, "", "orders"), service.URL+"/orders/17"))
	// Output:
	// X-Fencing-Token 34
	// X-Fencing-Lock orders
	// X-Fencing-Sequence 1
	// <nil>
}
