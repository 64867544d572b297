package metrics_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/metrics"
	"github.com/pglock-dev/pglock/lockadmin"
)

func askHealth(t *testing.T, admin *lockadmin.Admin, method string, c metrics.Config) (int, string) {
	t.Helper()
	handler := must.Get(metrics.Health(admin, c))(t)
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(method, "/healthz", nil))
	return answer.Code, answer.Body.String()
}

func TestHealthSaysInPlainWordsWhetherTheDatabaseCanServe(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	pool := db.Pool(t)
	admin := newAdmin(t, pool)
	check := func(code int, text string, c metrics.Config) {
		t.Helper()
		got, body := askHealth(t, admin, http.MethodGet, c)
		if got != code || !strings.Contains(body, text) {
			t.Errorf("%d %q, want %d %q", got, body, code, text)
		}
		config := pool.Config().ConnConfig
		for _, secret := range []string{config.Host, config.Password, "user=", db.Name()} {
			if secret != "" && strings.Contains(body, secret) {
				t.Errorf("%q tells %q", body, secret)
			}
		}
	}
	check(http.StatusOK, "ok\n", metrics.Config{})
	if code, _ := askHealth(t, admin, http.MethodPost, metrics.Config{}); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code)
	}
	check(http.StatusServiceUnavailable, "did not answer within 1ns", metrics.Config{Timeout: time.Nanosecond})
	execute(t, conn,
		`CREATE OR REPLACE FUNCTION pglock.serves_from() RETURNS int LANGUAGE sql AS 'SELECT 1000'; ALTER FUNCTION pglock.schema_version() RENAME TO was;
		CREATE FUNCTION pglock.schema_version() RETURNS int LANGUAGE sql AS 'SELECT 1000'`)
	check(http.StatusServiceUnavailable, "does not fit this program", metrics.Config{})
	execute(t, conn, `DROP SCHEMA pglock CASCADE`)
	check(http.StatusServiceUnavailable, "the schema is missing", metrics.Config{})
}

func TestHealthDoesNotTellHowItConnects(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	admin := newAdmin(t, pool)
	pool.Close()
	code, body := askHealth(t, admin, http.MethodGet, metrics.Config{})
	if code != http.StatusServiceUnavailable || body != "no connection to the database\n" {
		t.Errorf("%d %q", code, body)
	}
}
