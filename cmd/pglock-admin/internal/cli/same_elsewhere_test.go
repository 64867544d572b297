//go:build unix

package cli

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// A command for another database shows no password, and works when it is pasted, or says what is missing.
func TestCommandForAnotherDatabaseKeepsThePassword(t *testing.T) {
	t.Parallel()
	for url, keeps := range map[string]bool{
		"postgres://app:s3cret@db:5432/ci":              true,
		"postgresql://app:s3cret@db/ci?sslmode=disable": true,
		// the shell would cut in the wrong place
		"postgres://app:s3cret@db/ci?application_name=/ci":                          false,
		"postgres://ci:s3cret@ci/ci?sslmode=disable&connect_timeout=3":              true,
		"postgres://app:ci%2Fs3cret@db/ci?target_session_attrs=read-write":          true,
		"postgres://app@db/ci?password=s3cret&sslmode=disable":                      false,
		"postgres://app:s3cret@db?dbname=ci&sslmode=disable":                        false,
		"postgres://app:s3cret@db/c%69?sslmode=disable":                             false,
		"host=db user=app password=s3cret dbname=ci sslmode=disable":                false,
		"postgres://app:s3cret@db/ci?application_name=$(touch%20pwned)`x`\"&a=;'\\": false,
	} {
		config := must.Get(pgxpool.ParseConfig(url))(t)
		o := &Options{Schema: DefaultSchema, Config: config, Getenv: func(name string) string {
			return map[string]string{"DATABASE_URL": url}[name]
		}}
		command := o.Elsewhere("pglock-admin why report", "app")
		if strings.Contains(command, "s3cret") {
			t.Errorf("%s: the password is shown: %s", url, command)
		}
		if kept := strings.HasPrefix(command, "export DATABASE_URL="); kept != keeps || o.LeavesOut(command) == keeps {
			t.Errorf("%s: %s: leaves out the password: %v", url, command, o.LeavesOut(command))
		}
		script := strings.Replace(command, "pglock-admin why report --database-url", "printf %s", 1)
		if keeps {
			script = strings.Replace(command, "pglock-admin why report", `sh -c 'printf %s "$DATABASE_URL"'`, 1)
		}
		shell := exec.Command("sh", "-c", script)
		shell.Env = append(os.Environ(), "DATABASE_URL="+url)
		out := must.Get(shell.Output())(t)
		there, err := pgx.ParseConfig(string(out))
		if err != nil {
			t.Errorf("%s: %s: %v", url, command, err)
			continue
		}
		if c := config.ConnConfig; there.Database != "app" || there.Host != c.Host || there.User != c.User || keeps &&
			there.Password != c.Password {
			t.Errorf("%s: %s leads to %s", url, command, out)
		}
	}
	if _, err := os.Stat("pwned"); err == nil {
		t.Error("a command did what a connection string says")
	}
}
