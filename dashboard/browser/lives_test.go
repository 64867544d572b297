package browser

import (
	"github.com/pglock-dev/pglock/lockadmin"
)

// given makes a lock whose holder is what the word says, and stays so: no program holds it.
func (s *stage) given(word lockadmin.Life, name string) {
	s.t.Helper()
	s.sql("SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'app ' || $1, '1 h')", name)
	if word == lockadmin.LifeUnknown {
		s.sql("UPDATE pglock.locks SET acquired_at = acquired_at + interval '1 h' WHERE name = $1", name)
		return // it got its lock a moment ago, for an hour
	}
	s.sql("UPDATE pglock.locks SET acquired_at = acquired_at - interval '1 min' WHERE name = $1", name)
	signed, mark := "-30 s", "" // its last sign of life
	switch word {
	case lockadmin.LifeAlive:
		signed = "1 h"
	case lockadmin.LifeDead:
		mark = "1" // that no connection has any more
	}
	s.sql(`INSERT INTO pglock.sessions (session_id, holder, seen_at, alive_until, holds_until, mark, pid, seen_by)
		SELECT session_id, holder, clock_timestamp() + $2::text::interval, clock_timestamp(),
			clock_timestamp() + interval '1 h', nullif($3, '')::bigint, 1, 1 FROM pglock.locks WHERE name = $1`, name, signed, mark)
}
