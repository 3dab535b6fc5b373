package kubefence_test

import (
	"context"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"palisade.example/palisade"
	"palisade.example/palisade/kubefence"
	"palisade.example/palisade/palisadetest"
)

// scaleUp is the example of docs/use/kubernetes.md.
func scaleUp(ctx context.Context, locks *palisade.Client, config *rest.Config) error {
	return locks.With(ctx, "shop/deploy", func(ctx context.Context, lease *palisade.Lease) error {
		fenced, err := kubefence.Config(ctx, config, lease) // one for each lease
		if err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(fenced)
		if err != nil {
			return err
		}
		deployments := client.AppsV1().Deployments("shop")
		web, err := kubefence.Claim(ctx, deployments, "web", lease) // the claim is the first read
		if err != nil {
			return err
		}
		*web.Spec.Replicas++
		_, err = deployments.Update(ctx, web, metav1.UpdateOptions{})
		return err // errors.Is(kubefence.Rejection(err), fence.ErrStale): a newer holder has claimed, so give up
	})
}

func TestTheExampleOfThePageClaimsAndWrites(t *testing.T) {
	s := serve(t, account)
	s.object = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":1}}`
	locks, err := palisadetest.NewServer().Client()
	if err != nil {
		t.Fatal(err)
	}
	config := &rest.Config{Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	if err := scaleUp(t.Context(), locks, config); err != nil {
		t.Fatal(err)
	}
	var methods []string
	for _, request := range s.requests {
		methods = append(methods, request.Method)
	}
	if _, body := s.last(); strings.Join(methods, " ") != "POST PATCH PUT" || !strings.Contains(body, `"replicas":2`) {
		t.Errorf("%v, the last one: %s", methods, body)
	}
	page, err := os.ReadFile("../../../docs/use/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```go\n")
	block, _, _ = strings.Cut(block, "```")
	if block == "" || !strings.Contains(string(source), block) {
		t.Errorf("the page has another example:\n%s", block)
	}
}
