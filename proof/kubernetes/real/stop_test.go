package real

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"palisade.example/palisade"
	"palisade.example/palisade/fence"
	"palisade.example/palisade/internal/testserver"
	"palisade.example/palisade/kubefence"
)

const lease = 5 * time.Second

func TestMain(m *testing.M) {
	if namespace := os.Getenv("PALISADE_WORKER"); namespace != "" {
		if err := work(namespace); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// work adds 1 to the counter under the lock, in a process of its own that is stopped between the last look at its lease and the
// write.
func work(namespace string) error {
	ctx := context.Background()
	locks, err := palisade.New()
	if err != nil {
		return err
	}
	held, err := locks.Lock(ctx, "counter", palisade.TTL(lease))
	if err != nil {
		return err
	}
	stops := false
	config := &rest.Config{
		Host: os.Getenv("PALISADE_WORKER_HOST"), BearerToken: os.Getenv("PALISADE_WORKER_TOKEN"),
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return trip(func(request *http.Request) (*http.Response, error) {
			if stops {
				// The test stops this process while it waits here.
				fmt.Println("about to write")
				if _, err := fmt.Scanln(); err != nil && err != io.EOF {
					return nil, err
				}
				stops = false
			}
			return next.RoundTrip(request)
		})
	})
	config, err = kubefence.Config(ctx, config, held)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	found, err := kubefence.Claim(ctx, client.CoreV1().ConfigMaps(namespace), "counter", held)
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(found.Data["counter"])
	if err != nil {
		return err
	}
	stops = true
	_, err = count(ctx, client, namespace, "counter", number+1)
	switch {
	case err == nil:
		fmt.Println("written")
	case errors.Is(kubefence.Rejection(err), fence.ErrStale):
		fmt.Println("stale")
	default:
		return err
	}
	if _, err = count(ctx, client, namespace, "counter", number+1); errors.Is(err, palisade.ErrLost) {
		fmt.Println("lost")
	}
	return nil
}

type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(request *http.Request) (*http.Response, error) { return t(request) }

// TestAHolderThatIsStoppedPastItsLease: its late write is refused; without the policy it replaces an acknowledged one.
func TestAHolderThatIsStoppedPastItsLease(t *testing.T) {
	c := start(t)
	c.install(t, "configmaps")
	server := testserver.Serve(t)
	for _, namespace := range []string{"shop", "control"} {
		c.counter(t, namespace, "counter")
		worker := exec.Command(os.Args[0])
		worker.Env = append(os.Environ(), "PALISADE_WORKER="+namespace, "PALISADE_URL="+server.URL,
			"PALISADE_WORKER_HOST="+c.holder.Host, "PALISADE_WORKER_TOKEN="+c.holder.BearerToken)
		worker.Stderr = os.Stderr
		worker.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		output, err := worker.StdoutPipe()
		must(t, err)
		input, err := worker.StdinPipe()
		must(t, err)
		must(t, worker.Start())
		said := bufio.NewScanner(output)
		if !said.Scan() || said.Text() != "about to write" {
			t.Fatalf("%s: the worker says %q", namespace, said.Text())
		}
		must(t, worker.Process.Signal(syscall.SIGSTOP))
		until(t, "the worker is stopped", func() bool { return state(t, worker.Process.Pid) == "T" })
		began := time.Now()
		last := add(t, c, server.URL, namespace, 2)
		waited := time.Since(began)
		must(t, input.Close())
		must(t, worker.Process.Signal(syscall.SIGCONT))
		var words []string
		for said.Scan() {
			words = append(words, said.Text())
		}
		must(t, worker.Wait())
		now, err := c.client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "counter", get)
		must(t, err)
		outcome := strings.Join(words, ", ")
		report(t, "| SIGSTOP, %s | stopped before its write, next holder after %.1f s | the late write: %s | counter %d acknowledged, **%s** stored |",
			map[string]string{"shop": "fenced", "control": "control: no policy"}[namespace], waited.Seconds(), outcome, last, now.Data["counter"])
		kept := now.Data["counter"] == strconv.Itoa(last)
		switch fenced := namespace == "shop"; {
		case fenced && (outcome != "stale, lost" || !kept):
			t.Errorf("the fence: %q, counter %s, not %d", outcome, now.Data["counter"], last)
		case !fenced && (outcome != "written, lost" || kept):
			t.Errorf("the control loses nothing: %q, counter %s", outcome, now.Data["counter"])
		}
	}
}

// add is the next holder: it counts some times, and returns the last number that was acknowledged.
func add(t *testing.T, c *cluster, url, namespace string, times int) int {
	t.Helper()
	locks, err := palisade.New(palisade.Endpoints(url))
	must(t, err)
	held, err := locks.Lock(t.Context(), "counter", palisade.Wait(time.Minute))
	must(t, err)
	client, _ := c.as(t, held)
	found, err := kubefence.Claim(t.Context(), client.CoreV1().ConfigMaps(namespace), "counter", held)
	must(t, err)
	number, err := strconv.Atoi(found.Data["counter"])
	must(t, err)
	for range times {
		number++
		_, err = count(t.Context(), client, namespace, "counter", number)
		must(t, err)
	}
	must(t, held.Release(t.Context()))
	return number
}

// state is that of a process, as in ps.
func state(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(text), ") ")
	state, _, _ := strings.Cut(rest, " ")
	return state
}
