// Driver carries out the commands of the holder suite (clients/holder-suite/README.md) with the Go client.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"palisade.example/palisade"
	"palisade.example/palisade/internal/boot"
)

type command struct {
	ID       int      `json:"id"`
	Do       string   `json:"do"`
	URLs     []string `json:"urls"`
	Patience int64    `json:"patience_ms"`
	As       string   `json:"as"`
	Count    int      `json:"count"`
	Lock     string   `json:"lock"`
	Also     []string `json:"also"`
	TTL      int64    `json:"ttl_ms"`
	Wait     int64    `json:"wait_ms"`
	ClientID string   `json:"client_id"`
	Mode     string   `json:"mode"`
	Permits  *struct {
		Count int `json:"count"`
		Of    int `json:"of"`
	} `json:"permits"`
	Notices bool `json:"notices"`
	TLS     *struct {
		CA   string `json:"ca"`
		Cert string `json:"cert"`
		Key  string `json:"key"`
	} `json:"tls"`
	Grant      string `json:"grant"`
	LockDelay  int64  `json:"lock_delay_ms"`
	AtLeastFor int64  `json:"at_least_for_ms"`
	Target     int    `json:"target"`
	Prefix     string `json:"prefix"`
	Token      uint64 `json:"token"`
	Reason     string `json:"reason"`
	Text       string `json:"text"`
}

type answer map[string]any

type driver struct {
	writing sync.Mutex
	out     *json.Encoder

	mu      sync.Mutex
	client  *palisade.Client
	leases  map[string]*palisade.Lease
	cancels map[int]context.CancelFunc
}

func main() {
	d := &driver{
		out:     json.NewEncoder(os.Stdout),
		leases:  map[string]*palisade.Lease{},
		cancels: map[int]context.CancelFunc{},
	}
	can := []string{"addresses", "cancel", "delays", "handover", "list", "notices", "permits", "sets", "shared", "tls", "update", "watch"}
	d.say(answer{"event": "hello", "client": "go", "wire": "http", "can": can})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			fmt.Fprintln(os.Stderr, "driver: a line that is no command:", err)
			os.Exit(2)
		}
		ctx, cancel := context.WithCancel(context.Background())
		d.mu.Lock()
		d.cancels[c.ID] = cancel
		d.mu.Unlock()
		go d.answer(ctx, c)
	}
}

func (d *driver) say(a answer) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if err := d.out.Encode(a); err != nil {
		os.Exit(1)
	}
}

func (d *driver) answer(ctx context.Context, c command) {
	a, err := d.carryOut(ctx, c)
	if a == nil {
		a = answer{}
	}
	a["id"], a["ok"] = c.ID, err == nil
	if err != nil {
		a["code"], a["message"] = code(err), err.Error()
	}
	d.say(a)
}

func code(err error) string {
	var told *palisade.Error
	switch {
	case errors.As(err, &told):
		return told.Code
	case errors.Is(err, context.Canceled):
		return "cancelled"
	}
	return "unexpected"
}

func (d *driver) carryOut(ctx context.Context, c command) (answer, error) {
	switch c.Do {
	case "clock":
		return answer{"now_ms": nowMS()}, nil
	case "connect":
		return nil, d.connect(c)
	case "acquire":
		return d.acquire(ctx, c)
	case "downgrade":
		lease, err := d.lease(c).Downgrade(ctx)
		return d.taken(c, lease, err)
	case "upgrade":
		lease, err := d.lease(c).Upgrade(ctx, milliseconds(c.Wait))
		return d.taken(c, lease, err)
	case "export":
		text, err := d.lease(c).Export()
		return answer{"text": text}, err
	case "adopt":
		lease, err := d.client.Adopt(ctx, c.Text)
		return d.taken(c, lease, err)
	case "check":
		before := nowMS()
		return answer{"before_ms": before}, d.lease(c).Check()
	case "checks":
		return timed(c.Count, d.lease(c).Check)
	case "pairs":
		return timed(c.Count, func() error {
			lease, err := d.client.Lock(ctx, c.Lock)
			if err != nil {
				return err
			}
			return lease.Release(ctx)
		})
	case "remaining":
		return remaining(d.lease(c)), nil
	case "wanted":
		return answer{"waiters": d.lease(c).Wanted()}, nil
	case "release":
		return d.release(ctx, c)
	case "cancel":
		d.mu.Lock()
		defer d.mu.Unlock()
		d.cancels[c.Target]()
		return nil, nil
	case "show":
		return d.show(ctx, c)
	case "list":
		return d.list(ctx, c)
	case "break":
		return nil, d.client.Break(ctx, c.Lock, c.Token, c.Reason)
	case "watch":
		go d.watch(ctx, c)
		return nil, nil
	}
	return nil, fmt.Errorf("there is no command %q", c.Do)
}

func (d *driver) connect(c command) error {
	options := []palisade.Option{palisade.Endpoints(c.URLs...), palisade.Patience(milliseconds(c.Patience))}
	if c.TLS != nil {
		options = append(options, palisade.TLSFiles(c.TLS.CA, c.TLS.Cert, c.TLS.Key))
	}
	if !c.Notices {
		options = append(options, palisade.WithoutNotices())
	}
	client, err := palisade.New(options...)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.client = client
	return err
}

func (d *driver) acquire(ctx context.Context, c command) (answer, error) {
	options := []palisade.LockOption{palisade.TTL(milliseconds(c.TTL)), palisade.Wait(milliseconds(c.Wait))}
	if c.ClientID != "" {
		options = append(options, palisade.ClientID(c.ClientID))
	}
	switch c.Mode {
	case "shared":
		options = append(options, palisade.Shared())
	case "update":
		options = append(options, palisade.Update())
	}
	options = append(options, palisade.LockDelay(milliseconds(c.LockDelay)), palisade.AtLeastFor(milliseconds(c.AtLeastFor)))
	if c.Permits != nil {
		options = append(options, palisade.Permits(c.Permits.Count, c.Permits.Of))
	}
	if c.Also != nil {
		lease, err := d.client.Locks(ctx, append([]string{c.Lock}, c.Also...), options...)
		return d.taken(c, lease, err)
	}
	lease, err := d.client.Lock(ctx, c.Lock, options...)
	return d.taken(c, lease, err)
}

func (d *driver) taken(c command, lease *palisade.Lease, err error) (answer, error) {
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.leases[c.As] = lease
	d.mu.Unlock()
	go d.announce(c.As, lease)
	lease.Listen(func(notice palisade.Notice) { d.notice(c.As, notice) })
	a := remaining(lease)
	a["token"], a["grant_id"], a["authority"] = lease.Token(), lease.GrantID(), lease.Authority()
	a["slots"], a["slot_keys"] = lease.Slots(), lease.SlotKeys()
	return a, nil
}

func (d *driver) announce(name string, lease *palisade.Lease) {
	<-lease.Context().Done()
	select {
	case <-lease.Lost():
		d.say(answer{"event": "lost", "grant": name, "token": lease.Token(), "code": code(lease.Check()), "at_ms": nowMS()})
	default:
		// Released.
	}
}

func (d *driver) notice(name string, notice palisade.Notice) {
	a := answer{"event": "notice", "grant": name, "kind": notice.Kind, "at_ms": nowMS()}
	switch notice.Kind {
	case palisade.Suspended:
		a["remaining_ms"] = notice.Remaining.Seconds() * 1e3
	case palisade.Wanted, palisade.Unwanted:
		a["waiters"] = notice.Waiters
	case palisade.Lost:
		a["why"], a["reason"] = notice.Err.Err.Code, notice.Err.Reason
	}
	d.say(a)
}

func (d *driver) release(ctx context.Context, c command) (answer, error) {
	release := d.lease(c).Release
	if c.Lock != "" {
		release = func(ctx context.Context) error { return d.lease(c).ReleasePart(ctx, c.Lock) }
	}
	err := release(ctx)
	if errors.Is(err, palisade.ErrLost) {
		return answer{"result": "over"}, nil
	}
	return answer{"result": "released"}, err
}

func (d *driver) show(ctx context.Context, c command) (answer, error) {
	shown, err := d.client.Show(ctx, c.Lock)
	a := answer{"token": nil, "waiters": shown.Waiters}
	if shown.Holder != nil {
		a["token"] = shown.Holder.Token
	}
	return a, err
}

func (d *driver) list(ctx context.Context, c command) (answer, error) {
	names := []string{}
	locks := d.client.List(ctx, c.Prefix)
	for locks.Next() {
		names = append(names, locks.Lock().Name)
	}
	return answer{"locks": names}, locks.Err()
}

func (d *driver) watch(ctx context.Context, c command) {
	watch := d.client.Watch(ctx, c.Prefix, palisade.After(0))
	for watch.Next() {
		e := watch.Event()
		d.say(answer{"event": "change", "watch": c.As, "kind": e.Kind, "revision": e.Revision, "token": e.Token})
	}
	fmt.Fprintln(os.Stderr, "driver: the watch ended:", watch.Err())
}

func (d *driver) lease(c command) *palisade.Lease {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leases[c.Grant]
}

// timed is for proof/costs.
func timed(count int, work func() error) (answer, error) {
	before := nowMS()
	for n := 0; n < count; n++ {
		if err := work(); err != nil {
			return nil, err
		}
	}
	return answer{"took_ms": nowMS() - before}, nil
}

// remaining reads the clock before the client is asked.
func remaining(lease *palisade.Lease) answer {
	before := nowMS()
	return answer{"before_ms": before, "remaining_ms": lease.Remaining().Seconds() * 1e3}
}

func nowMS() float64 { return boot.Now().Seconds() * 1e3 }

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
