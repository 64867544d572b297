package lockadmin_test

import (
	"net"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
)

func TestAnAdminKnowsItsPlace(t *testing.T) {
	t.Parallel()
	const schema = "my locks"
	db := pgtest.EmptyDatabase(t)
	must.Do(t, migrations.Up(t.Context(), db.URL(), migrations.WithSchema(schema)))
	pool := db.Pool(t, func(c *pgxpool.Config) { // it may use another server, too
		other := &pgconn.FallbackConfig{Host: "standby.example.com", Port: 5433}
		c.ConnConfig.Fallbacks = append(c.ConnConfig.Fallbacks, other)
	})
	admin := must.Get(lockadmin.New(t.Context(), pool, lockadmin.WithSchema(schema)))(t)
	first := pool.Config().ConnConfig
	servers := net.JoinHostPort(first.Host, strconv.Itoa(int(first.Port))) + ", standby.example.com:5433"
	place := admin.Place()
	if want := (lockadmin.Place{Server: servers, Database: db.Name(), Schema: schema}); place != want {
		t.Errorf("%+v, want %+v", place, want)
	}
	if got, want := place.String(), servers+", database "+db.Name()+`, schema "my locks"`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if place.Schema = "pglock"; place.String() != servers+", database "+db.Name() {
		t.Errorf("%s names the usual schema", place)
	}
}
