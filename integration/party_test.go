package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// party is a program that asks for one lock at a time by the documented functions alone. It has a session of its own
// and a label that nobody else has, by which lists show it. Several share a connection.
type party struct {
	on       *peer
	label    string
	mode     string // exclusive, shared or "limit 2"
	ttl      time.Duration
	key, id  uuid.UUID
	owner    uuid.UUID
	nested   bool   // its owner says that it holds locks
	name     string // of the lock
	token    int64
	slot     int
	granted  bool
	ticket   int64
	handed   []int // the slots that its request granted to others
	metadata string
}

func (p *peer) party(label, mode string, ttl time.Duration) *party {
	return &party{on: p, label: label, mode: mode, ttl: ttl, key: uuid.New(), id: uuid.New(), owner: uuid.New(),
		metadata: fmt.Sprintf(`{"of": %q}`, label)}
}

// ask asks for the lock, or asks again, and waits for it if it wants.
func (a *party) ask(t *testing.T, name string, wait, again bool) error {
	t.Helper()
	a.name, a.granted, a.ticket = name, false, 0
	mode, capacity, _ := strings.Cut(a.mode, " ")
	var token, ticket *int64
	var slot *int
	err := a.on.QueryRow(t.Context(), `SELECT granted, token, (more ->> 'slot')::int, (more ->> 'ticket')::bigint,
			ARRAY(SELECT json_array_elements_text(more -> 'handed' -> 'slots')::int)
		FROM pglock.acquire_lease($1, $2, $3, $4, $5, $6, $7, $8, nullif($9, '')::int, $10, '1 min', $11, $12)`,
		name, a.id, a.key, a.label, a.ttl, a.metadata, again, mode, capacity, wait, a.owner, a.nested).
		Scan(&a.granted, &token, &slot, &ticket, &a.handed)
	a.ticket = orZero(ticket)
	if a.granted {
		a.token, a.slot = orZero(token), orZero(slot)
	}
	return err
}

// mustGet asks for the lock, which is free.
func (a *party) mustGet(t *testing.T, name string) *party {
	t.Helper()
	if err := a.ask(t, name, false, false); err != nil || !a.granted {
		t.Fatalf("%s asks for %q: granted %v, %v", a.label, name, a.granted, err)
	}
	return a
}

// mustQueue asks for the lock, which it has to wait for.
func (a *party) mustQueue(t *testing.T, name string) *party {
	t.Helper()
	if err := a.ask(t, name, true, false); err != nil || a.ticket == 0 {
		t.Fatalf("%s queues for %q: granted %v, ticket %d, %v", a.label, name, a.granted, a.ticket, err)
	}
	return a
}

// session is what others see of its session.
func (a *party) session() uuid.UUID { return (&peer{key: a.key}).session() }

// find reads what lists show of its lease, as of a grant that it was handed.
func (a *party) find(t *testing.T) {
	t.Helper()
	if err := a.on.QueryRow(t.Context(), `SELECT token, slot FROM pglock.get_lock($1)
		WHERE held AND holder = $2`, a.name, a.label).Scan(&a.token, &a.slot); err != nil {
		t.Fatalf("%s has no lease of %q: %v", a.label, a.name, err)
	}
	a.granted = true
}

// renew renews the lease: the outcome, and how long it runs.
func (a *party) renew(t *testing.T) (outcome string, left time.Duration) {
	t.Helper()
	var us int64
	if err := a.on.QueryRow(t.Context(), `SELECT outcome, remaining_us
		FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], ARRAY[$4::int])`,
		a.name, a.token, a.id, a.slot).Scan(&outcome, &us); err != nil {
		t.Fatal(err)
	}
	return outcome, time.Duration(us) * time.Microsecond
}

// lost is why the lease is not held; "" while it is.
func (a *party) lost(t *testing.T) string {
	t.Helper()
	return orZero(one[*string](t, a.on, `SELECT reason FROM pglock.check_leases(ARRAY[$1], ARRAY[$2::bigint],
		ARRAY[$3::uuid], ARRAY[$4::int])`, a.name, a.token, a.id, a.slot))
}

// The ways in which a lease ends.
var waysToEnd = map[string]func(t *testing.T, a *party){
	"release_lease": func(t *testing.T, a *party) {
		a.mustEnd(t, `SELECT released FROM pglock.release_lease($1, $2, $3, $4)`, a.name, a.token, a.id, a.slot)
	},
	"release_leases": func(t *testing.T, a *party) {
		a.mustEnd(t, `SELECT released FROM pglock.release_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid],
			ARRAY[$4::int])`, a.name, a.token, a.id, a.slot)
	},
	"give_up": func(t *testing.T, a *party) {
		a.mustEnd(t, `SELECT ended FROM pglock.give_up($1, ARRAY[$2], ARRAY[$3::uuid])`, a.key, a.name, a.id)
	},
	"break_lock": func(t *testing.T, a *party) {
		a.mustEnd(t, `SELECT holder = $3 FROM pglock.break_lock($1, 'test', 'test', $2)`, a.name, a.token, a.label)
	},
}

func (a *party) mustEnd(t *testing.T, sql string, args ...any) {
	t.Helper()
	if !one[bool](t, a.on, sql, args...) {
		t.Fatalf("%s: %s has not ended the lease", sql, a.label)
	}
	a.granted = false
}

// die ends the sessions, as if their programs had been dead for long enough.
func die(t *testing.T, look *peer, all ...*party) {
	t.Helper()
	var keys []uuid.UUID
	for _, a := range all {
		keys = append(keys, a.key)
	}
	look.exec(t, `UPDATE pglock.sessions SET alive_until = clock_timestamp()
		FROM unnest($1::uuid[]) key WHERE session_id = pglock.session_of(key)`, keys)
}

// heldBy are the labels of those who hold a lock, by their slots.
func heldBy(t *testing.T, look *peer, name string) string {
	t.Helper()
	return one[string](t, look, `SELECT coalesce(string_agg(holder, ' ' ORDER BY slot), '')
		FROM pglock.get_lock($1) WHERE held`, name)
}

// queuedFor are the labels of those who are queued for a lock and alive, in their order.
func queuedFor(t *testing.T, look *peer, name string) string {
	t.Helper()
	return one[string](t, look, `SELECT coalesce(string_agg(holder, ' ' ORDER BY place), '')
		FROM pglock.list_waiters($1) WHERE alive`, name)
}

// letPass moves everything that the schema knows of the time into the past, as if so much time had passed. Nobody works
// with the schema meanwhile.
func letPass(t *testing.T, look *peer, d time.Duration) {
	t.Helper()
	look.exec(t, `DO $$ DECLARE change text; BEGIN
		SET LOCAL session_replication_role = replica; -- nobody has done anything
		FOR change IN SELECT format('UPDATE pglock.%I SET %s', c.relname, string_agg(format('%1$I = %1$I - interval ''`+
		fmt.Sprint(d.Milliseconds())+
		` ms''', a.attname), ', ')) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
			WHERE c.relnamespace = 'pglock'::regnamespace AND c.relkind = 'r'
				AND a.atttypid = 'timestamptz'::regtype AND NOT a.attisdropped
				AND (c.relname, a.attname) <> ('installation', 'started') -- which tells one process of the server from another
			GROUP BY c.relname
		LOOP EXECUTE change; END LOOP;
	END $$`)
}
