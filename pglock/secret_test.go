package pglock

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/queue"
	"github.com/pglock-dev/pglock/internal/trust"
)

// The client computes its session's public ID, and the proof of a hint, as the server does.
func TestClientAndServerReckonDigestsAlike(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	for range 20 {
		key := uuid.New()
		var session string
		if err := conn.QueryRow(t.Context(), "SELECT pglock.session_of($1::text::uuid)::text",
			key.String()).Scan(&session); err != nil || session != sessionOf(key).String() || session == key.String() {
			t.Errorf("session %s, %v; want %v", session, err, sessionOf(key))
		}
	}
	first, id, key := uuid.NewString(), uuid.New(), uuid.NewString()
	token := pgtest.One[int64](t, conn, "SELECT token FROM pglock.acquire_lease('report', $1::text::uuid, "+
		"$2::text::uuid, 'h', '1 h')", first, key)
	// A free lock's row has the session that every other place has.
	for _, name := range []string{"report", "free"} {
		if name == "free" {
			for _, sql := range []string{"SELECT pglock.release_lease('free', a.token, $1::text::uuid) FROM " +
				"pglock.acquire_lease('free', $1::text::uuid, gen_random_uuid(), 'h', '1 h') a",
				"SELECT pglock.acquire_lease('free', gen_random_uuid(), $1::text::uuid, 'h', '1 h')"} {
				must.Get(conn.Exec(t.Context(), sql, key))(t)
			}
		}
		var session string
		if err := conn.QueryRow(t.Context(), "SELECT session_id::text FROM pglock.get_lock($1)",
			name).Scan(&session); err != nil || session != sessionOf(uuid.MustParse(key)).String() {
			t.Errorf("%s is held by session %s, %v", name, session, err)
		}
	}
	ticket := pgtest.One[int64](t, conn, "SELECT (more ->> 'ticket')::bigint FROM pglock.acquire_lease('report', "+
		"$1::text::uuid, $2::text::uuid, 'h', '1 h', p_wait => true)", id.String(), key)
	text := pgtest.One[string](t, conn, "SELECT more -> 'handed' -> 'hints' ->> 0 FROM "+
		"pglock.release_lease('report', $1, $2::text::uuid)", token, first)
	for grantID, known := range map[uuid.UUID]bool{id: true, uuid.New(): false} {
		q, waits := queue.New(time.Minute), queue.NewTicket(&owner{}, time.Minute, true)
		q.Put(waits, grantID, protocol.Answer{Ticket: ticket}, trust.Instant{}, trust.Instant{})
		q.Hear(text, nil)
		news, _ := q.TakeNews(waits, trust.Instant{})
		h := news.Hint
		if (h != nil) != known {
			t.Errorf("%q is a hint for those who know the grant ID: %v", text, h != nil)
		} else if known && (h.Token <= token || h.Slot != 0 || h.Left < 50*time.Minute || h.Left > time.Hour) {
			t.Errorf("%q says %+v", text, h)
		}
	}
}
