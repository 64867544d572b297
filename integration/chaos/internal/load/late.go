//go:build unix

package load

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/pglock"
)

// lateTTL is that of the subtrees that are renewed late, and the bound of how late.
const lateTTL = 300 * time.Millisecond

// late holds a subtree by SQL alone. It renews it in a transaction that is open when the lease would have run out, and
// that is committed then: until then it is nobody else's. Its label is one of the laboratory's.
func (w *worker) late(ctx context.Context, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := w.pool.Acquire(ctx)
	if err != nil {
		return // a fault keeps the server away
	}
	defer conn.Release()
	s := sqlHolder{conn.Conn(), below(r, root(r), r.IntN(deepest)), uuid.New(), uuid.New(), 0, 0, time.Time{}}
	defer func() { // what it has is given back, unless a fault keeps the server away
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = s.step(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT pglock.give_up($1, ARRAY[$2::text], ARRAY[$3::uuid]),
				pglock.end_session($1)`, s.key, s.name, s.grant)
			return err
		})
	}()
	mode := []pglock.Mode{pglock.ModeExclusive, pglock.ModeShared}[r.IntN(2)]
	for end := time.Now().Add(upTo(r, 2*time.Second)); s.token == 0; sleep(ctx, 20*time.Millisecond) {
		if s.acquire(ctx, string(mode)) != nil || time.Now().After(end) {
			return
		}
	}
	q := w.askTree(r, s.name, false) // somebody below waits for it
	q.how, q.mode, q.limit, q.patience = "acquire", pglock.ModeExclusive, 0, time.Second
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.call(ctx, w.client, w.Label, q, func(ctx context.Context, hands []*hand) {
			hold(ctx, hands, 100*time.Millisecond)
		})
	}()
	defer func() { <-done }()
	sleep(ctx, time.Until(s.until)-upTo(r, 40*time.Millisecond))
	_ = s.step(ctx, func(tx pgx.Tx) error {
		var outcome string
		err := tx.QueryRow(ctx, `SELECT outcome FROM pglock.renew_leases(ARRAY[$1::text], ARRAY[$2::bigint],
			ARRAY[$3::uuid], ARRAY[$4::int])`, s.name, s.token, s.grant, s.slot).Scan(&outcome)
		sleep(ctx, upTo(r, lateTTL*2/3))
		return err
	})
}

// sqlHolder asks and renews by statements of its own.
type sqlHolder struct {
	conn       *pgx.Conn
	name       string
	key, grant uuid.UUID
	token      int64
	slot       int
	until      time.Time
}

func (s *sqlHolder) step(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, do)
}

// acquire asks once for the subtree.
func (s *sqlHolder) acquire(ctx context.Context, mode string) error {
	return s.step(ctx, func(tx pgx.Tx) error {
		var granted bool
		var token int64
		var slot int
		asked := time.Now()
		err := tx.QueryRow(ctx, `SELECT granted, coalesce(token, 0), coalesce((more->>'slot')::int, 0)
			FROM pglock.acquire_subtree($1, $2, $3, 'chaos late', '300 ms', p_mode => $4, p_session_ttl => '1 s')`,
			s.name, s.grant, s.key, mode).Scan(&granted, &token, &slot)
		if err == nil && granted {
			s.token, s.slot, s.until = token, slot, asked.Add(lateTTL)
		}
		return err
	})
}
