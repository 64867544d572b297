package pglock_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// askRaw asks for a lock as a waiting client does, and returns the grant; p is further arguments.
func askRaw(t *testing.T, conn *pgx.Conn, name string, grantID, key uuid.UUID, p string) (granted bool, token int64) {
	t.Helper()
	var told *int64
	if err := conn.QueryRow(t.Context(), "SELECT granted, token FROM pglock.acquire_lease($1, $2::text::uuid, "+
		"$3::text::uuid, 'w', '1 h', p_session_ttl => '1 h'"+p+")",
		name, grantID.String(), key.String()).Scan(&granted, &told); err != nil {
		t.Fatal(err)
	}
	if told != nil {
		token = *told
	}
	return granted, token
}

// leases counts those of a lock that are held, and the tickets.
func leases(t *testing.T, conn *pgx.Conn, name string) (held, tickets int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(),
		`SELECT (SELECT count(*) FROM pglock.locks WHERE name = $1 AND expires_at > clock_timestamp()),
		(SELECT count(*) FROM pglock.waiters WHERE name = $1)`, name).Scan(&held, &tickets); err != nil {
		t.Fatal(err)
	}
	return held, tickets
}

// A waiter that asks again when the lock has become free is granted it by its ticket, and not a second time as a
// newcomer.
func TestI6_WaiterThatAsksAgainIsGrantedOneLease(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	for mode, p := range map[string]string{"exclusive": "", "shared": ", p_mode => 'shared'",
		"limit": ", p_mode => 'limit', p_capacity => 3"} {
		t.Run(mode, func(t *testing.T) {
			if granted, _ := askRaw(t, conn, mode, uuid.New(), uuid.New(), ""); !granted {
				t.Fatal("the lock is not free")
			}
			id, key := uuid.New(), uuid.New()
			if granted, _ := askRaw(t, conn, mode, id, key, p+", p_wait => true"); granted {
				t.Fatal("granted a lock that is held")
			}
			execute(t, conn, "UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = $1", mode)
			granted, token := askRaw(t, conn, mode, id, key, p+", p_wait => true, p_retry => true")
			if !granted {
				t.Fatal("the first in the queue is not granted a lock that is free")
			}
			if held, tickets := leases(t, conn, mode); held != 1 || tickets != 0 {
				t.Errorf("%d leases for one request, and %d tickets", held, tickets)
			}
			if _, again := askRaw(t, conn, mode, id, key, p+", p_wait => true, p_retry => true"); again != token {
				t.Errorf("asked again, it has token %d, not %d", again, token)
			}
			execute(t, conn, "SELECT pglock.give_up($1::text::uuid, ARRAY[$2], ARRAY[$3]::text[]::uuid[])",
				key.String(), mode, id.String())
			if held, _ := leases(t, conn, mode); held != 0 {
				t.Errorf("%d leases when it has given up", held)
			}
		})
	}
}

// A ticket behind dead ones only is like any other: nobody overtakes it, and it is granted the lock when the leases
// that it waits for end.
func TestI8_I9_WaiterWhoFoundTheQueueDeadIsServed(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	for what, dead := range map[string]string{"a writer": "", "a place": ", p_mode => 'limit', p_capacity => 1"} {
		t.Run("behind "+what, func(t *testing.T) {
			reader, writer, key := uuid.New(), uuid.New(), uuid.New()
			granted, token := askRaw(t, conn, what, reader, key, ", p_mode => 'shared'")
			if !granted {
				t.Fatal("the lock is not free")
			}
			gone := uuid.New()
			askRaw(t, conn, what, uuid.New(), gone, dead+", p_wait => true")
			execute(t, conn, "UPDATE pglock.sessions SET alive_until = clock_timestamp() - interval '1 s' WHERE "+
				"session_id = pglock.session_of($1::text::uuid)", gone.String())
			if granted, _ := askRaw(t, conn, what, writer, uuid.New(), ", p_wait => true"); granted {
				t.Fatal("a writer beside a reader")
			}
			if granted, _ := askRaw(t, conn, what, uuid.New(), uuid.New(),
				", p_mode => 'shared', p_wait => true"); granted {
				t.Error("a reader who came later has overtaken the writer")
			}
			if granted, _ := askRaw(t, conn, what, uuid.New(), uuid.New(), ", p_mode => 'shared'"); granted {
				t.Error("a reader who does not queue has overtaken the writer")
			}
			execute(t, conn, "SELECT pglock.release_lease($1, $2, $3::text::uuid)", what, token, reader.String())
			var holds string
			if err := conn.QueryRow(t.Context(), "SELECT grant_id::text FROM pglock.locks WHERE name = $1 AND "+
				"expires_at > clock_timestamp() + $2", what, time.Minute).Scan(&holds); err != nil ||
				holds != writer.String() {
				t.Errorf("the release of the reader grants the lock to %q, %v; want the writer", holds, err)
			}
		})
	}
}
