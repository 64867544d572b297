package peer

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The statements over arrays: they lock the free rows in the order of their names, and skip those that somebody else
// has locked; the release does not wait for the disk.
const (
	batchedTry = `
		WITH asked AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::uuid[]) AS a (name, grant_id)),
		free AS MATERIALIZED (
			SELECT k.name, a.grant_id FROM asked a JOIN bare.locks_batched k ON k.name = a.name
			WHERE k.expires_at <= clock_timestamp() ORDER BY k.name FOR UPDATE OF k SKIP LOCKED)
		UPDATE bare.locks_batched l SET holder = $3, session_id = $4::uuid, grant_id = f.grant_id,
			token = GREATEST(nextval('bare.seq'), l.token + 1), ttl = $5::interval, acquired_at = clock_timestamp(),
			renewed_at = clock_timestamp(), expires_at = clock_timestamp() + $5::interval
		FROM free f WHERE l.name = f.name
		RETURNING l.name, l.token`
	batchedMake = `
		INSERT INTO bare.locks_batched (name, holder, session_id, grant_id, token, ttl, acquired_at, renewed_at, expires_at)
		SELECT name, '', $2::uuid, $2::uuid, nextval('bare.seq'), '0', clock_timestamp(), clock_timestamp(), '-infinity'
		FROM unnest($1::text[]) AS a (name) ORDER BY name ON CONFLICT DO NOTHING`
	batchedRelease = `
		WITH s AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS x),
		mine AS MATERIALIZED (
			SELECT k.name FROM s, unnest($1::text[], $2::bigint[], $3::uuid[]) AS a (name, token, grant_id)
			JOIN bare.locks_batched k ON k.name = a.name AND k.token = a.token AND k.grant_id = a.grant_id
			WHERE s.x IS NOT NULL ORDER BY k.name FOR UPDATE OF k)
		UPDATE bare.locks_batched l SET expires_at = '-infinity' FROM mine m WHERE l.name = m.name`
)

// groupsUnderWay limits the concurrent array statements of each kind. More of them make smaller groups, and were not
// faster.
const groupsUnderWay = 1

// BareBatched is the same statements over arrays: what PostgreSQL allows when many call at once.
func BareBatched() Kind {
	return Kind{
		Name: "bare-batched", Server: Postgres,
		Is:         "SQL over pgx, concurrent callers gathered into arrays",
		Guarantees: bareGuarantees,
		In:         []Workload{W1},
		Settings:   fmt.Sprintf("at most %d statement of each kind under way", groupsUnderWay),
		OneProcess: true,
		Open:       openBatched,
	}
}

type batchedClient struct {
	*counter
	config   Config
	pool     *pgxpool.Pool
	session  string
	tries    *gatherer[batchedLock]
	releases *gatherer[batchedLock]
	stop     context.CancelFunc
}

type batchedLock struct {
	name    string
	grantID uuid.UUID
	token   int64 // 0: not granted
}

func openBatched(ctx context.Context, c Config) (Client, error) {
	counted := newCounter(c)
	p, err := pool(ctx, c, counted, 2*groupsUnderWay)
	if err != nil {
		return nil, err
	}
	client := &batchedClient{counter: counted, config: c, pool: p, session: uuid.NewString()}
	ctx, client.stop = context.WithCancel(context.WithoutCancel(ctx))
	client.tries = newGatherer(ctx, groupsUnderWay, client.try)
	client.releases = newGatherer(ctx, groupsUnderWay, client.release)
	return client, nil
}

// try asks for all; names that have no row yet get one, and are asked for again.
func (c *batchedClient) try(ctx context.Context, group []*batchedLock) error {
	if err := c.tryOnce(ctx, group); err != nil {
		return err
	}
	var missing []string
	var again []*batchedLock
	for _, l := range group {
		if l.token == 0 {
			missing, again = append(missing, l.name), append(again, l)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	tag, err := c.pool.Exec(ctx, batchedMake, missing, uuid.UUID{})
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	return c.tryOnce(ctx, again)
}

func (c *batchedClient) tryOnce(ctx context.Context, group []*batchedLock) error {
	slices.SortFunc(group, func(a, b *batchedLock) int { return cmp.Compare(a.name, b.name) })
	names, grantIDs := make([]string, len(group)), make([]uuid.UUID, len(group))
	for i, l := range group {
		names[i], grantIDs[i] = l.name, l.grantID
	}
	rows, err := c.pool.Query(ctx, batchedTry, names, grantIDs, "bench", c.session, c.config.TTL)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var token int64
		if err := rows.Scan(&name, &token); err != nil {
			return err
		}
		i, found := slices.BinarySearchFunc(group, name, func(l *batchedLock, name string) int {
			return cmp.Compare(l.name, name)
		})
		if found {
			group[i].token = token
		}
	}
	return rows.Err()
}

func (c *batchedClient) release(ctx context.Context, group []*batchedLock) error {
	names, tokens, grantIDs := make([]string, len(group)), make([]int64, len(group)), make([]uuid.UUID, len(group))
	for i, l := range group {
		names[i], tokens[i], grantIDs[i] = l.name, l.token, l.grantID
	}
	tag, err := c.pool.Exec(ctx, batchedRelease, names, tokens, grantIDs)
	if err == nil && tag.RowsAffected() != int64(len(group)) {
		err = fmt.Errorf("%d of %d locks were lost before their release", int64(len(group))-tag.RowsAffected(),
			len(group))
	}
	return err
}

func (c *batchedClient) Caller(context.Context) (Caller, error) {
	return Func(func(ctx context.Context, name string) (func(context.Context) error, error) {
		l := &batchedLock{name: name, grantID: uuid.New()}
		if err := c.tries.call(ctx, l); err != nil {
			return nil, err
		}
		if l.token == 0 {
			return nil, errHeld(name)
		}
		return func(ctx context.Context) error { return c.releases.call(ctx, l) }, nil
	}), nil
}

func (c *batchedClient) Close(context.Context) error {
	c.stop()
	c.tries.close()
	c.releases.close()
	c.pool.Close()
	return nil
}
