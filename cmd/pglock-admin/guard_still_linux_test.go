package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// The command stands still, as after Ctrl-Z, when it has locked the table.
func TestI16_AGuardCommandThatStandsStillLetsGoOfTheTable(t *testing.T) {
	t.Parallel()
	for command, waits := range map[string]string{
		"guard add jobs": "INSERT INTO jobs VALUES (1)", "guard drop done --yes": "SELECT FROM done",
	} {
		t.Run(command, func(t *testing.T) {
			db := pgtest.Parallel(t)
			execute(t, db, "CREATE TABLE jobs (id int); CREATE TABLE done (id int)")
			in(t, db.URL(), "guard", "add", "done").want(t, cli.ExitOK)
			before := guards(t, db)
			reader := must.Get(db.Conn(t).Begin(t.Context()))(t)
			must.Get(reader.Exec(t.Context(), "LOCK TABLE jobs, done IN ROW EXCLUSIVE MODE"))(t)
			g, through := newGate(t, db.URL())
			args := append(strings.Fields(command), "--timeout", "3m", "--lock-timeout", "2m")
			done := must.Go(func() answer { return in(t, through, args...) })
			blocked(t, db)
			g.stall()
			must.Do(t, reader.Commit(t.Context()))
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if _, err := db.Conn(t).Exec(ctx, waits); err != nil {
				t.Error(err)
			}
			g.flow()
			(<-done).want(t, cli.ExitFailure, "nothing was changed", "SQLSTATE 25P03", "try: "+cli.Again)
			if after := guards(t, db); len(after) != len(before) {
				t.Errorf("%+v", after)
			}
		})
	}
}
