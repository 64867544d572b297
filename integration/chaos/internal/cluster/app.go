//go:build unix

package cluster

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// The tables of the application that the workers play. A write reads the head of its resource's chain, adds a link
// that names it, and becomes the head. So an update that was lost, or was based on an old value, stays visible for
// ever.
const appTables = `
CREATE TABLE public.cells (resource text PRIMARY KEY, head bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE public.guarded_rows (id text PRIMARY KEY, head bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE public.guarded_whole (id text PRIMARY KEY, head bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE public.links (
	op bigint, resource text, prev bigint NOT NULL, lock text NOT NULL, slot int NOT NULL, token bigint NOT NULL, again boolean NOT NULL,
	PRIMARY KEY (op, resource));
CREATE TABLE public.marks (one boolean PRIMARY KEY, n bigint NOT NULL);
INSERT INTO public.marks VALUES (true, 0);
INSERT INTO public.guarded_rows VALUES ('0', 0); -- so that an unfenced write has a row to change
INSERT INTO public.guarded_whole VALUES ('one', 0);
CREATE FUNCTION public.lets_all_pass() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE PUBLICATION chaos FOR TABLE public.links, public.marks, ` + locksSchema + "." + locksTable

// Heads of the chains, wherever they are kept. A guarded row's resource is its table and its key.
const appHeads = `SELECT resource, head FROM public.cells
	UNION ALL SELECT 'guarded_rows/' || id, head FROM public.guarded_rows
	UNION ALL SELECT 'guarded_whole', head FROM public.guarded_whole`

// Users of the application's database. All have the same password, and no rights on locks but those of pglock_user.
const (
	App      = "app"      // the workers
	Owner    = "keeper"   // owns the guarded tables
	Stranger = "stranger" // has nothing of the application's
)

// makeApp makes the application's tables, guards two of them, and creates the users.
func makeApp(ctx context.Context, conn *pgx.Conn, password string) error {
	if _, err := conn.Exec(ctx, appTables+";"+fmt.Sprintf(`
		CREATE ROLE %[1]s LOGIN PASSWORD '%[4]s' IN ROLE pglock_user;
		CREATE ROLE %[2]s LOGIN PASSWORD '%[4]s' IN ROLE pglock_user;
		CREATE ROLE %[3]s LOGIN PASSWORD '%[4]s' IN ROLE pglock_user;
		ALTER TABLE public.guarded_rows OWNER TO %[2]s;
		ALTER TABLE public.guarded_whole OWNER TO %[2]s;
		GRANT SELECT, INSERT, UPDATE ON public.cells, public.guarded_rows, public.guarded_whole, public.links TO %[1]s`,
		App, Owner, Stranger, password)); err != nil {
		return fmt.Errorf("cluster: make the application's tables: %w", err)
	}
	if err := fencedstore.GuardTable(ctx, conn, "public.guarded_rows", fencedstore.WithTableKey("id")); err != nil {
		return err
	}
	return fencedstore.GuardTable(ctx, conn, "public.guarded_whole")
}

func linkOf(column map[string]string) (l history.Link, err error) {
	number := func(name string) (n int64) {
		if err == nil {
			n, err = strconv.ParseInt(column[name], 10, 64)
		}
		return n
	}
	l = history.Link{Op: number("op"), Resource: column["resource"], Prev: number("prev"), Lock: column["lock"],
		Slot:  int(number("slot")),
		Token: number("token"), Again: column["again"] == "t"}
	return l, err
}

// State reads everything from the primary that checks compare with.
func (c *Cluster) State(ctx context.Context) (s history.State, err error) {
	err = c.ask(ctx, func(conn *pgx.Conn) error { s, err = readState(ctx, conn); return err })
	return s, err
}

func readState(ctx context.Context, conn *pgx.Conn) (s history.State, err error) {
	if s.Versions, err = snapshotVersions(ctx, conn); err != nil {
		return s, err
	}
	rows, _ := conn.Query(ctx, `SELECT op, resource, prev, lock, slot, token, again FROM public.links`)
	if s.Links, err = pgx.CollectRows(rows, pgx.RowToStructByPos[history.Link]); err != nil {
		return s, err
	}
	s.Heads = make(map[string]int64)
	var resource string
	var head int64
	rows, _ = conn.Query(ctx, appHeads)
	_, err = pgx.ForEachRow(rows, []any{&resource, &head}, func() error { s.Heads[resource] = head; return nil })
	return s, err
}
