package palisade

import (
	"context"
	"encoding/json"
	"net/url"
	"time"
)

// A Holder is the client that has a lock.
type Holder struct {
	ClientID string
	Token    uint64
	// Remaining: until its lease is over unless it is renewed.
	Remaining time.Duration
	Metadata  string
	// AcquiredAt is the server's wall clock at the grant, for people.
	AcquiredAt string
	// GrantID is the number that names a reader's grant, for Break. Only where one lock is shown; else 0.
	GrantID uint64
	// Slots are those of a semaphore that it has.
	Slots []int
}

// LockInfo is the server's information about a lock.
type LockInfo struct {
	Name string
	// Holder is nil while the lock is free, and the oldest of several.
	Holder  *Holder
	Waiters int
	// ReaderCount is how many readers, or holders of permits, have it; 0 if it is held alone.
	ReaderCount int
	// Readers are the oldest of them, at most 64. Only where one lock is shown.
	Readers []Holder
	// Permits is how many permits a semaphore has; 0 for another lock.
	Permits int
}

// Status is the server's description of itself.
type Status struct {
	Authority   string
	Incarnation string
	// NextToken is 0 if no token is left.
	NextToken uint64
	Locks     int
	Leases    int
	Waiters   int
	Version   string
}

// Show returns the holder of a lock and the number of waiters.
func (c *Client) Show(ctx context.Context, name string) (LockInfo, error) {
	if err := checkName(name); err != nil {
		return LockInfo{}, err
	}
	found, err := c.shown(ctx, name)
	if err != nil {
		return LockInfo{}, err
	}
	return found.value()
}

func (c *Client) shown(ctx context.Context, name string) (found wireLock, err error) {
	answer, err := c.ask(ctx, request{method: "GET", path: lockPath(name, ""), differs: isAbout("resource_id", name)})
	if err != nil {
		return found, about(name, err)
	}
	return found, decode(answer, &found)
}

// Break takes a lock from its holder. The token is that of the current grant, or a reader's grant id: proof that
// the operator has looked.
func (c *Client) Break(ctx context.Context, name string, token uint64, reason string) error {
	if err := checkName(name); err != nil {
		return err
	}
	body := struct {
		Token  uint64 `json:"fencing_token"`
		Reason string `json:"reason"`
	}{token, reason}
	return c.change(ctx, name, "/break", body)
}

// Resize gives a semaphore that is in use another number of permits. Holders keep their slots; a lower number takes effect
// as they come free.
func (c *Client) Resize(ctx context.Context, name string, permits int) error {
	if err := checkName(name); err != nil {
		return err
	}
	body := struct {
		Of int `json:"of"`
	}{permits}
	return c.change(ctx, name, "/permits", body)
}

// change asks for something of a lock whose answer only says that it was done.
func (c *Client) change(ctx context.Context, name, verb string, body any) error {
	asked := request{method: "POST", path: lockPath(name, verb), body: body, differs: isAbout("resource_id", name)}
	_, err := c.ask(ctx, asked)
	return about(name, err)
}

// Status asks the server about itself.
func (c *Client) Status(ctx context.Context) (Status, error) {
	answer, err := c.ask(ctx, request{method: "GET", path: "/v1/status"})
	if err != nil {
		return Status{}, err
	}
	var found struct {
		Authority   string `json:"authority"`
		Incarnation string `json:"incarnation"`
		NextToken   uint64 `json:"next_token"`
		Locks       int    `json:"locks"`
		Leases      int    `json:"leases"`
		Waiters     int    `json:"waiters"`
		Version     string `json:"version"`
	}
	if err := decode(answer, &found); err != nil {
		return Status{}, err
	}
	return Status(found), nil
}

// List returns the locks that are held and whose names start with prefix:
//
//	locks := client.List(ctx, "orders/")
//	for locks.Next() {
//		fmt.Println(locks.Lock().Name)
//	}
//	if err := locks.Err(); err != nil { … }
func (c *Client) List(ctx context.Context, prefix string) *Locks {
	return &Locks{client: c, ctx: ctx, prefix: prefix, more: true}
}

// Locks goes through a list, page by page.
type Locks struct {
	noCopy noCopy
	client *Client
	ctx    context.Context
	prefix string
	cursor string
	page   []wireLock
	more   bool
	lock   LockInfo
	err    error
}

// Next goes on to the next lock. It returns false at the end, and after an error.
func (l *Locks) Next() bool {
	for l.err == nil && len(l.page) == 0 && l.more {
		l.err = l.fetch()
	}
	if l.err != nil || len(l.page) == 0 {
		return false
	}
	l.lock, l.err = l.page[0].value()
	l.page = l.page[1:]
	return l.err == nil
}

// Lock is the one to which Next went on.
func (l *Locks) Lock() LockInfo { return l.lock }

// Err is why Next returned false; nil at the end of the list.
func (l *Locks) Err() error { return l.err }

func (l *Locks) fetch() error {
	query := url.Values{"prefix": {l.prefix}, "limit": {"1000"}}
	if l.cursor != "" {
		query.Set("cursor", l.cursor)
	}
	answer, err := l.client.ask(l.ctx, request{method: "GET", path: "/v1/locks?" + query.Encode(), differs: isList})
	if err != nil {
		return err
	}
	var found struct {
		Locks  []wireLock `json:"locks"`
		Cursor string     `json:"next_cursor"`
	}
	if err := decode(answer, &found); err != nil {
		return err
	}
	l.page, l.cursor, l.more = found.Locks, found.Cursor, found.Cursor != ""
	return nil
}

// isList tells why a good answer is not a list: without its locks it would be an empty one.
func isList(r reply) string {
	if r.status != 200 || has(r.fields(), "locks") {
		return ""
	}
	return differs(r, "locks", "a list")
}

type wireLock struct {
	Name    string      `json:"resource_id"`
	Holder  *wireHolder `json:"holder"`
	Waiters int         `json:"waiters"`
	// The number of the latest change that the answer knows of. Only where one lock is shown.
	Revision uint64 `json:"revision"`

	ReaderCount int           `json:"reader_count"`
	Readers     []*wireHolder `json:"readers"`
	Permits     int           `json:"permits"`
}

func (w wireLock) value() (LockInfo, error) {
	holder, err := w.Holder.value()
	info := LockInfo{Name: w.Name, Holder: holder, Waiters: w.Waiters, ReaderCount: w.ReaderCount, Permits: w.Permits}
	for _, wire := range w.Readers {
		reader, unread := wire.value()
		if unread != nil {
			return info, unread
		}
		if reader != nil {
			info.Readers = append(info.Readers, *reader)
		}
	}
	return info, err
}

type wireHolder struct {
	ClientID   string `json:"client_id"`
	Token      uint64 `json:"fencing_token"`
	Remaining  uint64 `json:"remaining_ms"`
	Metadata   string `json:"metadata"`
	AcquiredAt string `json:"acquired_at"`
	GrantID    uint64 `json:"grant_id"`
	Slots      []int  `json:"slots"`
}

func (w *wireHolder) value() (*Holder, error) {
	if w == nil {
		return nil, nil
	}
	if !isToken(&w.Token) {
		return nil, unreadable("the holder's fencing_token is out of range")
	}
	return &Holder{w.ClientID, w.Token, milliseconds(w.Remaining), w.Metadata, w.AcquiredAt, w.GrantID, w.Slots}, nil
}

// decode reads the answer to a question.
func decode(answer reply, into any) error {
	if err := json.Unmarshal(answer.body, into); err != nil {
		return unreadable(err.Error())
	}
	return nil
}

func unreadable(why string) error {
	return &Error{"internal", "a broken answer: " + why, ErrUnknownOutcome}
}
