package protocol

// LookBriefly keeps the statements of a transaction from waiting for locks, and from running, for longer than so many
// milliseconds. It returns the server's time.
const LookBriefly = `SELECT (EXTRACT(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8
	FROM pg_catalog.set_config('lock_timeout', $1::pg_catalog.text, true) AS a,
		pg_catalog.set_config('statement_timeout', $2::pg_catalog.text, true) AS b`

// Replayed has one row on a standby, and none on a primary: the standby's time, whether it is connected to its primary,
// whether it has replayed all that it has received, when the last transaction that it has replayed was committed, and
// where it receives from, if the user may know that.
const Replayed = `SELECT
		(EXTRACT(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8,
		EXISTS (SELECT FROM pg_catalog.pg_stat_wal_receiver w WHERE w.pid IS NOT NULL),
		coalesce(pg_catalog.pg_last_wal_receive_lsn() OPERATOR(pg_catalog.<=) pg_catalog.pg_last_wal_replay_lsn(), false),
		(EXTRACT(epoch FROM pg_catalog.pg_last_xact_replay_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8,
		coalesce((SELECT pg_catalog.concat(w.sender_host, ', port ', w.sender_port) FROM pg_catalog.pg_stat_wal_receiver w
			WHERE w.sender_host IS NOT NULL), '')
	WHERE pg_catalog.pg_is_in_recovery()`

// The next two read catalogs alone, so they also work where the schema is missing or its tables are locked.

// Elsewhere tells in which other databases of the server connections have the names that pglock gives them, how many,
// and some of the names; and in which other schemas of this database pglock is. Programs that are connected here too
// do not count: they would find their locks here. Whoever looks into a schema runs what others have made there. So it
// comes with its owner, and last, unless everybody who can make objects there, or has made a function or an operator,
// can act as whoever has logged in, or as the owner of our own schema, anyway.
const Elsewhere = `SELECT a.datname::pg_catalog.text, NULL, pg_catalog.count(*), (pg_catalog.array_agg(DISTINCT a.application_name))[1:3], NULL
	FROM pg_catalog.pg_stat_activity a
	WHERE pg_catalog.starts_with(a.application_name, 'pglock ') AND a.application_name OPERATOR(pg_catalog.!~) '/pglock-admin\['
		AND a.datname OPERATOR(pg_catalog.<>) pg_catalog.current_database()
		AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity h WHERE h.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
			AND h.application_name OPERATOR(pg_catalog.=) a.application_name)
	GROUP BY a.datname
	UNION ALL
	SELECT pg_catalog.current_database()::pg_catalog.text, n.nspname::pg_catalog.text, 0, NULL,
		CASE WHEN n.oid OPERATOR(pg_catalog.=) ANY (
			SELECT m.place
			FROM (
				SELECT s.oid, s.nspowner FROM pg_catalog.pg_namespace s
				UNION SELECT s.oid, a.grantee FROM pg_catalog.pg_namespace s, pg_catalog.aclexplode(s.nspacl) a
					WHERE a.privilege_type OPERATOR(pg_catalog.=) 'CREATE'
				UNION SELECT p.pronamespace, p.proowner FROM pg_catalog.pg_proc p
				UNION SELECT o.oprnamespace, o.oprowner FROM pg_catalog.pg_operator o) m (place, maker)
				JOIN pg_catalog.pg_database d ON d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
				LEFT JOIN pg_catalog.pg_namespace own ON own.nspname OPERATOR(pg_catalog.=) $1::pg_catalog.text
				LEFT JOIN pg_catalog.pg_roles named ON named.oid OPERATOR(pg_catalog.=) m.maker
				LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=)
					CASE WHEN named.rolname OPERATOR(pg_catalog.=) 'pg_database_owner' THEN d.datdba ELSE m.maker END
			WHERE (pg_catalog.pg_has_role(r.oid, session_user, 'MEMBER') OR pg_catalog.pg_has_role(r.oid, own.nspowner, 'MEMBER')) IS NOT TRUE)
		THEN pg_catalog.pg_get_userbyid(n.nspowner)::pg_catalog.text END
	FROM pg_catalog.pg_namespace n
	WHERE n.nspname OPERATOR(pg_catalog.<>) $1::pg_catalog.text AND n.nspname OPERATOR(pg_catalog.!~) '^pg_'
		AND EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid AND p.proname OPERATOR(pg_catalog.=) 'acquire_lease')
		AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace OPERATOR(pg_catalog.=) n.oid AND c.relname OPERATOR(pg_catalog.=) 'fencing_token_seq')
	ORDER BY 5 NULLS FIRST, 2 NULLS LAST, 3 DESC, 1 LIMIT 20`

// TableLocks tells who has locked one of some tables of a schema in one of some modes, or wants to: the process or the
// prepared transaction, the first of its tables in their order (the record of the installation last, which others only
// read, if they still may), what pg_stat_activity shows of it, whom it waits for itself (everybody else queues behind
// it then), the server's time, to which ages count, whether it has locked a table to change something, whether the user
// may end it and the event that it waits for, as list_backends tells them, for how long it has waited, which the server
// shows to everybody, and the mode.
const TableLocks = `SELECT DISTINCT ON (k.virtualtransaction, k.pid) c.relname::pg_catalog.text, k.pid, p.gid,
		coalesce(a.usename, p.owner)::pg_catalog.text, a.application_name, ` + state + `,
		(EXTRACT(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) coalesce(a.xact_start, p.prepared)) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8,
		CASE WHEN a.backend_start IS NOT NULL THEN pg_catalog.left(a.query, 1000) END,
		(EXTRACT(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) coalesce(a.state_change, p.prepared)) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8,
		CASE WHEN NOT k.granted THEN pg_catalog.pg_blocking_pids(k.pid) END,
		(EXTRACT(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8,
		EXISTS (SELECT FROM pg_catalog.pg_locks o WHERE o.virtualtransaction OPERATOR(pg_catalog.=) k.virtualtransaction
			AND o.pid OPERATOR(pg_catalog.=) k.pid AND o.locktype OPERATOR(pg_catalog.=) 'relation' AND o.granted
			AND o.mode OPERATOR(pg_catalog.<>) ALL (ARRAY['AccessShareLock', 'RowShareLock'])),
		CASE WHEN p.gid IS NULL THEN ` + mayEnd + ` ELSE me.rolsuper OR p.owner OPERATOR(pg_catalog.=) me.rolname END,
		` + waitsFor + `,
		(EXTRACT(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) k.waitstart) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8,
		k.mode
	FROM pg_catalog.pg_locks k
		JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) k.relation
		JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace AND n.nspname OPERATOR(pg_catalog.=) $1::pg_catalog.text
		JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) k.database AND d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
		LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) k.pid
		LEFT JOIN pg_catalog.pg_locks u ON k.pid IS NULL AND u.pid IS NULL AND u.transactionid IS NOT NULL
			AND u.virtualtransaction OPERATOR(pg_catalog.=) k.virtualtransaction
		LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction OPERATOR(pg_catalog.=) u.transactionid
		` + roles + `
	WHERE c.relname OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.text[]) AND k.mode OPERATOR(pg_catalog.=) ANY ($3::pg_catalog.text[])
		AND k.locktype OPERATOR(pg_catalog.=) 'relation'
	ORDER BY k.virtualtransaction, k.pid, k.granted, p.gid,
		c.relname OPERATOR(pg_catalog.=) 'installation' AND k.mode OPERATOR(pg_catalog.<>) 'AccessExclusiveLock',
		pg_catalog.array_position($2::pg_catalog.text[], c.relname::pg_catalog.text), k.mode LIMIT 20`

// mayEnd says whether the user may end process a: me and r are the user and the process's one, by roles. state is NULL
// where the server does not show what the process does.
const (
	mayEnd = `(me.rolsuper OR NOT r.rolsuper)
			AND (pg_catalog.pg_has_role(r.oid, 'USAGE') OR pg_catalog.pg_has_role('pg_signal_backend', 'USAGE'))`
	state    = `CASE WHEN a.state OPERATOR(pg_catalog.<>) 'disabled' THEN a.state END`
	waitsFor = `a.wait_event_type OPERATOR(pg_catalog.||) ': ' OPERATOR(pg_catalog.||) a.wait_event`
	roles    = `JOIN pg_catalog.pg_roles me ON me.rolname OPERATOR(pg_catalog.=) current_user
		LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) a.usesysid`
)

// InTheWay tells of some processes what pg_stat_activity shows of them, the server's time, whether they have passed a
// fence of a schema, whether they keep writers from one of its tables, whether the user may end them, and the events
// that they wait for.
const InTheWay = `SELECT a.pid, a.usename::pg_catalog.text, a.application_name, ` + state + `,
		(EXTRACT(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) a.xact_start) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8,
		(EXTRACT(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) a.state_change) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8,
		(EXTRACT(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8,
		EXISTS (SELECT FROM pg_catalog.pg_locks k
				JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) k.relation AND c.relname OPERATOR(pg_catalog.=) 'fences'
				JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace AND n.nspname OPERATOR(pg_catalog.=) $1::pg_catalog.text
			WHERE k.pid OPERATOR(pg_catalog.=) a.pid AND k.granted AND k.mode OPERATOR(pg_catalog.=) 'RowExclusiveLock'),
		EXISTS (SELECT FROM pg_catalog.pg_locks k
				JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) k.relation
				JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace AND n.nspname OPERATOR(pg_catalog.=) $1::pg_catalog.text
			WHERE k.pid OPERATOR(pg_catalog.=) a.pid AND k.granted AND k.locktype OPERATOR(pg_catalog.=) 'relation'
				AND k.mode OPERATOR(pg_catalog.=) ANY ($3::pg_catalog.text[])),
		` + mayEnd + `, ` + waitsFor + `
	FROM pg_catalog.pg_stat_activity a
		` + roles + `
	WHERE a.pid OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.int4[])
	ORDER BY a.pid`

// PreparedInTheWay tells for which prepared transactions some processes wait that want a table for themselves alone:
// any lock of the table is in the way of that. It tells the process, the transaction and its owner, its age, the
// server's time, whether it keeps writers from the table, and whether the user may end it.
const PreparedInTheWay = `SELECT k.pid, p.gid, p.owner::pg_catalog.text,
		(EXTRACT(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) p.prepared) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8,
		(EXTRACT(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8,
		pg_catalog.bool_or(o.mode OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.text[])),
		me.rolsuper OR p.owner OPERATOR(pg_catalog.=) me.rolname
	FROM pg_catalog.pg_locks k
		JOIN pg_catalog.pg_locks o ON o.pid IS NULL AND o.granted AND o.locktype OPERATOR(pg_catalog.=) 'relation'
			AND o.database OPERATOR(pg_catalog.=) k.database AND o.relation OPERATOR(pg_catalog.=) k.relation
		JOIN pg_catalog.pg_locks u ON u.pid IS NULL AND u.virtualtransaction OPERATOR(pg_catalog.=) o.virtualtransaction
		JOIN pg_catalog.pg_prepared_xacts p ON p.transaction OPERATOR(pg_catalog.=) u.transactionid
		JOIN pg_catalog.pg_roles me ON me.rolname OPERATOR(pg_catalog.=) current_user
	WHERE k.pid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.int4[]) AND NOT k.granted
		AND k.locktype OPERATOR(pg_catalog.=) 'relation' AND k.mode OPERATOR(pg_catalog.=) 'AccessExclusiveLock'
	GROUP BY k.pid, p.gid, p.owner, p.prepared, me.rolsuper, me.rolname
	ORDER BY p.prepared, p.gid LIMIT 20`

// The statements of prune, each in its own transaction. PostgreSQL 14 reads no interval of more than 2^31 seconds or
// microseconds from text.

// SweepAll removes leftovers, at most so many of each kind, and leaves the history alone.
func SweepAll(schema string) string {
	return inSchema(`SELECT {{schema}}.sweep($1::pg_catalog.int4, false), NULL::pg_catalog.text`, schema)
}

// PruneHistory removes entries of the history that are older than so many seconds: it looks at so many, after the
// given one.
func PruneHistory(schema string) string {
	return inSchema(`SELECT removed, next::pg_catalog.text
		FROM {{schema}}.prune_history(pg_catalog.make_interval(secs => $1::pg_catalog.float8), $2::pg_catalog.int4, $3::pg_catalog.text::pg_catalog.int8)`, schema)
}

// PruneLocks removes locks that have been free for longer than so many seconds: at most so many names, after the
// given one.
func PruneLocks(schema string) string {
	return inSchema(`SELECT removed, next
		FROM {{schema}}.prune_locks(pg_catalog.make_interval(secs => $1::pg_catalog.float8), $2::pg_catalog.int4, $3::pg_catalog.text)`, schema)
}
