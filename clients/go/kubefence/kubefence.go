// Package kubefence sends the fencing token of a Palisade lease with every request to a Kubernetes API server. The admission
// policy that `palisade fence k8s` prints refuses the late ones: it compares the token with the one in the object's
// annotations, in the step that stores the object.
//
//	lease, err := locks.Lock(ctx, "shop/deploy")
//	config, err = kubefence.Config(ctx, config, lease)
//	client, err := kubernetes.NewForConfig(config)
//	web, err := kubefence.Claim(ctx, client.AppsV1().Deployments("shop"), "web", lease)
//	*web.Spec.Replicas++
//	_, err = client.AppsV1().Deployments("shop").Update(ctx, web, metav1.UpdateOptions{})
//	if errors.Is(kubefence.Rejection(err), fence.ErrStale) { … } // A newer holder has claimed it: give up.
//
// Claim each object before it is read: what was read earlier, or from an informer's cache, may be older than the claim.
package kubefence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	authentication "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"
	"palisade.example/palisade/fence"
)

// The annotations of an object, and the extras of a request.
const (
	TokenKey     = "palisade/token"
	AuthorityKey = "palisade/authority"
	LockKey      = "palisade/lock"
)

// Config returns a copy of config whose requests carry the holder's token, authority and lock, as extras of an impersonation
// of the caller itself: make one for each lease. A request of a holder that lost its lease is not sent: the error is the
// lease's.
//
// It asks the API server once for the caller's name, unless config impersonates a user already. The caller needs the roles that
// `palisade fence k8s` prints.
func Config(ctx context.Context, config *rest.Config, holder fence.Holder) (*rest.Config, error) {
	carried, err := pass(holder)
	if err != nil {
		return nil, err
	}
	fenced := rest.CopyConfig(config)
	if fenced.Impersonate.UserName == "" {
		user, err := self(ctx, config)
		if err != nil {
			return nil, err
		}
		fenced.Impersonate.UserName = user.Username
		// The API server knows the groups of a service account.
		if !strings.HasPrefix(user.Username, "system:serviceaccount:") {
			fenced.Impersonate.Groups = user.Groups
		}
	}
	extra := map[string][]string{}
	for key, values := range config.Impersonate.Extra {
		extra[key] = values
	}
	for key, value := range carried {
		extra[key] = []string{value}
	}
	fenced.Impersonate.Extra = extra
	fenced.Wrap(func(next http.RoundTripper) http.RoundTripper { return checked{holder, next} })
	return fenced, nil
}

func self(ctx context.Context, config *rest.Config) (authenticationv1.UserInfo, error) {
	client, err := authentication.NewForConfig(config)
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	review, err := client.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, fmt.Errorf("palisade: the API server does not say who the caller is: %w", err)
	}
	return review.Status.UserInfo, nil
}

// checked looks at the lease before each request.
type checked struct {
	holder fence.Holder
	next   http.RoundTripper
}

func (c checked) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := fence.CheckHolder(c.holder); err != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, err
	}
	return c.next.RoundTrip(request)
}

// WrappedRoundTripper lets client-go find the transport below.
func (c checked) WrappedRoundTripper() http.RoundTripper { return c.next }

// pass is what a holder shows, by key.
func pass(holder fence.Holder) (map[string]string, error) {
	if err := fence.CheckHolder(holder); err != nil {
		return nil, err
	}
	shown := map[string]string{TokenKey: strconv.FormatUint(holder.Token(), 10)}
	for key, value := range map[string]string{AuthorityKey: holder.Authority(), LockKey: holder.Name()} {
		// A header loses such spaces on its way.
		if strings.TrimSpace(value) != value {
			return nil, fmt.Errorf("palisade: %q begins or ends with a space, which no request to Kubernetes can carry", value)
		}
		if value != "" {
			shown[key] = value
		}
	}
	return shown, nil
}

// A Patcher is the interface of one kind in client-go, typed or dynamic: client.AppsV1().Deployments("shop").
type Patcher[T any] interface {
	Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}

// Claim raises the mark of an object to the holder's token, and returns the object as it is from then on. No request with an
// older token changes it any more. Claiming again is harmless. The client's config is one that Config made.
func Claim[T any](ctx context.Context, objects Patcher[T], name string, holder fence.Holder) (T, error) {
	patch, err := ClaimPatch(holder)
	if err != nil {
		var none T
		return none, err
	}
	return objects.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
}

// ClaimPatch is the patch of Claim, a JSON merge patch. For controller-runtime:
//
//	err := client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch))
func ClaimPatch(holder fence.Holder) ([]byte, error) {
	annotations, err := pass(holder)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
}

// Stamp puts the holder's pass into the annotations of an object that is to be created, or written as a whole. A creation is
// not fenced, and the object is from then on.
func Stamp(object metav1.Object, holder fence.Holder) error {
	shown, err := pass(holder)
	if err != nil {
		return err
	}
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	for key, value := range shown {
		annotations[key] = value
	}
	object.SetAnnotations(annotations)
	return nil
}

// The policy's messages begin with the code, and contain numbers and names in this order.
var refused = regexp.MustCompile(`denied request: palisade (stale|tokenless|jump|wrong_authority|wrong_lock): (.*)`)

var number = regexp.MustCompile(`\b[0-9]+\b`)

// Rejection returns why the fence refused a request, or nil if err is no refusal of the fence. errors.Is(Rejection(err),
// fence.ErrStale) tells that a newer holder has claimed the object. A refusal of client-go, Forbidden, stays one.
func Rejection(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Reason != metav1.StatusReasonForbidden {
		return nil
	}
	found := refused.FindStringSubmatch(status.Status().Message)
	if found == nil {
		return nil
	}
	code, said := found[1], found[2]
	var numbers [3]uint64
	for at, digits := range number.FindAllString(said, len(numbers)) {
		numbers[at], _ = strconv.ParseUint(digits, 10, 64)
	}
	_, name, _ := strings.Cut(said, "belongs to the authority ")
	_, lock, _ := strings.Cut(said, "belongs to the lock ")
	switch code {
	case "stale":
		return &fence.Rejection{Code: code, Token: numbers[0], Highest: numbers[1]}
	case "tokenless":
		return &fence.Rejection{Code: code, Highest: numbers[0]}
	case "jump":
		return &fence.Rejection{Code: code, Token: numbers[0], Bound: numbers[1], Highest: numbers[2]}
	case "wrong_authority":
		return &fence.Rejection{Code: code, Authority: name}
	default:
		return &fence.Rejection{Code: code, Lock: lock}
	}
}
