package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// found describes what there is. The version is what the function schema_version() returns, which every step
// replaces; golang-migrate's note of it is for other tools.
type found struct {
	schema, made, table bool // there is a schema, the functions of pglock in it, and golang-migrate's table
	version             int  // 0 without functions, or if the user may not call them
	noted               *int // nil if nothing is noted, or the user may not read it
	dirty               bool

	user, owner, right         string // the right that the owner has, and that changes need
	callable, mayChange, roles bool
	enters                     bool // the user has USAGE on the schema
	member                     bool // of pglock_user, with NOINHERIT
	mayMakeRoles               bool // or has them already
}

const facts = `SELECT n.oid IS NOT NULL, v.oid IS NOT NULL, t.oid IS NOT NULL,
	coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_function_privilege(v.oid, 'EXECUTE'), false),
	coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(t.oid, 'SELECT'), false),
	coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
	CASE WHEN v.oid IS NOT NULL THEN pg_has_role(v.proowner, 'USAGE')
		WHEN n.oid IS NOT NULL THEN has_schema_privilege(n.oid, 'CREATE')
		ELSE has_database_privilege(d.oid, 'CREATE') END,
	CASE WHEN v.oid IS NOT NULL THEN format('the rights of its owner "%s"', pg_get_userbyid(v.proowner))
		WHEN n.oid IS NOT NULL THEN 'the right CREATE on it'
		ELSE format('the right CREATE on database "%s"', d.datname) END,
	current_user, pg_get_userbyid(coalesce(v.proowner, n.nspowner, d.datdba)), to_regrole('pglock_user') IS NOT NULL,
	coalesce(pg_has_role(to_regrole('pglock_user'), 'MEMBER') AND NOT pg_has_role(to_regrole('pglock_user'), 'USAGE'),
		false),
	to_regrole('pglock_user') IS NOT NULL AND to_regrole('pglock_admin') IS NOT NULL OR r.rolsuper OR r.rolcreaterole
FROM pg_database d
	JOIN pg_roles r ON r.rolname = current_user
	LEFT JOIN pg_namespace n ON n.nspname = $1
	LEFT JOIN pg_proc v ON v.pronamespace = n.oid AND v.proname = 'schema_version' AND v.pronargs = 0
		AND EXISTS (SELECT FROM pg_proc s WHERE s.pronamespace = n.oid AND s.proname = 'start_client' AND s.pronargs = 0)
	LEFT JOIN pg_class t ON t.relnamespace = n.oid AND t.relname = '` + versionTable + `'
WHERE d.datname = current_database()`

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// look finds out what there is, as far as the user may know. It takes no lock and changes nothing.
func (c config) look(ctx context.Context, db querier) (found, error) {
	f, err := c.lookOnce(ctx, db)
	if vanished(err) { // another migration came between two of its queries
		return c.lookOnce(ctx, db)
	}
	return f, err
}

func (c config) lookOnce(ctx context.Context, db querier) (f found, err error) {
	var readable bool
	err = db.QueryRow(ctx, facts, c.schema).Scan(&f.schema, &f.made, &f.table, &f.callable, &readable, &f.enters,
		&f.mayChange, &f.right, &f.user, &f.owner, &f.roles, &f.member, &f.mayMakeRoles)
	if err == nil && f.made && f.callable {
		err = db.QueryRow(ctx, "SELECT "+c.quoted("schema_version")+"()").Scan(&f.version)
	}
	if err == nil && readable {
		err = db.QueryRow(ctx, "SELECT version, dirty FROM "+c.quoted(versionTable)+" LIMIT 1").Scan(&f.noted, &f.dirty)
	}
	if errors.Is(err, pgx.ErrNoRows) { // nothing is noted
		err = nil
	}
	return f, err
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
