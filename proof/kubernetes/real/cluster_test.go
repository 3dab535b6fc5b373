// Package real runs the fence in a real kube-apiserver with a real etcd: proof/kubernetes/battery builds both and starts it.
package real

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/kubefence"
	"sigs.k8s.io/yaml"
)

// A cluster is etcd and kube-apiserver, without controllers and nodes.
type cluster struct {
	admin *rest.Config
	// holder is the service account shop/deployer.
	holder *rest.Config
	client *kubernetes.Clientset
	any    *dynamic.DynamicClient
}

// port is a free one.
func port(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	must(t, err)
	return port
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run starts a program until the test ends, and shows its last lines if the test fails.
func run(t *testing.T, log string, program string, arguments ...string) {
	t.Helper()
	file, err := os.Create(log)
	must(t, err)
	command := exec.Command(filepath.Join(os.Getenv("PALISADE_KUBERNETES"), program), arguments...)
	command.Stdout, command.Stderr = file, file
	// It does not outlive a test that is killed.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("%s: %s", program, text[max(0, len(text)-4000):])
		}
	})
}

// until asks again until the answer is yes; the limit is for a program that hangs.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !is(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not after 5 minutes", what)
		}
		time.Sleep(100 * time.Millisecond) // real time: between two looks
	}
}

func start(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv("PALISADE_KUBERNETES") == "" {
		t.Fatal("PALISADE_KUBERNETES does not name the folder of etcd and kube-apiserver: run proof/kubernetes/battery")
	}
	folder := t.TempDir()
	in := func(name string) string { return filepath.Join(folder, name) }
	etcd, peers, secure := "http://127.0.0.1:"+port(t), "http://127.0.0.1:"+port(t), port(t)
	run(t, in("etcd.log"), "etcd", "--data-dir", in("etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	must(t, os.WriteFile(in("sa.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600))
	must(t, os.WriteFile(in("tokens"), []byte("admin,admin,admin,system:masters\n"), 0o600))
	run(t, in("apiserver.log"), "kube-apiserver", "--etcd-servers", etcd, "--cert-dir", in("certificates"),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port", secure,
		"--service-account-issuer=https://palisade.example", "--service-account-key-file", in("sa.key"),
		"--service-account-signing-key-file", in("sa.key"), "--token-auth-file", in("tokens"), "--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none", "--disable-admission-plugins=ServiceAccount")
	admin := &rest.Config{
		Host: "https://127.0.0.1:" + secure, BearerToken: "admin", QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
	client, err := kubernetes.NewForConfig(admin)
	must(t, err)
	dynamics, err := dynamic.NewForConfig(admin)
	must(t, err)
	until(t, "kube-apiserver is ready", func() bool {
		answer, err := client.RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
		return err == nil && string(answer) == "ok"
	})
	made := &cluster{admin: admin, client: client, any: dynamics}
	for _, name := range []string{"shop", "control"} {
		namespace := &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err = client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
		must(t, err)
	}
	account := &core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "deployer"}}
	_, err = client.CoreV1().ServiceAccounts("shop").Create(t.Context(), account, metav1.CreateOptions{})
	must(t, err)
	token, err := client.CoreV1().ServiceAccounts("shop").
		CreateToken(t.Context(), "deployer", &authentication.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	made.holder = rest.CopyConfig(admin)
	made.holder.BearerToken = token.Status.Token
	return made
}

// The kinds that `palisade fence k8s` prints.
var printed = map[string]schema.GroupVersionResource{
	"ValidatingAdmissionPolicy":        {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
	"ValidatingAdmissionPolicyBinding": {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
	"ClusterRole":                      {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	"ClusterRoleBinding":               {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
	"Role":                             {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	"RoleBinding":                      {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
}

// install applies what palisade prints: the fence in the namespace shop, and the rights in both, so that the namespace control
// differs by the fence alone. It returns once the fence acts.
func (c *cluster) install(t *testing.T, kinds ...string) {
	t.Helper()
	for _, scope := range []struct{ namespace, name string }{{"shop", "palisade-fence"}, {"control", "palisade-control"}} {
		arguments := []string{"fence", "k8s", "--service-account", "shop:deployer", "-n", scope.namespace, "--name", scope.name}
		output, err := exec.Command(os.Getenv("PALISADE_BINARY"), append(arguments, kinds...)...).Output()
		must(t, err)
		for text := range strings.SplitSeq(string(output), "\n---\n") {
			one := &unstructured.Unstructured{}
			must(t, yaml.Unmarshal([]byte(text), &one.Object))
			if scope.namespace == "control" && strings.HasPrefix(one.GetKind(), "Validating") {
				continue
			}
			resource, known := printed[one.GetKind()]
			if !known {
				t.Fatalf("a %s is printed", one.GetKind())
			}
			_, err := c.any.Resource(resource).Namespace(one.GetNamespace()).Create(t.Context(), one, metav1.CreateOptions{
				FieldValidation: "Strict",
			})
			must(t, err)
		}
	}
	marked := &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "forged", Annotations: map[string]string{kubefence.TokenKey: "1"}}}
	until(t, "the policy acts", func() bool {
		_, err := c.client.CoreV1().ConfigMaps("shop").Create(t.Context(), marked, metav1.CreateOptions{DryRun: []string{"All"}})
		if err != nil && !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		return err != nil
	})
	until(t, "the roles act", func() bool {
		config, err := kubefence.Config(t.Context(), c.holder, fence.Token(1))
		must(t, err)
		_, err = kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("control").List(t.Context(), metav1.ListOptions{})
		if err != nil && !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// as is a client of a holder.
func (c *cluster) as(t testing.TB, holder fence.Holder) (*kubernetes.Clientset, *dynamic.DynamicClient) {
	t.Helper()
	config, err := kubefence.Config(context.Background(), c.holder, holder)
	must(t, err)
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	dynamics, err := dynamic.NewForConfig(config)
	must(t, err)
	return client, dynamics
}

// counter makes a ConfigMap with a number.
func (c *cluster) counter(t *testing.T, namespace, name string) {
	t.Helper()
	one := &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"counter": "0"}}
	_, err := c.client.CoreV1().ConfigMaps(namespace).Create(t.Context(), one, metav1.CreateOptions{})
	must(t, err)
}

// count writes the number without regard to the object's version, as a patch does.
func count(ctx context.Context, client kubernetes.Interface, namespace, name string, number int) (*core.ConfigMap, error) {
	patch := fmt.Appendf(nil, `{"data":{"counter":"%d"}}`, number)
	return client.CoreV1().ConfigMaps(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
}

// report adds a row to the table that the battery shows at its end.
func report(t *testing.T, format string, arguments ...any) {
	t.Helper()
	row := fmt.Sprintf(format, arguments...)
	t.Log(row)
	if name := os.Getenv("PALISADE_REPORT"); name != "" {
		file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		must(t, err)
		defer file.Close()
		_, err = io.WriteString(file, row+"\n")
		must(t, err)
	}
}
