package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// found describes what there is. The version is what the function schema_version() would return, which every step
// replaces; golang-migrate's note of it is for other tools. Whoever looks runs nothing that is in the schema: it may be
// a stranger's, and would run with the rights of the user.
type found struct {
	schema, made, table bool // there is a schema, the functions of pglock in it, and golang-migrate's table
	version             int  // 0 without functions, or if the user may not call them
	noted               *int // nil if nothing is noted, or the user may not read it
	dirty               bool

	user, owner, right  string // the right that the owner has, and that changes need
	callable, mayChange bool
	roles               bool // pglock_user has USAGE on the schema
	enters              bool // the user has it
	member              bool // of pglock_user, with NOINHERIT
	mayMakeRoles        bool // or has them already
	mayRun              bool // what the owner has made, such as triggers, gains no rights by it
}

// facts names the schema of each function of the server for whose arguments there could be a better match elsewhere:
// what everybody may make in public would run with the rights of the user.
const facts = `SELECT n.oid IS NOT NULL, v.oid IS NOT NULL, t.oid IS NOT NULL,
	coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_function_privilege(v.oid, 'EXECUTE'), false),
	coalesce(substring(v.prosrc FROM '^SELECT ([0-9]{1,9})$')::int, 0),
	coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(t.oid, 'SELECT') AND t.relkind = 'r'
		AND NOT row_security_active(t.oid), false),
	coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
	CASE WHEN v.oid IS NOT NULL THEN pg_has_role(v.proowner, 'USAGE')
		WHEN n.oid IS NOT NULL THEN has_schema_privilege(n.oid, 'CREATE')
		ELSE has_database_privilege(d.oid, 'CREATE') END,
	CASE WHEN v.oid IS NOT NULL THEN pg_catalog.format('the rights of its owner "%s"', pg_get_userbyid(v.proowner))
		WHEN n.oid IS NOT NULL THEN 'the right CREATE on it'
		ELSE pg_catalog.format('the right CREATE on database "%s"', d.datname) END,
	current_user, pg_get_userbyid(coalesce(v.proowner, n.nspowner, d.datdba)),
	coalesce(pg_catalog.has_schema_privilege(to_regrole('pglock_user')::oid, n.oid, 'USAGE'), false),
	coalesce(pg_catalog.pg_has_role(to_regrole('pglock_user'), 'MEMBER')
		AND NOT pg_catalog.pg_has_role(to_regrole('pglock_user'), 'USAGE'), false),
	to_regrole('pglock_user') IS NOT NULL AND to_regrole('pglock_admin') IS NOT NULL OR r.rolsuper OR r.rolcreaterole,
	NOT EXISTS (SELECT FROM pg_roles s WHERE (s.rolsuper OR s.rolcreaterole OR s.rolname IN
			('pg_execute_server_program', 'pg_write_server_files', 'pg_read_server_files'))
			AND (pg_has_role(session_user, s.oid, 'MEMBER') OR pg_has_role(current_user, s.oid, 'MEMBER')))
		OR coalesce(pg_has_role(t.relowner, r.oid, 'MEMBER') AND pg_has_role(
		CASE pg_get_userbyid(n.nspowner) WHEN 'pg_database_owner' THEN d.datdba ELSE n.nspowner END, r.oid,
		'MEMBER'), false)
FROM pg_database d
	JOIN pg_roles r ON r.rolname = current_user
	LEFT JOIN pg_namespace n ON n.nspname = $1
	LEFT JOIN pg_proc v ON v.pronamespace = n.oid AND v.proname = 'schema_version' AND v.pronargs = 0
		AND EXISTS (SELECT FROM pg_proc s WHERE s.pronamespace = n.oid AND s.proname = 'start_client' AND s.pronargs = 0)
	LEFT JOIN pg_class t ON t.relnamespace = n.oid AND t.relname = '` + versionTable + `'
WHERE d.datname = current_database()`

// look finds out what there is, as far as the user may know. It takes no lock and changes nothing.
func (c config) look(ctx context.Context, conn *pgx.Conn) (found, error) {
	f, err := c.lookOnce(ctx, conn)
	if vanished(err) { // another migration came between two of its queries
		return c.lookOnce(ctx, conn)
	}
	return f, err
}

func (c config) lookOnce(ctx context.Context, conn *pgx.Conn) (f found, err error) {
	var readable bool
	err = conn.QueryRow(ctx, facts, c.schema).Scan(&f.schema, &f.made, &f.table, &f.callable, &f.version, &readable,
		&f.enters, &f.mayChange, &f.right, &f.user, &f.owner, &f.roles, &f.member, &f.mayMakeRoles, &f.mayRun)
	if !f.callable {
		f.version = 0
	}
	if err == nil && readable {
		f.noted, f.dirty, err = c.readNote(ctx, conn)
	}
	return f, err
}

// readNote reads golang-migrate's table. A SELECT would run a view, and functions in the table's indexes; COPY refuses
// the one and reads no others, nor policies, if they are switched off.
func (c config) readNote(ctx context.Context, conn *pgx.Conn) (noted *int, dirty bool, err error) {
	var kept firstRow
	_, err = conn.PgConn().CopyTo(ctx, &kept, "SET LOCAL row_security = off; COPY "+c.quoted(versionTable)+
		" (version, dirty) TO STDOUT")
	if err != nil || kept == "" {
		return nil, false, err
	}
	row, _, _ := strings.Cut(string(kept), "\n")
	first, second, _ := strings.Cut(row, "\t")
	version, err := strconv.Atoi(first)
	return &version, second == "t", err
}

// firstRow keeps the beginning of what is written first, as a stranger's table may be long. The server sends row by
// row; an error would close the connection.
type firstRow string

func (r *firstRow) Write(row []byte) (int, error) {
	if *r == "" {
		*r = firstRow(row[:min(len(row), 1<<10)])
	}
	return len(row), nil
}

func vanished(err error) bool {
	pgErr, is := errors.AsType[*pgconn.PgError](err)
	return is && slices.Contains([]string{"3F000", "42883", "42P01"}, pgErr.Code)
}

func (c config) quoted(name string) string { return pgx.Identifier{c.schema, name}.Sanitize() }

// contradicted says that neither the schema nor a failed step explains the note. A failed step is rolled back, and
// golang-migrate's own driver leaves a dirty mark at the version to which it led.
func (f found) contradicted() bool {
	if f.noted == nil {
		return false
	}
	apart := max(*f.noted, 0) - f.version
	return apart != 0 && !(f.dirty && (apart == 1 || apart == -1))
}

// outdated says that the note must be corrected, which can be done without asking anybody.
func (f found) outdated() bool { return f.noted != nil && f.dirty && !f.contradicted() }

func (c config) mayLook(f found) error {
	if !f.made || f.callable {
		return nil
	}
	e := &RightError{Schema: c.schema, Have: -1, User: f.user, Lacks: "the right to use it", Owner: f.owner}
	if f.enters {
		e.Lacks = "the right EXECUTE on " + c.quoted("schema_version") + "()"
	}
	if f.roles {
		e.Role, e.Member = "pglock_user", f.member
	}
	return e
}

// checkCode says that code of the owner would run with rights that the owner must not have.
func (c config) checkCode(f found) error {
	if f.mayRun || !f.table { // made without a table, check refuses it
		return nil
	}
	return &RightError{Schema: c.schema, Have: f.version, User: f.user, Owner: f.owner, Code: true,
		Lacks: "the rights of its owner, whose code could run"}
}

// checkRoles says that the first step would be refused; the step says so by itself.
func (c config) checkRoles(f found) error {
	if f.made || f.mayMakeRoles {
		return nil
	}
	return &RightError{Schema: c.schema, User: f.user, Lacks: "the right CREATEROLE, which the roles pglock_user and " +
		"pglock_admin need"}
}

// check says why a schema must not or cannot be changed.
func (c config) check(f found) error {
	if err := c.mayLook(f); err != nil {
		return err
	}
	switch {
	case f.version > c.latest:
		return fmt.Errorf("%w: %q has version %d, this program knows %d", ErrNewer, c.schema, f.version, c.latest)
	case !f.mayChange:
		return &RightError{Schema: c.schema, Have: f.version, User: f.user, Lacks: f.right, Owner: f.owner}
	case f.made && !f.table: // golang-migrate would run the files again
		return fmt.Errorf("%w: %q: continue with that tool", ErrForeign, c.schema)
	case f.contradicted():
		return &DirtyError{Schema: c.schema, Version: *f.noted, Before: f.version}
	}
	return nil
}
