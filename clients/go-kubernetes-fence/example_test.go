package kubefence_test

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"palisade.example/kubernetes-fence"
	"palisade.example/palisade"
	"palisade.example/palisade/fence"
)

// The example of docs/use/kubernetes.md.
func Example() {
	_ = func(ctx context.Context, locks *palisade.Client, config *rest.Config) error {
		lease, err := locks.Lock(ctx, "shop/deploy")
		if err != nil {
			return err
		}
		defer func() { _ = lease.Release(ctx) }()
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
		if errors.Is(kubefence.Rejection(err), fence.ErrStale) {
			return err // a newer holder has claimed it: give up
		}
		return err
	}
}
