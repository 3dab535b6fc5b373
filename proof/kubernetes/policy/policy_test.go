// Package policy evaluates what `palisade fence k8s` prints, with the admission plugin of the API server itself, on pairs of
// objects: the one that is stored, and the one that a request would store.
package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/kubefence"
	"sigs.k8s.io/yaml"
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// printed is what palisade prints, document by document.
func printed(t *testing.T, arguments ...string) []string {
	t.Helper()
	palisade := os.Getenv("PALISADE_BINARY")
	if palisade == "" {
		t.Fatal("PALISADE_BINARY does not name the palisade binary")
	}
	command := exec.Command(palisade, append([]string{"fence", "k8s", "--service-account", "shop:deployer"}, arguments...)...)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("palisade fence k8s %q: %v", arguments, err)
	}
	return strings.Split(string(output), "\n---\n")
}

// strictly refuses fields that the kind does not have.
func strictly[T any](t *testing.T, text string) *T {
	t.Helper()
	one := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), one); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return one
}

// A server is the admission of an API server that has the policy.
type server struct {
	plugin  *validating.Plugin
	objects admission.ObjectInterfaces
}

// serve begins the admission of what is printed.
func serve(t *testing.T, arguments ...string) server {
	t.Helper()
	return admits(t, printed(t, arguments...), func(*admissionregistration.ValidatingAdmissionPolicy) {})
}

// admits begins the admission plugin with a policy that is changed first, and with the defaults that the API server fills in.
func admits(t *testing.T, documents []string, change func(*admissionregistration.ValidatingAdmissionPolicy)) server {
	t.Helper()
	policy := strictly[admissionregistration.ValidatingAdmissionPolicy](t, documents[0])
	change(policy)
	binding := strictly[admissionregistration.ValidatingAdmissionPolicyBinding](t, documents[1])
	everything := &metav1.LabelSelector{}
	policy.Spec.MatchConstraints.NamespaceSelector = everything
	policy.Spec.MatchConstraints.ObjectSelector = everything
	if matched := binding.Spec.MatchResources; matched != nil {
		matched.ObjectSelector = everything
	}
	var all []runtime.Object
	for _, name := range []string{"shop", "other"} {
		labels := map[string]string{core.LabelMetadataName: name}
		all = append(all, &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	}
	client := fake.NewClientset(append(all, policy, binding)...)
	factory := informers.NewSharedInformerFactory(client, 0)
	plugin, err := validating.NewPlugin(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	plugin.SetExternalKubeInformerFactory(factory)
	plugin.SetExternalKubeClientSet(client)
	plugin.SetRESTMapper(meta.NewDefaultRESTMapper(nil))
	scheme := runtime.NewScheme()
	plugin.SetDynamicClient(dynamicfake.NewSimpleDynamicClient(scheme))
	plugin.SetDrainedNotification(ctx.Done())
	plugin.SetUnconditionalAuthorizer(nobody{})
	if err := plugin.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	if !plugin.WaitForReady() {
		t.Fatal("the admission plugin does not become ready")
	}
	return server{plugin, admission.NewObjectInterfacesFromScheme(scheme)}
}

type nobody struct{}

func (nobody) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, "", nil
}

// A request that changes deployments.apps "web" in the namespace shop, unless it says otherwise.
type request struct {
	operation       admission.Operation
	kind            schema.GroupVersionKind
	resource        schema.GroupVersionResource
	subresource     string
	namespace       string
	stored, written *unstructured.Unstructured
	user            string
	groups          []string
	extra           map[string][]string
}

func (s server) judges(r request) error {
	if r.kind.Empty() {
		r.kind = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	}
	if r.resource.Empty() {
		r.resource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	}
	if r.user == "" {
		r.user = "system:serviceaccount:shop:deployer"
	}
	if r.namespace == "" {
		r.namespace = "shop"
	}
	groups := append([]string{"system:authenticated"}, r.groups...)
	who := &user.DefaultInfo{Name: r.user, Groups: groups, Extra: r.extra}
	options := map[admission.Operation]runtime.Object{
		admission.Create: &metav1.CreateOptions{}, admission.Update: &metav1.UpdateOptions{}, admission.Delete: &metav1.DeleteOptions{},
	}[r.operation]
	asObject := func(one *unstructured.Unstructured) runtime.Object {
		if one == nil {
			return nil
		}
		one.SetGroupVersionKind(r.kind)
		return one
	}
	attributes := admission.NewAttributesRecord(asObject(r.written), asObject(r.stored), r.kind, r.namespace, "web", r.resource,
		r.subresource, r.operation, options, false, who)
	return s.plugin.Validate(context.Background(), attributes, s.objects)
}

// with is an object with these annotations, as pairs of a key's last part and a value.
func with(pairs ...string) *unstructured.Unstructured {
	one := &unstructured.Unstructured{Object: map[string]any{}}
	one.SetName("web")
	one.SetNamespace("shop")
	annotations := map[string]string{}
	for at := 0; at < len(pairs); at += 2 {
		annotations["palisade/"+pairs[at]] = pairs[at+1]
	}
	if len(annotations) > 0 {
		one.SetAnnotations(annotations)
	}
	return one
}

// carries are the extras of a request, written alike.
func carries(pairs ...string) map[string][]string {
	extra := map[string][]string{"authentication.kubernetes.io/pod-name": {"deployer-0"}}
	for at := 0; at < len(pairs); at += 2 {
		extra["palisade/"+pairs[at]] = append(extra["palisade/"+pairs[at]], pairs[at+1])
	}
	return extra
}

// The verdicts beside the codes of a rejection.
const (
	admitted  = ""
	unclaimed = "claim it first"
	forged    = "only a request with a fencing token may change the annotations"
	unseen    = "does not show the token of its object"
	noToken   = "of this request is no fencing token"
	noMark    = "of this object is no fencing token"
)

// verdict is "", a rejection's code, or the message of another refusal.
func verdict(err error) string {
	if err == nil {
		return admitted
	}
	var rejected *fence.Rejection
	if errors.As(kubefence.Rejection(err), &rejected) {
		return rejected.Code
	}
	return err.Error()
}

func matches(want, got string) bool {
	switch want {
	case unclaimed, forged, unseen, noToken, noMark:
		return strings.Contains(got, "denied request: palisade: ") && strings.Contains(got, want)
	default:
		return got == want
	}
}

const (
	created = admission.Create
	updated = admission.Update
	deleted = admission.Delete
)

var scale = schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}

// A pair of objects in a request, and its verdict.
type pair struct {
	request
	want string
}

// The arguments for which the pairs are made.
var arguments = []string{
	"deployments.apps", "pods", "widgets.shop.example", "-n", "shop", "--exempt", "system:serviceaccount:argocd:argocd",
	"--exempt", "group:operators",
}

func pairs() map[string]pair {
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	widgets := schema.GroupVersionResource{Group: "shop.example", Version: "v2beta1", Resource: "widgets"}
	const controller = "system:serviceaccount:kube-system:deployment-controller"
	controllers := []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}
	full := []string{"token", "6", "authority", "a", "lock", "l"}
	return map[string]pair{
		"the claim of a new object":          {request{operation: updated, stored: with(), written: with("token", "5"), extra: carries("token", "5")}, admitted},
		"the claim of a newer holder":        {request{operation: updated, stored: with("token", "5"), written: with("token", "6"), extra: carries("token", "6")}, admitted},
		"a write under the same token":       {request{operation: updated, stored: with("token", "6"), written: with("token", "6"), extra: carries("token", "6")}, admitted},
		"a late write":                       {request{operation: updated, stored: with("token", "6"), written: with("token", "5"), extra: carries("token", "5")}, "stale"},
		"a late write that leaves the mark":  {request{operation: updated, stored: with("token", "6"), written: with("token", "6"), extra: carries("token", "5")}, "stale"},
		"a late write that removes the mark": {request{operation: updated, stored: with("token", "6"), written: with(), extra: carries("token", "5")}, "stale"},
		"numbers, not text":                  {request{operation: updated, stored: with("token", "9"), written: with("token", "10"), extra: carries("token", "10")}, admitted},
		"numbers, not text, late":            {request{operation: updated, stored: with("token", "10"), written: with("token", "9"), extra: carries("token", "9")}, "stale"},
		"a write before the claim":           {request{operation: updated, stored: with("token", "5"), written: with("token", "5"), extra: carries("token", "6")}, unclaimed},
		"a mark above the own token":         {request{operation: updated, stored: with("token", "5"), written: with("token", "7"), extra: carries("token", "6")}, unclaimed},
		"a mark that is removed":             {request{operation: updated, stored: with("token", "6"), written: with(), extra: carries("token", "6")}, unclaimed},
		"a mark that is no number":           {request{operation: updated, stored: with("token", "6"), written: with("token", "x"), extra: carries("token", "6")}, unclaimed},
		"a write without a token":            {request{operation: updated, stored: with("token", "6"), written: with("token", "6")}, "tokenless"},
		"a forged mark":                      {request{operation: updated, stored: with("token", "6"), written: with("token", "7")}, "tokenless"},
		"a forged mark of a new object":      {request{operation: updated, stored: with(), written: with("token", "7")}, forged},
		"a forged authority of a new object": {request{operation: updated, stored: with(), written: with("authority", "a")}, forged},
		"no fence yet, no token":             {request{operation: updated, stored: with(), written: with()}, admitted},
		"an empty token":                     {request{operation: updated, stored: with("token", "6"), written: with("token", "6"), extra: carries("token", "")}, "tokenless"},
		"a token that is no number":          {request{operation: updated, stored: with("token", "6"), written: with("token", "6"), extra: carries("token", "six")}, noToken},
		"a token below 1":                    {request{operation: updated, stored: with(), written: with(), extra: carries("token", "0")}, noToken},
		"a negative token":                   {request{operation: updated, stored: with(), written: with("token", "-7"), extra: carries("token", "-7")}, noToken},
		"a token with a sign":                {request{operation: updated, stored: with(), written: with("token", "+7"), extra: carries("token", "+7")}, noToken},
		"a token with a zero before it":      {request{operation: updated, stored: with(), written: with("token", "07"), extra: carries("token", "07")}, noToken},
		"a token with a line break":          {request{operation: updated, stored: with("token", "6"), written: with("token", "6"), extra: carries("token", "7\n")}, noToken},
		"a token in other digits":            {request{operation: updated, stored: with("token", "6"), written: with("token", "6"), extra: carries("token", "٧")}, noToken},
		"two tokens":                         {request{operation: updated, stored: with("token", "6"), written: with("token", "7"), extra: carries("token", "7", "token", "5")}, noToken},
		"the largest token":                  {request{operation: updated, stored: with("token", "9007199254740990"), written: with("token", "9007199254740991"), extra: carries("token", "9007199254740991")}, admitted},
		"a token above the largest":          {request{operation: updated, stored: with("token", "9007199254740990"), written: with("token", "9007199254740992"), extra: carries("token", "9007199254740992")}, noToken},
		"a token above 64 bits":              {request{operation: updated, stored: with("token", "6"), written: with("token", "6"), extra: carries("token", "99999999999999999999")}, noToken},
		"a very long token":                  {request{operation: updated, stored: with("token", "6"), written: with("token", "6"), extra: carries("token", strings.Repeat("9", 100_000))}, noToken},
		"a stored mark that is no number":    {request{operation: updated, stored: with("token", "six"), written: with("token", "6"), extra: carries("token", "6")}, noMark},
		"a stored mark above 64 bits":        {request{operation: updated, stored: with("token", "99999999999999999999"), written: with("token", "6"), extra: carries("token", "6")}, noMark},
		"an empty stored mark":               {request{operation: updated, stored: with("token", ""), written: with("token", "6"), extra: carries("token", "6")}, noMark},
		"a stored mark that is repaired":     {request{operation: updated, stored: with("token", "six"), written: with("token", "6"), user: "alice", groups: []string{"operators"}}, admitted},
		"the longest leap":                   {request{operation: updated, stored: with("token", "1"), written: with("token", "70368744177665"), extra: carries("token", "70368744177665")}, admitted},
		"a leap too long":                    {request{operation: updated, stored: with("token", "1"), written: with("token", "70368744177666"), extra: carries("token", "70368744177666")}, "jump"},
		"a full pass":                        {request{operation: updated, stored: with(full...), written: with(full...), extra: carries(full...)}, admitted},
		"a full pass binds":                  {request{operation: updated, stored: with("token", "6"), written: with(full...), extra: carries(full...)}, admitted},
		"another authority, a higher token":  {request{operation: updated, stored: with(full...), written: with("token", "9", "authority", "b", "lock", "l"), extra: carries("token", "9", "authority", "b", "lock", "l")}, "wrong_authority"},
		"no authority, a higher token":       {request{operation: updated, stored: with(full...), written: with("token", "9", "lock", "l"), extra: carries("token", "9", "lock", "l")}, "wrong_authority"},
		"another lock, a higher token":       {request{operation: updated, stored: with(full...), written: with("token", "9", "authority", "a", "lock", "k"), extra: carries("token", "9", "authority", "a", "lock", "k")}, "wrong_lock"},
		"a full pass that is half stamped":   {request{operation: updated, stored: with(full...), written: with("token", "6", "authority", "a"), extra: carries(full...)}, unclaimed},

		"a late deletion":                  {request{operation: deleted, stored: with("token", "6"), extra: carries("token", "5")}, "stale"},
		"a deletion without a token":       {request{operation: deleted, stored: with("token", "6")}, "tokenless"},
		"a deletion":                       {request{operation: deleted, stored: with("token", "6"), extra: carries("token", "6")}, admitted},
		"a deletion of what is not fenced": {request{operation: deleted, stored: with()}, admitted},
		"a deletion by another authority":  {request{operation: deleted, stored: with(full...), extra: carries("token", "9", "authority", "b", "lock", "l")}, "wrong_authority"},
		"a creation":                       {request{operation: created, written: with("token", "6"), extra: carries("token", "6")}, admitted},
		"a creation without a token":       {request{operation: created, written: with()}, admitted},
		"a creation with a forged mark":    {request{operation: created, written: with("token", "9007199254740991")}, forged},
		"a creation that is not stamped":   {request{operation: created, written: with(), extra: carries("token", "6")}, unclaimed},
		"a creation with a leap too long":  {request{operation: created, written: with("token", "9007199254740991"), extra: carries("token", "9007199254740991")}, "jump"},

		"a late status":                          {request{operation: updated, subresource: "status", stored: with("token", "6"), written: with("token", "6"), extra: carries("token", "5")}, "stale"},
		"a status":                               {request{operation: updated, subresource: "status", stored: with("token", "6"), written: with("token", "6"), extra: carries("token", "6")}, admitted},
		"a status before the claim":              {request{operation: updated, subresource: "status", stored: with("token", "5"), written: with("token", "5"), extra: carries("token", "6")}, unclaimed},
		"a status without a token":               {request{operation: updated, subresource: "status", stored: with("token", "6"), written: with("token", "6")}, "tokenless"},
		"a status of the controller":             {request{operation: updated, subresource: "status", stored: with("token", "6"), written: with("token", "6"), user: controller, groups: controllers}, admitted},
		"a scale":                                {request{operation: updated, kind: scale, subresource: "scale", stored: with(), written: with(), extra: carries("token", "6")}, unseen},
		"a scale without a token":                {request{operation: updated, kind: scale, subresource: "scale", stored: with(), written: with()}, unseen},
		"a scale of the autoscaler":              {request{operation: updated, kind: scale, subresource: "scale", stored: with(), written: with(), user: "system:serviceaccount:kube-system:horizontal-pod-autoscaler", groups: controllers}, admitted},
		"a scale with a token of the autoscaler": {request{operation: updated, kind: scale, subresource: "scale", stored: with(), written: with(), user: controller, groups: controllers, extra: carries("token", "6")}, unseen},
		"an eviction":                            {request{operation: created, resource: pods, kind: schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}, subresource: "eviction", written: with(), extra: carries("token", "6")}, unseen},
		"a binding":                              {request{operation: created, resource: pods, kind: schema.GroupVersionKind{Version: "v1", Kind: "Binding"}, subresource: "binding", written: with()}, unseen},
		"a binding of the scheduler":             {request{operation: created, resource: pods, kind: schema.GroupVersionKind{Version: "v1", Kind: "Binding"}, subresource: "binding", written: with(), user: "system:kube-scheduler"}, admitted},
		"a late resize of a pod":                 {request{operation: updated, resource: pods, kind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, subresource: "resize", stored: with("token", "6"), written: with("token", "6"), extra: carries("token", "5")}, "stale"},
		"a late write of a kind of one's own":    {request{operation: updated, resource: widgets, kind: schema.GroupVersionKind{Group: "shop.example", Version: "v2beta1", Kind: "Widget"}, stored: with("token", "6"), written: with("token", "5"), extra: carries("token", "5")}, "stale"},

		"the controller's write":                  {request{operation: updated, stored: with("token", "6"), written: with("token", "6"), user: controller, groups: controllers}, admitted},
		"the controller raises a mark":            {request{operation: updated, stored: with("token", "6"), written: with("token", "7"), user: controller, groups: controllers}, admitted},
		"the controller lowers a mark":            {request{operation: updated, stored: with("token", "6"), written: with("token", "5"), user: controller, groups: controllers}, forged},
		"the controller removes a mark":           {request{operation: updated, stored: with("token", "6"), written: with(), user: controller, groups: controllers}, forged},
		"the controller removes an authority":     {request{operation: updated, stored: with(full...), written: with("token", "6", "lock", "l"), user: controller, groups: controllers}, forged},
		"the controller writes no number":         {request{operation: updated, stored: with(), written: with("token", "x"), user: controller, groups: controllers}, forged},
		"the collector's deletion":                {request{operation: deleted, stored: with("token", "6"), user: "system:serviceaccount:kube-system:generic-garbage-collector", groups: controllers}, admitted},
		"a late holder among the control plane":   {request{operation: updated, stored: with("token", "6"), written: with("token", "6"), user: controller, groups: controllers, extra: carries("token", "5")}, "stale"},
		"an exempt user":                          {request{operation: updated, stored: with("token", "6"), written: with("token", "6"), user: "system:serviceaccount:argocd:argocd"}, admitted},
		"an exempt group":                         {request{operation: updated, stored: with("token", "6"), written: with("token", "6"), user: "alice", groups: []string{"operators"}}, admitted},
		"a user with the name of an exempt group": {request{operation: updated, stored: with("token", "6"), written: with("token", "6"), user: "operators"}, "tokenless"},
		"a group with the name of an exempt user": {request{operation: updated, stored: with("token", "6"), written: with("token", "6"), user: "alice", groups: []string{"system:apiserver"}}, "tokenless"},

		"another namespace":                    {request{operation: updated, namespace: "other", stored: with("token", "6"), written: with(), extra: carries("token", "5")}, admitted},
		"another kind":                         {request{operation: updated, resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}, stored: with("token", "6"), written: with(), extra: carries("token", "5")}, admitted},
		"a kind of that name in another group": {request{operation: updated, resource: schema.GroupVersionResource{Group: "other.example", Version: "v1", Resource: "widgets"}, stored: with("token", "6"), written: with(), extra: carries("token", "5")}, admitted},
	}
}

// wrong are the pairs that have another verdict, with it.
func (s server) wrong() map[string]string {
	wrong := map[string]string{}
	for name, one := range pairs() {
		if got := verdict(s.judges(one.request)); !matches(one.want, got) {
			wrong[name] = fmt.Sprintf("%q, not %q", got, one.want)
		}
	}
	return wrong
}

func TestEachPairOfObjectsHasItsVerdict(t *testing.T) {
	for name, why := range serve(t, arguments...).wrong() {
		t.Errorf("%s: %s", name, why)
	}
}

// TestAPolicyWithAMistakeIsFound takes away each validation in turn, and the subresources.
func TestAPolicyWithAMistakeIsFound(t *testing.T) {
	documents := printed(t, arguments...)
	whole := strictly[admissionregistration.ValidatingAdmissionPolicy](t, documents[0])
	for at, taken := range whole.Spec.Validations {
		without := admits(t, documents, func(policy *admissionregistration.ValidatingAdmissionPolicy) {
			policy.Spec.Validations = append(policy.Spec.Validations[:at:at], policy.Spec.Validations[at+1:]...)
		})
		if len(without.wrong()) == 0 {
			t.Errorf("no pair needs the validation %s", taken.Expression)
		}
	}
	doors := admits(t, documents, func(policy *admissionregistration.ValidatingAdmissionPolicy) {
		for at := range policy.Spec.MatchConstraints.ResourceRules {
			rule := &policy.Spec.MatchConstraints.ResourceRules[at]
			rule.Resources = rule.Resources[:1]
		}
	}).wrong()
	for _, name := range []string{"a late status", "a scale", "a scale without a token", "an eviction", "a late resize of a pod"} {
		if doors[name] == "" {
			t.Errorf("without the subresources, %s has the same verdict", name)
		}
	}
}

func TestARejectionHasTheNumbersAndNames(t *testing.T) {
	fenced := serve(t, "deployments.apps")
	full := []string{"token", "6", "authority", "a 1", "lock", "l: 2"}
	for _, one := range []struct {
		extra []string
		want  string
	}{
		{[]string{"token", "5", "authority", "a 1", "lock", "l: 2"}, "palisade: token 5 is stale: 5 < 6; a newer holder has claimed this resource: give up, and write nothing more"},
		{[]string{"token", "6", "authority", "b", "lock", "l: 2"}, "palisade: the resource belongs to another authority: tokens of two authorities are never compared (authority: a 1)"},
		{[]string{"token", "6", "authority", "a 1"}, "palisade: the resource belongs to another lock (lock: l: 2)"},
		{[]string{"token", "70368744177671", "authority", "a 1", "lock", "l: 2"}, "palisade: the token is too far above the highest that this resource has seen (highest: 6, bound: 70368744177664)"},
		{nil, "palisade: the resource is fenced, and this write has no fencing token (highest: 6)"},
	} {
		err := fenced.judges(request{operation: updated, stored: with(full...), written: with(full...), extra: carries(one.extra...)})
		rejected := kubefence.Rejection(err)
		if rejected == nil || rejected.Error() != one.want {
			t.Errorf("%v: %v, not %s", err, rejected, one.want)
		}
	}
}

// TestTheVectorsOfAllFences runs those of vectors/fence.json that a request can express: claims and writes without numbers.
func TestTheVectorsOfAllFences(t *testing.T) {
	text, err := os.ReadFile("../../../vectors/fence.json")
	if err != nil {
		t.Fatal(err)
	}
	type pass struct {
		Token           uint64
		Authority, Lock string
		Kind            string
		Sequence        *uint64
	}
	var all []struct {
		Mode      string
		MaxJump   uint64 `json:"max_jump"`
		Record    pass
		Operation pass
		Verdict   string
		Next      *pass
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	shown := func(p pass) (pairs []string) {
		for _, pair := range [][2]string{{"token", fmt.Sprint(p.Token)}, {"authority", p.Authority}, {"lock", p.Lock}} {
			if pair[1] != "" && pair[1] != "0" {
				pairs = append(pairs, pair[0], pair[1])
			}
		}
		return pairs
	}
	bounded := map[uint64]server{
		0: serve(t, "deployments.apps", "--max-jump", "9007199254740991"),
		2: serve(t, "deployments.apps", "--max-jump", "2"),
	}
	ran := 0
	for _, one := range all {
		if one.Mode != "claim" || one.Operation.Kind == "read" || one.Operation.Sequence != nil {
			continue
		}
		ran++
		stored, extra := shown(one.Record), shown(one.Operation)
		written := extra
		if one.Operation.Token == 0 {
			written = stored
		}
		got := verdict(bounded[one.MaxJump].judges(request{operation: updated, stored: with(stored...), written: with(written...), extra: carries(extra...)}))
		if want := strings.TrimPrefix(one.Verdict, "admit"); got != want {
			t.Errorf("%+v: %q, not %q", one, got, want)
		}
		if one.Next != nil && fmt.Sprint(shown(*one.Next)) != fmt.Sprint(written) {
			t.Errorf("%+v: stored is %v", one, written)
		}
	}
	if ran < 300 {
		t.Errorf("only %d vectors", ran)
	}
}

// TestTheOldestKubernetesCompilesTheExpressions: a server of 1.30 takes into a new policy what the libraries of 1.29 have.
func TestTheOldestKubernetesCompilesTheExpressions(t *testing.T) {
	policy := strictly[admissionregistration.ValidatingAdmissionPolicy](t, printed(t, arguments...)[0])
	for _, one := range faults(t, policy, 29) {
		t.Error(one)
	}
	if len(faults(t, policy, 27)) == 0 {
		t.Error("1.27 compiles them too, which has no optional values: the versions are not told apart")
	}
}

// faults are what a library of an older version says about the expressions.
func faults(t *testing.T, policy *admissionregistration.ValidatingAdmissionPolicy, minor uint) (found []string) {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, minor)))
	if err != nil {
		t.Fatal(err)
	}
	look := func(of cel.ExpressionAccessor, result cel.CompilationResult) {
		if result.Error != nil {
			found = append(found, fmt.Sprintf("%s: %v", of.GetExpression(), result.Error))
		}
	}
	given := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	for _, one := range policy.Spec.Variables {
		variable := &validating.Variable{Name: one.Name, Expression: one.Expression}
		look(variable, compiler.CompileAndStoreVariable(variable, given, environment.NewExpressions))
	}
	for _, one := range policy.Spec.Validations {
		for _, expression := range []cel.ExpressionAccessor{
			&validating.ValidationCondition{Expression: one.Expression},
			&validating.MessageExpressionCondition{MessageExpression: one.MessageExpression},
		} {
			look(expression, compiler.CompileCELExpression(expression, given, environment.NewExpressions))
		}
	}
	return found
}

func TestEverythingPrintedIsOfAKindOfKubernetes(t *testing.T) {
	documents := printed(t, "deployments.apps", "configmaps", "-n", "shop", "-n", "other", "--service-account", "ops:bot")
	kinds := map[string]int{}
	for at, document := range documents {
		kind := strictly[struct {
			metav1.TypeMeta `json:",inline"`
			Rest            map[string]any `json:"-"`
		}](t, kindOf(document)).Kind
		kinds[kind]++
		switch kind {
		case "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
			if at > 1 {
				t.Errorf("document %d is a %s", at, kind)
			}
		case "ClusterRole":
			strictly[rbac.ClusterRole](t, document)
		case "ClusterRoleBinding":
			strictly[rbac.ClusterRoleBinding](t, document)
		case "Role":
			strictly[rbac.Role](t, document)
		case "RoleBinding":
			strictly[rbac.RoleBinding](t, document)
		default:
			t.Errorf("a %s:\n%s", kind, document)
		}
	}
	want := map[string]int{
		"ValidatingAdmissionPolicy": 1, "ValidatingAdmissionPolicyBinding": 1, "ClusterRole": 2, "ClusterRoleBinding": 1,
		"Role": 2, "RoleBinding": 4,
	}
	if fmt.Sprint(kinds) != fmt.Sprint(want) {
		t.Errorf("%v, not %v", kinds, want)
	}
}

func kindOf(document string) string {
	for line := range strings.Lines(document) {
		if strings.HasPrefix(line, "kind: ") {
			return line
		}
	}
	return ""
}
