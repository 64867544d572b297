package pglock

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// Info is what everybody may know of a lock, or of one of its holders where it has several. Times are the server's, in UTC.
type Info struct {
	Name       string          `json:"name"`
	Held       bool            `json:"held"`
	Holder     string          `json:"holder"` // of the last grant
	Session    string          `json:"session"`
	Token      Token           `json:"token"`
	TTL        time.Duration   `json:"-"`
	AcquiredAt time.Time       `json:"acquired_at"`
	RenewedAt  time.Time       `json:"renewed_at"`
	ExpiresAt  time.Time       `json:"expires_at,omitzero"` // zero after a release or a break
	EndedAt    time.Time       `json:"ended_at,omitzero"`   // of a release or a break
	Remaining  time.Duration   `json:"-"`                   // of the lease, at the answer
	Metadata   json.RawMessage `json:"metadata,omitempty"`
	Mode       Mode            `json:"mode"`            // of the last grant
	Limit      int             `json:"limit,omitempty"` // of ModeLimit
	Slot       int             `json:"slot,omitempty"`  // from 1, of ModeShared and ModeLimit; 0 for ModeExclusive
	Waiting    int             `json:"waiting"`         // how many are queued for the lock
}

// Event is an entry of the audit: what the server itself has done.
type Event struct {
	ID       int64     `json:"id"`
	At       time.Time `json:"at"`
	Kind     string    `json:"kind"` // "break", "takeover" (after an expiry), "bypass" or "epoch"
	Lock     string    `json:"lock"`
	Token    Token     `json:"token"`               // of the lease that was ended
	NewToken Token     `json:"new_token,omitempty"` // the token that ended it
	Holder   string    `json:"holder,omitempty"`    // of the lease with Token
	Actor    string    `json:"actor,omitempty"`     // who did it, in their own words
	DBUser   string    `json:"db_user"`             // who did it, in the database's words
	Reason   string    `json:"reason,omitempty"`
	Resource string    `json:"resource,omitempty"`
}

// Fence is the highest token that has written to a resource.
type Fence struct {
	Resource   string    `json:"resource"`
	LastToken  Token     `json:"last_token"`
	Lock       string    `json:"lock"`
	AdvancedAt time.Time `json:"advanced_at"`
}

// Broken is the lease that Break ended.
type Broken struct {
	Name      string    `json:"name"`
	Holder    string    `json:"holder"`
	Token     Token     `json:"token"`
	NewToken  Token     `json:"new_token"` // drawn so that the old holder is fenced off
	ExpiresAt time.Time `json:"expires_at"`
}

// Get tells the state of one lock, held or free; of the holder with the lowest slot where there are several. ErrNotFound
// when its name was never used.
func (c *Client) Get(ctx context.Context, name string) (Info, error) {
	infos, err := c.Holders(ctx, name)
	if err != nil {
		return Info{}, err
	}
	return infos[0], nil
}

// Holders tells every lease of one lock, by slot; of a free lock its last one, with Held false. ErrNotFound when its name
// was never used.
func (c *Client) Holders(ctx context.Context, name string) ([]Info, error) {
	if err := checkText("name", name, MaxNameBytes); err != nil {
		return nil, err
	}
	infos, err := c.infos(ctx, c.pg.Queries.Get, name)
	if err != nil {
		return nil, fmt.Errorf("pglock: get lock %q: %w", name, err)
	}
	if len(infos) == 0 {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	return infos, nil
}

// ListOptions choose what List returns. The zero value asks for the first 1,000 held locks.
type ListOptions struct {
	Prefix string // names that begin with it
	Free   bool   // free locks too
	After  string // names greater than it, in byte order: the last name of the page before
	Limit  int    // from 1 to 10,000; 0 means 1,000; all holders of the last lock come along
}

// List tells the state of locks, in byte order of their names.
func (c *Client) List(ctx context.Context, o ListOptions) ([]Info, error) {
	if o.Limit == 0 {
		o.Limit = 1000
	}
	if o.Limit < 1 || o.Limit > 10000 {
		return nil, &ArgumentError{"limit", fmt.Sprint(o.Limit), "be from 1 to 10000"}
	}
	for field, text := range map[string]string{"prefix": o.Prefix, "after": o.After} {
		if text != "" {
			if err := checkText(field, text, MaxNameBytes); err != nil {
				return nil, err
			}
		}
	}
	infos, err := c.infos(ctx, c.pg.Queries.List, o.Prefix, o.Free, o.After, o.Limit)
	if err != nil {
		return nil, fmt.Errorf("pglock: list locks: %w", err)
	}
	return infos, nil
}

func (c *Client) infos(ctx context.Context, sql string, args ...any) ([]Info, error) {
	if c.isClosed() {
		return nil, ErrClosed
	}
	var infos []Info
	err := c.pg.rows(ctx, sql, args, func(rows pgx.Rows) error {
		i, err := scanInfo(rows)
		infos = append(infos, i)
		return err
	})
	return infos, ErrorFromSQL(err, "", 0)
}

// scanInfo reads a row of the columns that every view of locks has, and what comes after them.
func scanInfo(rows pgx.Rows, more ...any) (Info, error) {
	var i Info
	var ttl, remaining int64
	var acquiredAt, renewedAt, expiresAt, endedAt *int64
	var metadata *string
	var capacity *int
	err := rows.Scan(append([]any{&i.Name, &i.Held, &i.Holder, &i.Session, &i.Token, &ttl, &acquiredAt, &renewedAt,
		&expiresAt, &endedAt, &remaining, &metadata, &i.Slot, &i.Mode, &capacity, &i.Waiting}, more...)...)
	i.TTL, i.Remaining = time.Duration(ttl)*time.Microsecond, time.Duration(remaining)*time.Microsecond
	i.AcquiredAt, i.RenewedAt = protocol.Moment(acquiredAt), protocol.Moment(renewedAt)
	i.ExpiresAt, i.EndedAt, i.Limit = protocol.Moment(expiresAt), protocol.Moment(endedAt), protocol.OrZero(capacity)
	if metadata != nil {
		i.Metadata = json.RawMessage(*metadata)
	}
	return i, err
}

// BreakOption configures one Break.
type BreakOption func(*breakRequest) error

type breakRequest struct {
	actor string
	token *int64
}

// BreakToken breaks the lease with this token alone, so that a lease granted meanwhile is left alone. Defaults to
// the one lease that there is; a lock with several holders needs it.
func BreakToken(t Token) BreakOption {
	return func(r *breakRequest) error {
		if t <= 0 {
			return &ArgumentError{"token", fmt.Sprint(int64(t)), "be greater than 0"}
		}
		v := int64(t)
		r.token = &v
		return nil
	}
}

// BreakActor says who breaks, for the audit. Defaults to the client's holder label.
func BreakActor(who string) BreakOption {
	return func(r *breakRequest) error {
		r.actor = who
		return checkText("actor", who, MaxHolderBytes)
	}
}

// Break ends somebody else's lease: its next renewal, release and fenced write fail, and the lock goes to the next in the
// queue, if there is one. It draws a new token and writes an audit event with the reason. The database user needs the
// role pglock_admin.
//
// Errors: ErrNotHeld when there is nothing to break, or it has another token, ErrInvalid, ErrPermission, ErrClosed.
func (c *Client) Break(ctx context.Context, name, reason string, opts ...BreakOption) (Broken, error) {
	r := breakRequest{actor: c.config.holder}
	if err := checkText("name", name, MaxNameBytes); err != nil {
		return Broken{}, err
	}
	if err := checkText("reason", reason, MaxReasonBytes); err != nil {
		return Broken{}, err
	}
	if strings.TrimSpace(reason) == "" {
		return Broken{}, &ArgumentError{"reason", argument.Shorten(reason), fmt.Sprintf("have 1 to %d bytes that are not all blank", MaxReasonBytes)}
	}
	for _, o := range opts {
		if o == nil {
			return Broken{}, errNilOption
		}
		if err := o(&r); err != nil {
			return Broken{}, err
		}
	}
	if c.isClosed() {
		return Broken{}, ErrClosed
	}
	b := Broken{Name: name}
	var expiresAt *int64
	var watched *bool
	var h protocol.Handed
	err := c.pg.rows(ctx, c.pg.Queries.BreakLock, []any{name, reason, r.actor, r.token}, func(rows pgx.Rows) error {
		return rows.Scan(&b.Holder, &b.Token, &b.NewToken, &expiresAt, &h.Slots, &watched)
	})
	if err != nil {
		return Broken{}, fmt.Errorf("pglock: break lock %q: %w", name, ErrorFromSQL(err, name, 0))
	}
	h.Watched = protocol.OrZero(watched)
	c.tell(ctx, name, h, c.now())
	b.ExpiresAt = protocol.Moment(expiresAt)
	return b, nil
}

// Events reads the audit, newest first: of one lock, or of all when name is empty; at most limit. The database user
// needs the role pglock_admin.
func (c *Client) Events(ctx context.Context, name string, limit int) ([]Event, error) {
	if limit < 1 || limit > 10000 {
		return nil, &ArgumentError{"limit", fmt.Sprint(limit), "be from 1 to 10000"}
	}
	if name != "" {
		if err := checkText("name", name, MaxNameBytes); err != nil {
			return nil, err
		}
	}
	if c.isClosed() {
		return nil, ErrClosed
	}
	var events []Event
	err := c.pg.rows(ctx, c.pg.Queries.Events, []any{name, limit}, func(rows pgx.Rows) error {
		var e Event
		var at *int64
		var newToken *Token
		var holder, actor, reason, resource *string
		err := rows.Scan(&e.ID, &at, &e.Kind, &e.Lock, &e.Token, &newToken, &holder, &actor, &e.DBUser, &reason, &resource)
		e.At, e.NewToken = protocol.Moment(at), protocol.OrZero(newToken)
		e.Holder, e.Actor, e.Reason, e.Resource = protocol.OrZero(holder), protocol.OrZero(actor), protocol.OrZero(reason), protocol.OrZero(resource)
		events = append(events, e)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pglock: read events: %w", ErrorFromSQL(err, "", 0))
	}
	return events, nil
}

// Fences tells the fences that leases of the lock have passed, and the fence of the resource with the lock's name.
func (c *Client) Fences(ctx context.Context, name string) ([]Fence, error) {
	if err := checkText("name", name, MaxNameBytes); err != nil {
		return nil, err
	}
	if c.isClosed() {
		return nil, ErrClosed
	}
	var fences []Fence
	err := c.pg.rows(ctx, c.pg.Queries.Fences, []any{name}, func(rows pgx.Rows) error {
		var f Fence
		var at *int64
		err := rows.Scan(&f.Resource, &f.LastToken, &f.Lock, &at)
		f.AdvancedAt = protocol.Moment(at)
		fences = append(fences, f)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pglock: read fences: %w", ErrorFromSQL(err, "", 0))
	}
	return fences, nil
}

func OrZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
