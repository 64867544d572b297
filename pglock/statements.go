package pglock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ask is one request for a lock as it is sent.
type ask struct {
	who     who
	request request
	grantID uuid.UUID
	retry   bool
}

// plain requests can be granted many in one statement: first askings for exclusive locks that carry nothing along.
func (q ask) plain() bool {
	return !q.retry && q.request.mode == ModeExclusive && q.request.metadata == nil && q.request.turns <= 1 && !q.request.owner.nested()
}

func (s *pgStore) acquire(ctx context.Context, w who, r request, grantID uuid.UUID, retry bool) (answer, error) {
	q := ask{w, r, grantID, retry}
	switch {
	case q.plain():
		return s.acquires.do(ctx, q)
	case retry:
		return s.acquireAlone(ctx, q)
	}
	return s.requests.do(ctx, q)
}

func (s *pgStore) acquireAlone(ctx context.Context, q ask) (a answer, err error) {
	r := q.request
	var metadata *string
	if r.metadata != nil {
		text := string(r.metadata)
		metadata = &text
	}
	limit := never
	if r.wait {
		limit = patience
	}
	err = s.pooledFor(ctx, limit, s.queries.acquire,
		[]any{r.name, q.grantID.String(), q.who.session.String(), r.holder, interval(r.ttl + r.grace), metadata, q.retry, string(r.mode), r.limit(),
			r.wait, interval(q.who.ttl), r.owner.id.String(), r.owner.nested(), max(1, r.turns)},
		func(rows pgx.Rows) error {
			a, err = scanAnswer(rows, nil)
			return err
		})
	return a, err
}

// limit is the capacity for the server, NULL where the mode has none.
func (r request) limit() *int {
	if r.mode == ModeLimit {
		return &r.capacity
	}
	return nil
}

// scanAnswer reads what the server says to one request, with others in columns before and after it.
func scanAnswer(rows pgx.Rows, last any, first ...any) (a answer, err error) {
	var token, expiresAt, remaining, ticket, firstToken *int64
	var holder *string
	var slot, place *int
	var isFirst, watched *bool
	if err := rows.Scan(append(first, &a.granted, &token, &holder, &expiresAt, &remaining, &slot, &ticket, &place, &isFirst,
		&a.handed.hints, &a.handed.tokens, &watched, &firstToken, last)...); err != nil {
		return a, err
	}
	if holder != nil {
		a.token, a.holder, a.expiresAt = Token(*token), *holder, moment(expiresAt)
	}
	a.remaining = time.Duration(orZero(remaining)) * time.Microsecond
	a.slot, a.ticket, a.place, a.first = orZero(slot), orZero(ticket), orZero(place), orZero(isFirst)
	a.handed.watched, a.firstToken = orZero(watched), Token(orZero(firstToken))
	return a, nil
}

// moment is a time from the server, in UTC; zero when there is none.
func moment(us *int64) time.Time {
	if us == nil {
		return time.Time{}
	}
	return time.UnixMicro(*us).UTC()
}

// interval is d as PostgreSQL reads it. Seconds, as version 14 takes no more than 2^31 microseconds.
func interval(d time.Duration) string {
	return fmt.Sprintf("%d.%06d seconds", d/time.Second, d%time.Second/time.Microsecond)
}

func (s *pgStore) beat(ctx context.Context, w who, p pulse) (map[claim]verdict, map[int64]sighting, error) {
	conn, err := s.beating(ctx)
	if err != nil {
		return nil, nil, err
	}
	names, tokens, grantIDs := columns(p.claims)
	slots := make([]int, len(p.claims))
	for i, c := range p.claims {
		slots[i] = c.slot
	}
	type key struct {
		name  string
		token Token
	}
	asked := make(map[key]claim, len(p.claims))
	for _, c := range p.claims {
		asked[key{c.name, c.token}] = c
	}
	var sql string
	var args []any
	looking := []any{w.session.String(), w.holder, interval(w.ttl), p.nested}
	switch {
	case !p.look:
		sql, args = s.queries.renewAll, []any{names, tokens, grantIDs, slots}
	case len(p.claims) == 0:
		sql, args = s.queries.look, looking
	default:
		sql, args = s.queries.beat, append(looking, names, tokens, grantIDs, slots)
	}
	verdicts, sightings := make(map[claim]verdict, len(p.claims)), make(map[int64]sighting)
	err = s.query(ctx, conn, sql, args, func(rows pgx.Rows) error {
		var name, outcome, circle *string
		var number int64 // the token of a lease, or the ticket of a waiter
		var first *bool
		var remaining *int64
		if err := rows.Scan(&name, &number, &outcome, &remaining, &first, &circle); err != nil {
			return err
		}
		left := time.Duration(orZero(remaining)) * time.Microsecond
		if name != nil {
			verdicts[asked[key{*name, Token(number)}]] = verdict{*outcome, left}
			return nil
		}
		seen := sighting{first: orZero(first), remaining: left}
		if circle != nil {
			if err := json.Unmarshal([]byte(*circle), &seen.circle); err != nil {
				return fmt.Errorf("read a circle of waiters: %w", err)
			}
		}
		sightings[number] = seen
		return nil
	})
	if err != nil && !transient(err) {
		s.rest() // whatever is wrong with the connection, the next attempt has a new one
	}
	return verdicts, sightings, err
}

func columns(claims []claim) (names []string, tokens []int64, grantIDs []string) {
	for _, c := range claims {
		names, tokens, grantIDs = append(names, c.name), append(tokens, int64(c.token)), append(grantIDs, c.grantID.String())
	}
	return names, tokens, grantIDs
}

func (s *pgStore) renew(ctx context.Context, c claim) (time.Duration, error) {
	return s.remaining(ctx, s.queries.renew, c)
}

// renewBusy is renew on the heartbeat's connection.
func (s *pgStore) renewBusy(ctx context.Context, c claim) (time.Duration, error) {
	conn, err := s.beating(ctx)
	if err != nil {
		return 0, err
	}
	var us int64
	err = s.query(ctx, conn, s.queries.renew, []any{c.name, int64(c.token), c.grantID.String()}, func(rows pgx.Rows) error {
		return rows.Scan(&us)
	})
	return time.Duration(us) * time.Microsecond, err
}

func (s *pgStore) timeline(ctx context.Context) (time.Duration, bool, error) {
	var us *int64
	err := s.pooled(ctx, s.queries.timeline, nil, func(rows pgx.Rows) error { return rows.Scan(&us) })
	return time.Duration(orZero(us)) * time.Microsecond, us != nil, err
}

func (s *pgStore) check(ctx context.Context, c claim) (time.Duration, error) {
	return s.checks.do(ctx, c)
}

func (s *pgStore) remaining(ctx context.Context, sql string, c claim) (time.Duration, error) {
	var us int64
	err := s.pooled(ctx, sql, []any{c.name, int64(c.token), c.grantID.String()}, func(rows pgx.Rows) error {
		return rows.Scan(&us)
	})
	return time.Duration(us) * time.Microsecond, err
}

func (s *pgStore) release(ctx context.Context, c claim, announce *who) (released bool, h handed, err error) {
	if announce == nil && c.slot == 0 {
		end, err := s.releases.do(ctx, c)
		return end.released, end.handed, err
	}
	return s.releaseAlone(ctx, c, announce)
}

func (s *pgStore) releaseAlone(ctx context.Context, c claim, announce *who) (released bool, h handed, err error) {
	args := []any{c.name, int64(c.token), c.grantID.String(), c.slot}
	scan := func(rows pgx.Rows) error {
		var watched *bool
		h = handed{}
		err := rows.Scan(&released, &h.hints, &h.tokens, &watched, nil)
		h.watched = orZero(watched)
		return err
	}
	if announce == nil || c.slot != 0 {
		err = s.pooled(ctx, s.queries.release, args, scan)
		return released, h, err
	}
	err = s.onPooled(ctx, func(conn *pgx.Conn) error {
		if s.nameless(conn) {
			return s.query(ctx, conn, s.queries.release, args, scan)
		}
		var told int64
		var err error
		if tell := []any{c.name, int64(c.token), announce.session.String()}; s.explicit.Load() || conn.Config().DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
			err = s.pipelined(ctx, conn, statement{s.queries.release, args, scan}, statement{s.queries.announceNext, tell, func(rows pgx.Rows) error {
				return rows.Scan(&told, nil)
			}})
		} else {
			err = oneAfterAnother(ctx, conn,
				step{s.queries.release, []string{c.name, fmt.Sprint(int64(c.token)), c.grantID.String(), fmt.Sprint(c.slot)}, func(scan func(...any) error) error {
					var watched *bool
					h = handed{}
					err := scan(&released, &h.hints, &h.tokens, &watched)
					h.watched = orZero(watched)
					return err
				}},
				step{s.queries.announceNext, []string{c.name, fmt.Sprint(int64(c.token)), announce.session.String()}, func(scan func(...any) error) error {
					return scan(&told)
				}})
		}
		if lost := statementLost(err); lost || sqlState(err) == stateIsolation { // nothing was done
			s.unnamed.Store(lost || s.unnamed.Load())
			return s.query(ctx, conn, s.queries.release, args, scan)
		}
		if h.watched = false; told > 0 {
			h.announced, h.tokens = true, nil // else they are readers' or a semaphore's, which are told by their tokens
		}
		return confirmed(conn, err)
	})
	return released, h, err
}

func (s *pgStore) releaseAll(ctx context.Context, claims []claim) (map[string]handed, error) {
	names, tokens, grantIDs := columns(claims)
	return s.handedByName(ctx, s.queries.releaseAll, names, tokens, grantIDs)
}

func (s *pgStore) leaveAll(ctx context.Context, session uuid.UUID, names []string, grantIDs []uuid.UUID) (map[string]handed, error) {
	texts := make([]string, len(grantIDs))
	for i, id := range grantIDs {
		texts[i] = id.String()
	}
	return s.handedByName(ctx, s.queries.leaveAll, session.String(), names, texts)
}

func (s *pgStore) handedByName(ctx context.Context, sql string, args ...any) (map[string]handed, error) {
	byName := make(map[string]handed)
	err := s.pooled(ctx, sql, args, func(rows pgx.Rows) error {
		var name string
		var tokens []int64
		var watched bool
		if err := rows.Scan(&name, &tokens, &watched, nil); err != nil {
			return err
		}
		h := byName[name]
		h.tokens, h.watched = append(h.tokens, tokens...), h.watched || watched
		byName[name] = h
		return nil
	})
	return byName, err
}

func (s *pgStore) leave(ctx context.Context, name string, grantID uuid.UUID) (l left, err error) {
	err = s.pooled(ctx, s.queries.leave, []any{name, grantID.String()}, func(rows pgx.Rows) error {
		var place *int
		var token, expiresAt *int64
		var holder *string
		var watched *bool
		l = left{}
		err := rows.Scan(&l.ended, &place, &token, &holder, &expiresAt, &l.handed.tokens, &watched, nil)
		l.place, l.token, l.holder, l.expiresAt = orZero(place), Token(orZero(token)), orZero(holder), moment(expiresAt)
		l.handed.watched = orZero(watched)
		return err
	})
	return l, err
}

func (s *pgStore) abandon(ctx context.Context, name string, grantID uuid.UUID) (h handed, err error) {
	err = s.pooled(ctx, s.queries.abandon, []any{name, grantID.String()}, func(rows pgx.Rows) error {
		var watched *bool
		h = handed{}
		err := rows.Scan(nil, &h.tokens, &watched, nil)
		h.watched = orZero(watched)
		return err
	})
	return h, err
}

func (s *pgStore) own(ctx context.Context, c claim, owner uuid.UUID) error {
	return s.pooled(ctx, s.queries.own, []any{c.name, int64(c.token), c.grantID.String(), owner.String()}, func(pgx.Rows) error { return nil })
}

func (s *pgStore) announce(ctx context.Context, names []string, tokens []int64) error {
	return s.pooled(ctx, s.queries.announce, []any{names, tokens}, func(pgx.Rows) error { return nil })
}

func (s *pgStore) notify(ctx context.Context, channel, payload string) error {
	return s.pooled(ctx, s.queries.notify, []any{channel, payload}, func(pgx.Rows) error { return nil })
}

func (s *pgStore) watch(ctx context.Context, name string, lasting time.Duration) (infos []Info, channel string, err error) {
	err = s.pooledFor(ctx, patience, s.queries.watch, []any{name, interval(lasting)}, func(rows pgx.Rows) error {
		i, err := scanInfo(rows, &channel, nil)
		infos = append(infos, i)
		return err
	})
	return infos, channel, err
}

// pgEar listens on a connection of its own.
type pgEar struct{ conn *pgx.Conn }

func (s *pgStore) listen(ctx context.Context) (ear, error) {
	if s.ears == nil {
		conn, err := s.connect(ctx)
		if err != nil {
			return nil, err
		}
		// Behind a pooler LISTEN would stay with a connection that others use, and we would hear nothing.
		var backend uint32
		if err := conn.QueryRow(ctx, "select pg_catalog.pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&backend); err != nil || backend != conn.PgConn().PID() {
			farewell(conn)
			return nil, errors.Join(errPooled, err)
		}
		return pgEar{conn}, nil
	}
	conn, err := pgx.ConnectConfig(ctx, s.ears.Copy())
	return pgEar{conn}, err
}

func (e pgEar) subscribe(ctx context.Context, channel string) error {
	_, err := e.conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize(), pgx.QueryExecModeSimpleProtocol)
	return err
}

func (e pgEar) unsubscribe(ctx context.Context, channel string) error {
	_, err := e.conn.Exec(ctx, "UNLISTEN "+pgx.Identifier{channel}.Sanitize(), pgx.QueryExecModeSimpleProtocol)
	return err
}

func (e pgEar) next(ctx context.Context) (channel, payload string, err error) {
	n, err := e.conn.WaitForNotification(ctx)
	if err != nil {
		if ctx.Err() != nil && !e.conn.IsClosed() {
			return "", "", errQuiet
		}
		return "", "", err
	}
	return n.Channel, n.Payload, nil
}

func (e pgEar) close() { farewell(e.conn) }

// errPooled: the connection is not to the server itself.
var errPooled = errors.New("a pooler is between: WithListenConfig names the server itself")

// errQuiet: nothing was heard for as long as one was willing to listen; the connection is as good as before.
var errQuiet = errors.New("nothing was heard")
