package pglock

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/pgtest"
)

// The client reckons what others see of its session, and what proves a hint, as the server does.
func TestClientAndServerReckonDigestsAlike(t *testing.T) {
	t.Parallel()
	conn := pgtest.Database(t).Conn(t)
	for range 20 {
		key := uuid.New()
		var session string
		if err := conn.QueryRow(t.Context(), "SELECT pglock.session_of($1::text::uuid)::text", key.String()).Scan(&session); err != nil || session != sessionOf(key).String() || session == key.String() {
			t.Errorf("session %s, %v; want %v", session, err, sessionOf(key))
		}
	}
	first, id, key := uuid.NewString(), uuid.New(), uuid.NewString()
	var token int64
	if err := conn.QueryRow(t.Context(), "SELECT token FROM pglock.acquire_lease('report', $1::text::uuid, $2::text::uuid, 'h', '1 h')", first, key).Scan(&token); err != nil {
		t.Fatal(err)
	}
	var ticket int64
	if err := conn.QueryRow(t.Context(), "SELECT (more ->> 'ticket')::bigint FROM pglock.acquire_lease('report', $1::text::uuid, $2::text::uuid, 'h', '1 h', p_wait => true, p_turns => 5)", id.String(), key).Scan(&ticket); err != nil {
		t.Fatal(err)
	}
	var text string
	if err := conn.QueryRow(t.Context(), "SELECT more -> 'handed' -> 'hints' ->> 0 FROM pglock.release_lease('report', $1, $2::text::uuid)", token, first).Scan(&text); err != nil {
		t.Fatal(err)
	}
	proof, said := text[:64], text[65:]
	h, ok := parseHint(said)
	if !ok || proof != digest(said, id) || proof == digest(said, uuid.New()) || text[64] != ' ' {
		t.Errorf("%q is no hint, or proves nothing", text)
	}
	if h.ticket != ticket || int64(h.first) <= token || h.token-h.first != 4 || h.slot != 0 || h.left < 50*time.Minute || h.left > time.Hour {
		t.Errorf("%q says %+v", text, h)
	}
}
