package kubefence_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"palisade.example/palisade"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/kubefence"
	"palisade.example/palisade/palisadetest"
)

// A server answers as an API server does, and keeps the requests.
type server struct {
	*httptest.Server
	mutex    sync.Mutex
	requests []*http.Request
	bodies   []string
	// refusal is the message of the policy, if it refuses.
	refusal string
	user    string
	// object is the answer to everything else.
	object string
}

func serve(t *testing.T, user string) *server {
	t.Helper()
	s := &server{user: user, object: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"web","resourceVersion":"7"}}`}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *server) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	body, _ := io.ReadAll(request.Body)
	s.requests, s.bodies = append(s.requests, request), append(s.bodies, string(body))
	answer.Header().Set("Content-Type", "application/json")
	var said any = json.RawMessage(s.object)
	switch {
	case strings.HasSuffix(request.URL.Path, "/selfsubjectreviews"):
		said = map[string]any{
			"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
			"status": map[string]any{"userInfo": map[string]any{"username": s.user, "groups": []string{"g", "system:authenticated"}}},
		}
	case s.refusal != "":
		answer.WriteHeader(http.StatusForbidden)
		said = map[string]any{
			"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403,
			"message": `configmaps "web" is forbidden: ValidatingAdmissionPolicy 'f' with binding 'f' denied request: ` + s.refusal,
		}
	}
	_ = json.NewEncoder(answer).Encode(said)
}

// last is the last request, with its body.
func (s *server) last() (*http.Request, string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.requests[len(s.requests)-1], s.bodies[len(s.bodies)-1]
}

const account = "system:serviceaccount:shop:deployer"

func client(t *testing.T, config *rest.Config, holder fence.Holder) *kubernetes.Clientset {
	t.Helper()
	fenced, err := kubefence.Config(t.Context(), config, holder)
	if err != nil {
		t.Fatal(err)
	}
	made, err := kubernetes.NewForConfig(fenced)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestEachRequestCarriesThePassAsTheCallerItself(t *testing.T) {
	s := serve(t, account)
	holder := fence.NewPass(17, "authority-1", "shop/deploy now")
	config := &rest.Config{Host: s.URL}
	maps := client(t, config, holder).CoreV1().ConfigMaps("shop")
	for what, send := range map[string]func() error{
		"get":    func() error { _, err := maps.Get(t.Context(), "web", metav1.GetOptions{}); return err },
		"delete": func() error { return maps.Delete(t.Context(), "web", metav1.DeleteOptions{}) },
		"claim":  func() error { _, err := kubefence.Claim(t.Context(), maps, "web", holder); return err },
	} {
		if err := send(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		request, _ := s.last()
		want := map[string]string{
			"Impersonate-User": account, "Impersonate-Group": "",
			"Impersonate-Extra-Palisade%2ftoken":     "17",
			"Impersonate-Extra-Palisade%2fauthority": "authority-1",
			"Impersonate-Extra-Palisade%2flock":      "shop/deploy now",
		}
		for name, value := range want {
			if got := request.Header.Get(name); got != value {
				t.Errorf("%s: %s is %q, not %q: %v", what, name, got, value, request.Header)
			}
		}
	}
	if config.Impersonate.UserName != "" || config.WrapTransport != nil {
		t.Error("the caller's config was changed")
	}
}

func TestAUserKeepsItsGroupsAndAnImpersonationStays(t *testing.T) {
	s := serve(t, "alice")
	fenced, err := kubefence.Config(t.Context(), &rest.Config{Host: s.URL}, fence.Token(1))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"g", "system:authenticated"}; !reflect.DeepEqual(fenced.Impersonate.Groups, want) {
		t.Errorf("%v, not %v", fenced.Impersonate.Groups, want)
	}
	asked := len(s.requests)
	before := map[string][]string{"shop.example/ticket": {"4"}}
	config := &rest.Config{Host: s.URL, Impersonate: rest.ImpersonationConfig{UserName: "bob", Extra: before}}
	fenced, err = kubefence.Config(t.Context(), config, fence.Token(1))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"shop.example/ticket": {"4"}, kubefence.TokenKey: {"1"}}
	if fenced.Impersonate.UserName != "bob" || !reflect.DeepEqual(fenced.Impersonate.Extra, want) || len(before) != 1 {
		t.Errorf("%+v, before: %v", fenced.Impersonate, before)
	}
	if len(s.requests) != asked {
		t.Error("the API server was asked who is impersonated")
	}
}

func TestAClaimIsAPatchOfTheAnnotations(t *testing.T) {
	s := serve(t, account)
	holder := fence.NewPass(17, "a", "l")
	found, err := kubefence.Claim(t.Context(), client(t, &rest.Config{Host: s.URL}, holder).CoreV1().ConfigMaps("shop"), "web", holder)
	if err != nil || found.ResourceVersion != "7" {
		t.Fatalf("%v: %+v", err, found)
	}
	request, body := s.last()
	want := `{"metadata":{"annotations":{"palisade/authority":"a","palisade/lock":"l","palisade/token":"17"}}}`
	if request.Method != "PATCH" || request.Header.Get("Content-Type") != "application/merge-patch+json" || body != want {
		t.Errorf("%s %s: %s", request.Method, request.Header.Get("Content-Type"), body)
	}
	made := &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"other": "o"}}}
	if err := kubefence.Stamp(made, fence.Token(17)); err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"other": "o", kubefence.TokenKey: "17"}; !reflect.DeepEqual(made.Annotations, want) {
		t.Errorf("%v, not %v", made.Annotations, want)
	}
}

func TestARefusalIsClientGosOwnErrorAndHasItsReason(t *testing.T) {
	s := serve(t, account)
	maps := client(t, &rest.Config{Host: s.URL}, fence.Token(5)).CoreV1().ConfigMaps("shop")
	for refusal, want := range map[string]error{
		"palisade stale: token 5 is below 6: a newer holder":                  &fence.Rejection{Code: "stale", Token: 5, Highest: 6},
		"palisade tokenless: this object is fenced at token 6, and this":      &fence.Rejection{Code: "tokenless", Highest: 6},
		"palisade jump: token 500 is more than 100 above 6":                   &fence.Rejection{Code: "jump", Token: 500, Bound: 100, Highest: 6},
		"palisade wrong_authority: this object belongs to the authority a 1":  &fence.Rejection{Code: "wrong_authority", Authority: "a 1"},
		"palisade wrong_lock: this object belongs to the lock shop/deploy: 2": &fence.Rejection{Code: "wrong_lock", Lock: "shop/deploy: 2"},
		"palisade: claim it first":                                            nil,
		"another policy: palisade stale: token 5 is below 6":                  nil,
	} {
		s.refusal = refusal
		err := maps.Delete(t.Context(), "web", metav1.DeleteOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", refusal, err)
		}
		if got := kubefence.Rejection(err); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %#v, not %#v", refusal, got, want)
		}
	}
	if !errors.Is(&fence.Rejection{Code: "stale"}, fence.ErrStale) || kubefence.Rejection(nil) != nil {
		t.Error("no refusal is one")
	}
}

func TestAHolderThatLostItsLeaseSendsNothing(t *testing.T) {
	s, authority := serve(t, account), palisadetest.NewServer()
	locks, err := authority.Client()
	if err != nil {
		t.Fatal(err)
	}
	held, err := locks.Lock(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	config := &rest.Config{Host: s.URL}
	maps := client(t, config, held).CoreV1().ConfigMaps("shop")
	if _, err := kubefence.Claim(t.Context(), maps, "web", held); err != nil {
		t.Fatal(err)
	}
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	sent := len(s.requests)
	if err := maps.Delete(t.Context(), "web", metav1.DeleteOptions{}); !errors.Is(err, palisade.ErrLost) {
		t.Errorf("%v", err)
	}
	if _, err := kubefence.Claim(t.Context(), maps, "web", held); !errors.Is(err, palisade.ErrLost) {
		t.Errorf("%v", err)
	}
	if _, err := kubefence.Config(t.Context(), config, held); !errors.Is(err, palisade.ErrLost) {
		t.Errorf("%v", err)
	}
	if len(s.requests) != sent {
		t.Errorf("%d requests were sent", len(s.requests)-sent)
	}
}

func TestWhatNoRequestCanCarryIsRefused(t *testing.T) {
	for holder, words := range map[fence.Holder]string{
		fence.Token(0):                 "0 is not a fencing token",
		fence.NewPass(1, "a", " l"):    "begins or ends with a space",
		fence.NewPass(1<<53, "a", "l"): "is not a fencing token",
		(*palisade.Lease)(nil):         "was the lock acquired?",
	} {
		if _, err := kubefence.ClaimPatch(holder); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, not %s", err, words)
		}
	}
}
