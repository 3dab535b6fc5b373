package real

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/kubefence"
)

var get = metav1.GetOptions{}

// A caller sends requests as somebody.
type caller struct {
	*kubernetes.Clientset
	any *dynamic.DynamicClient
}

// bare is a caller without the wrapper, as somebody else may be one.
func bare(t *testing.T, config *rest.Config, user string, extra map[string][]string) caller {
	t.Helper()
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Extra: extra}
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	dynamics, err := dynamic.NewForConfig(config)
	must(t, err)
	return caller{client, dynamics}
}

var widgets = schema.GroupVersionResource{Group: "shop.example", Version: "v1", Resource: "widgets"}

// A door is one way to change an object: of the namespace, by its name.
type door struct {
	name string
	try  func(ctx context.Context, by caller, namespace, name string) error
}

func deployment(name string) *apps.Deployment {
	labels := map[string]string{"app": name}
	requests := core.ResourceList{core.ResourceCPU: resource.MustParse("1")}
	container := core.Container{Name: "a", Image: "shop.example/a:1", Resources: core.ResourceRequirements{Requests: requests}}
	return &apps.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: apps.DeploymentSpec{
			Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: core.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       core.PodSpec{Containers: []core.Container{container}},
			},
		},
	}
}

func patched(kind types.PatchType, patch string, subresources ...string) func(context.Context, caller, string, string) error {
	return func(ctx context.Context, by caller, namespace, name string) error {
		options := metav1.PatchOptions{}
		if kind == types.ApplyPatchType {
			options = metav1.PatchOptions{FieldManager: "late", Force: ptr.To(true)}
		}
		_, err := by.AppsV1().Deployments(namespace).Patch(ctx, name, kind, []byte(patch), options, subresources...)
		return err
	}
}

// Ways that a fence judges by the token.
var doors = []door{
	{"PATCH, merge", patched(types.MergePatchType, `{"spec":{"replicas":3}}`)},
	{"PATCH, strategic merge", patched(types.StrategicMergePatchType, `{"spec":{"replicas":3}}`)},
	{"PATCH, JSON", patched(types.JSONPatchType, `[{"op":"replace","path":"/spec/replicas","value":3}]`)},
	{"server-side apply with force", patched(types.ApplyPatchType, `{"apiVersion":"apps/v1","kind":"Deployment","spec":{"replicas":3}}`)},
	{"PATCH, dry run", func(ctx context.Context, by caller, namespace, name string) error {
		_, err := by.AppsV1().Deployments(namespace).Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"replicas":3}}`),
			metav1.PatchOptions{DryRun: []string{"All"}})
		return err
	}},
	{"PUT without resourceVersion", func(ctx context.Context, by caller, namespace, name string) error {
		found, err := by.AppsV1().Deployments(namespace).Get(ctx, name, get)
		if err != nil {
			return err
		}
		found.ResourceVersion = ""
		_, err = by.AppsV1().Deployments(namespace).Update(ctx, found, metav1.UpdateOptions{})
		return err
	}},
	{"PUT with the current resourceVersion", func(ctx context.Context, by caller, namespace, name string) error {
		found, err := by.AppsV1().Deployments(namespace).Get(ctx, name, get)
		if err != nil {
			return err
		}
		found.Spec.Replicas = ptr.To[int32](4)
		_, err = by.AppsV1().Deployments(namespace).Update(ctx, found, metav1.UpdateOptions{})
		return err
	}},
	{"/status, PATCH", patched(types.MergePatchType, `{"status":{"observedGeneration":7}}`, "status")},
	{"/status, PUT", func(ctx context.Context, by caller, namespace, name string) error {
		found, err := by.AppsV1().Deployments(namespace).Get(ctx, name, get)
		if err != nil {
			return err
		}
		found.ResourceVersion, found.Status.ObservedGeneration = "", 8
		_, err = by.AppsV1().Deployments(namespace).UpdateStatus(ctx, found, metav1.UpdateOptions{})
		return err
	}},
	{"autoscaling/v2 of an object of autoscaling/v1", func(ctx context.Context, by caller, namespace, name string) error {
		_, err := by.AutoscalingV2().HorizontalPodAutoscalers(namespace).Patch(ctx, name, types.MergePatchType,
			[]byte(`{"spec":{"maxReplicas":9}}`), metav1.PatchOptions{})
		return err
	}},
	{"a custom resource, PATCH", func(ctx context.Context, by caller, namespace, name string) error {
		_, err := by.any.Resource(widgets).Namespace(namespace).Patch(ctx, name, types.MergePatchType,
			[]byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{})
		return err
	}},
	{"a custom resource, /status", func(ctx context.Context, by caller, namespace, name string) error {
		_, err := by.any.Resource(widgets).Namespace(namespace).Patch(ctx, name, types.MergePatchType,
			[]byte(`{"status":{"replicas":3}}`), metav1.PatchOptions{}, "status")
		return err
	}},
	{"pods/resize", func(ctx context.Context, by caller, namespace, name string) error {
		_, err := by.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType,
			[]byte(`{"spec":{"containers":[{"name":"a","resources":{"requests":{"cpu":"2"}}}]}}`), metav1.PatchOptions{}, "resize")
		return err
	}},
	{"pods/ephemeralcontainers", func(ctx context.Context, by caller, namespace, name string) error {
		_, err := by.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType,
			[]byte(`{"spec":{"ephemeralContainers":[{"name":"late","image":"shop.example/b:1"}]}}`), metav1.PatchOptions{}, "ephemeralcontainers")
		return err
	}},
	{"deletion of a collection", func(ctx context.Context, by caller, namespace, name string) error {
		return by.CoreV1().ConfigMaps(namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	}},
	{"DELETE", func(ctx context.Context, by caller, namespace, name string) error {
		return by.AppsV1().Deployments(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	}},
}

// Ways that do not show the token: nobody may use them.
var unseen = []door{
	{"/scale, PATCH", patched(types.MergePatchType, `{"spec":{"replicas":3}}`, "scale")},
	{"/scale, PUT", func(ctx context.Context, by caller, namespace, name string) error {
		wanted := &autoscaling.Scale{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: autoscaling.ScaleSpec{Replicas: 5}}
		_, err := by.AppsV1().Deployments(namespace).UpdateScale(ctx, name, wanted, metav1.UpdateOptions{})
		return err
	}},
	{"a custom resource, /scale", func(ctx context.Context, by caller, namespace, name string) error {
		_, err := by.any.Resource(widgets).Namespace(namespace).Patch(ctx, name, types.MergePatchType,
			[]byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{}, "scale")
		return err
	}},
	{"pods/binding", func(ctx context.Context, by caller, namespace, name string) error {
		return by.CoreV1().Pods(namespace).Bind(ctx, &core.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Target: core.ObjectReference{Kind: "Node", Name: "n"},
		}, metav1.CreateOptions{})
	}},
	{"pods/eviction", func(ctx context.Context, by caller, namespace, name string) error {
		return by.PolicyV1().Evictions(namespace).Evict(ctx, &policy.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}})
	}},
}

func named(doors []door, name string) door {
	for _, one := range doors {
		if one.name == name {
			return one
		}
	}
	panic(name)
}

// furnish makes one object of each kind, without a token.
func (c *cluster) furnish(t *testing.T, namespace, name string) {
	t.Helper()
	ctx, made := t.Context(), metav1.CreateOptions{}
	_, err := c.client.AppsV1().Deployments(namespace).Create(ctx, deployment(name), made)
	must(t, err)
	_, err = c.client.AutoscalingV1().HorizontalPodAutoscalers(namespace).Create(ctx, &autoscaling.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: autoscaling.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscaling.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name}, MaxReplicas: 3,
		},
	}, made)
	must(t, err)
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "shop.example/v1", "kind": "Widget", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"replicas": int64(1)},
	}}
	_, err = c.any.Resource(widgets).Namespace(namespace).Create(ctx, widget, made)
	must(t, err)
	c.counter(t, namespace, name)
	_, err = c.client.CoreV1().Pods(namespace).Create(ctx, &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: deployment(name).Spec.Template.Spec}, made)
	must(t, err)
}

func claims(t *testing.T, by caller, namespace, name string, holder fence.Holder) {
	t.Helper()
	ctx := t.Context()
	_, err := kubefence.Claim(ctx, by.AppsV1().Deployments(namespace), name, holder)
	must(t, err)
	_, err = kubefence.Claim(ctx, by.AutoscalingV1().HorizontalPodAutoscalers(namespace), name, holder)
	must(t, err)
	_, err = kubefence.Claim(ctx, by.any.Resource(widgets).Namespace(namespace), name, holder)
	must(t, err)
	_, err = kubefence.Claim(ctx, by.CoreV1().ConfigMaps(namespace), name, holder)
	must(t, err)
	_, err = kubefence.Claim(ctx, by.CoreV1().Pods(namespace), name, holder)
	must(t, err)
}

// customKind makes the kind Widget, with both subresources.
func (c *cluster) customKind(t *testing.T) {
	t.Helper()
	number := map[string]any{"type": "object", "properties": map[string]any{"replicas": map[string]any{"type": "integer"}}}
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets.shop.example"},
		"spec": map[string]any{
			"group": "shop.example", "scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "properties": map[string]any{"spec": number, "status": number},
				}},
				"subresources": map[string]any{
					"status": map[string]any{},
					"scale":  map[string]any{"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
				},
			}},
		},
	}}
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	_, err := c.any.Resource(definitions).Create(t.Context(), definition, metav1.CreateOptions{})
	must(t, err)
	until(t, "the kind is served", func() bool {
		_, err := c.any.Resource(widgets).Namespace("shop").List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
}

// code is the HTTP status of an answer, with a rejection's code.
func code(err error) string {
	if err == nil {
		return "200"
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err.Error()
	}
	said := fmt.Sprint(status.Status().Code)
	var rejected *fence.Rejection
	if errors.As(kubefence.Rejection(err), &rejected) {
		return said + " " + rejected.Code
	}
	if strings.Contains(err.Error(), "denied request: palisade: ") {
		return said + " palisade"
	}
	return said
}

// TestTheDoors tries every way to write: late, without a token, in time, and where there is no policy.
func TestTheDoors(t *testing.T) {
	c := start(t)
	c.customKind(t)
	c.install(t, "deployments.apps", "configmaps", "pods", "horizontalpodautoscalers.autoscaling", "widgets.shop.example")
	late, current := fence.NewPass(5, "a", "shop/deploy"), fence.NewPass(6, "a", "shop/deploy")
	by := func(holder fence.Holder) caller {
		client, dynamics := c.as(t, holder)
		return caller{client, dynamics}
	}
	admin := caller{c.client, c.any}
	c.furnish(t, "shop", "other")
	claims(t, by(current), "shop", "other", current)
	controller := "system:serviceaccount:kube-system:deployment-controller"
	if err := named(doors, "/status, PUT").try(t.Context(), bare(t, c.holder, controller, nil), "shop", "other"); code(err) != "403" {
		t.Errorf("with the printed roles, a holder acts as somebody else: %v", err)
	}
	// From here on the holder may do everything, so that the policy alone refuses.
	c.everything(t)
	// Each way has its own objects, because the last ones delete them.
	all := append(append([]door{}, doors...), unseen...)
	for at, one := range all {
		name := fmt.Sprintf("door-%d", at)
		for _, namespace := range []string{"shop", "control"} {
			c.furnish(t, namespace, name)
			claims(t, by(late), namespace, name, late)
			claims(t, by(current), namespace, name, current)
		}
		isUnseen := at >= len(doors)
		refused := one.try(t.Context(), by(late), "shop", name)
		tokenless := one.try(t.Context(), admin, "shop", name)
		in := one.try(t.Context(), by(current), "shop", name)
		open := one.try(t.Context(), admin, "control", name)
		report(t, "| %s | %s | %s | %s | %s |", one.name, code(refused), code(tokenless), code(in), code(open))
		wanted := [4]string{"403 stale", "403 tokenless", "200", "200"}
		if isUnseen {
			wanted = [4]string{"403 palisade", "403 palisade", "403 palisade", "200"}
		}
		if got := [4]string{code(refused), code(tokenless), code(in), code(open)}; got != wanted {
			t.Errorf("%s: %v, not %v: %v; %v; %v; %v", one.name, got, wanted, refused, tokenless, in, open)
		}
	}
	for _, one := range []struct {
		name, want string
		err        error
	}{
		{"a PUT of an object read before the claim", "409", c.readBefore(t, by(late), by(current), late, current)},
		{"another authority, a higher token", "403 wrong_authority", kubefenceClaim(t, by(fence.NewPass(9, "b", "shop/deploy")), fence.NewPass(9, "b", "shop/deploy"))},
		{"another lock, a higher token", "403 wrong_lock", kubefenceClaim(t, by(fence.NewPass(9, "a", "other")), fence.NewPass(9, "a", "other"))},
		{"a forged token", "403 jump", kubefenceClaim(t, by(fence.NewPass(fence.MaxToken, "a", "shop/deploy")), fence.NewPass(fence.MaxToken, "a", "shop/deploy"))},
		{"a forged annotation, without a token", "403 tokenless", kubefenceClaim(t, admin, fence.NewPass(9, "a", "shop/deploy"))},
		{"a token that is no number", "403 palisade", named(doors, "PATCH, merge").try(t.Context(), bare(t, c.holder, "system:serviceaccount:shop:deployer", map[string][]string{kubefence.TokenKey: {"six"}}), "shop", "other")},
		{"the deployment controller's status", "200", named(doors, "/status, PUT").try(t.Context(), bare(t, c.admin, controller, nil), "shop", "other")},
		{"the deployment controller removes the mark", "403 palisade", removes(t.Context(), bare(t, c.admin, controller, nil))},
		{"a creation of a late holder, which is not fenced", "200", creates(t.Context(), by(late), late)},
		{"a creation with a mark of somebody else", "403 palisade", creates(t.Context(), by(late), current)},
		{"the scheduler's binding", "200", named(unseen, "pods/binding").try(t.Context(), bare(t, c.admin, "system:kube-scheduler", nil), "shop", "other")},
	} {
		report(t, "| %s | %s | – | – | – |", one.name, code(one.err))
		if got := code(one.err); got != one.want {
			t.Errorf("%s: %s, not %s: %v", one.name, got, one.want, one.err)
		}
	}
}

// everything lets the holder do everything.
func (c *cluster) everything(t *testing.T) {
	t.Helper()
	_, err := c.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbac.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "everything"},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbac.Subject{{Kind: "ServiceAccount", Namespace: "shop", Name: "deployer"}},
	}, metav1.CreateOptions{})
	must(t, err)
	holder, _ := c.as(t, fence.Token(1))
	until(t, "the rights act", func() bool {
		_, err := holder.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
}

func kubefenceClaim(t *testing.T, by caller, holder fence.Holder) error {
	t.Helper()
	_, err := kubefence.Claim(t.Context(), by.AppsV1().Deployments("shop"), "other", holder)
	return err
}

// removes is a PUT without the annotations.
func removes(ctx context.Context, by caller) error {
	found, err := by.AppsV1().Deployments("shop").Get(ctx, "other", get)
	if err != nil {
		return err
	}
	found.Annotations = nil
	_, err = by.AppsV1().Deployments("shop").Update(ctx, found, metav1.UpdateOptions{})
	return err
}

func creates(ctx context.Context, by caller, holder fence.Holder) error {
	made := deployment("new")
	if err := kubefence.Stamp(made, holder); err != nil {
		return err
	}
	_, err := by.AppsV1().Deployments("shop").Create(ctx, made, metav1.CreateOptions{})
	return err
}

// readBefore writes what a late holder had read before the newer one claimed.
func (c *cluster) readBefore(t *testing.T, late, current caller, older, newer fence.Holder) error {
	t.Helper()
	c.furnish(t, "shop", "before")
	found, err := kubefence.Claim(t.Context(), late.AppsV1().Deployments("shop"), "before", older)
	must(t, err)
	claims(t, current, "shop", "before", newer)
	_, err = late.AppsV1().Deployments("shop").Update(t.Context(), found, metav1.UpdateOptions{})
	return err
}
