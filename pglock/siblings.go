package pglock

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// ForSiblings is for the other packages of this module alone.
func ForSiblings(hooks.Key) hooks.Package[LockInfo] { return ofPackage{} }

// ForSiblings is for the other packages of this module alone.
func (c *Client) ForSiblings(hooks.Key) hooks.Client[AcquireOption] { return ofClient{c} }

// ForSiblings is for the other packages of this module alone.
func (l *Lease) ForSiblings(hooks.Key) hooks.Lease { return ofLease{l} }

type ofPackage struct{}

func (ofPackage) ErrorFromSQL(err error, name string, token int64) error {
	return errorFromSQL(err, name, Token(token))
}

func (ofPackage) Start(ctx context.Context, queries *protocol.Queries,
	query func(context.Context, protocol.Step) error, schema string) (int, error) {
	found, err := start(ctx, queries, query, schema)
	return found.version, err
}

func (ofPackage) ScanLockInfo(rows pgx.Rows, more ...any) (LockInfo, error) {
	return scanLockInfo(rows, more...)
}

type ofClient struct{ *Client }

func (c ofClient) Want(name string, opts []AcquireOption) (hooks.Wanted, error) {
	r, err := c.newRequest(name, opts)
	mode := Mode(r.Mode)
	return hooks.Wanted{Exclusive: mode == ModeExclusive, Shared: mode == ModeShared, MaxWait: r.maxWait}, err
}

func (ofClient) WaitAtMost(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	return waitAtMost(ctx, most)
}

func (c ofClient) Connect(ctx context.Context, direct *pgx.ConnConfig) (*pgx.Conn, error) {
	pg, ok := c.backend.(database)
	if !ok {
		return nil, errNoDatabase
	}
	return pg.Connect(ctx, direct)
}

type ofLease struct{ l *Lease }

func (s ofLease) Life() context.Context { return s.l.life }

func (s ofLease) Export() hooks.Grant {
	g := s.l.Export()
	return hooks.Grant{ID: g.ID, DatabaseID: g.DatabaseID, Schema: g.Schema, Grace: s.l.grace}
}

func (s ofLease) Home() hooks.Grant {
	home := s.Export()
	home.ID, home.Grace = uuid.Nil, 0
	return home
}

func (s ofLease) Connect(ctx context.Context) (*pgx.Conn, error) {
	return ofClient{s.l.client}.Connect(ctx, nil)
}

func (s ofLease) Blockers(ctx context.Context, pid int, resources []string) (all []protocol.Blocker, err error) {
	c := s.l.client
	pg, ok := c.backend.(database)
	if !ok {
		return nil, errNoDatabase
	}
	err = pg.Aside(ctx, protocol.Blockers(c.config.schema, pid, resources, &all))
	return all, err
}

func (s ofLease) Observe(ctx context.Context, what hooks.Observed) { s.l.write(ctx, what) }

func (s ofLease) CanHandOver(ctx context.Context, to string) error { return s.l.canHandOver(ctx, to) }

func (s ofLease) Renew(ctx context.Context) error { return s.l.renew(ctx) }

func (s ofLease) ByClose() bool { return s.l.byClose.Load() }

func (s ofLease) Pool() *pgxpool.Pool {
	pg, ok := s.l.client.backend.(database)
	if !ok {
		return nil
	}
	return pg.Pool()
}

var errNoDatabase = errors.New("the client has no database")
