package stage

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// variable makes this program a worker that says a line and ends as the variable says.
const variable = "PGLOCK_STAGE_TEST_WORKER"

func TestMain(m *testing.M) {
	if end := os.Getenv(variable); end != "" {
		os.Exit(work(Play{Name: "test", Worker: func(_ context.Context, w *Worker) error {
			w.Say("works on %v", w.Args)
			if end == "fail" {
				return errors.New("broken")
			}
			<-w.Orders
			return nil
		}}))
	}
	pgtest.Main(m)
}

// play performs a story in a database of its own, and checks that nothing is left there.
func play(t *testing.T, story func(context.Context, *Stage) (string, error)) (said string, err error) {
	t.Helper()
	db := pgtest.EmptyDatabase(t)
	t.Setenv(pgserver.Variable, string(pgserver.KindURL)) // the tests' server, and no other
	var out strings.Builder
	err = perform(t.Context(), Play{Name: "test", Tables: "CREATE TABLE things (n int)", Story: story}, db.URL(), &out)
	var left int
	const schemas = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pglock%'"
	if err := db.Conn(t).QueryRow(t.Context(), schemas).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d schemas are left, %v", left, err)
	}
	return out.String(), err
}

func TestAPromiseThatTheDatabaseDoesNotHaveFailsTheStory(t *testing.T) {
	said, err := play(t, func(ctx context.Context, s *Stage) (string, error) {
		return "all is well", s.Check(ctx, "things", 1, "SELECT count(*) FROM things")
	})
	if !errors.Is(err, ErrPromise) || strings.Contains(said, "SHOWN") {
		t.Errorf("%v\n%s", err, said)
	}
	said, err = play(t, func(ctx context.Context, s *Stage) (string, error) {
		return "all is well", s.Check(ctx, "things", 0, "SELECT count(*) FROM things")
	})
	if err != nil || !strings.HasSuffix(said, "\nSHOWN: all is well\n") {
		t.Errorf("%v\n%s", err, said)
	}
}

func TestRolesThatWereThereStayWithTheirMembers(t *testing.T) {
	server := pgtest.Dedicated(t, nil) // roles belong to the whole server
	t.Setenv(pgserver.Variable, string(pgserver.KindURL))
	conn := must.Get(pgx.Connect(t.Context(), server.URL()))(t)
	defer conn.Close(context.WithoutCancel(t.Context()))
	must.Get(conn.Exec(t.Context(), "CREATE ROLE pglock_user; CREATE ROLE pglock_admin IN ROLE pglock_user; "+
		"CREATE ROLE app IN ROLE pglock_admin"))(t)
	story := func(context.Context, *Stage) (string, error) { return "nothing", nil }
	must.Do(t, perform(t.Context(), Play{Name: "test", Story: story}, server.URL(), &strings.Builder{}))
	if members := pgtest.One[int](t, conn, "SELECT count(*) FROM pg_auth_members m JOIN pg_roles r ON "+
		"r.oid = m.roleid WHERE r.rolname LIKE 'pglock%'"); members != 2 {
		t.Errorf("%d memberships are left of 2", members)
	}
	if left := pgtest.One[int](t, conn, "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pglock%'"); left != 0 {
		t.Errorf("%d schemas are left", left)
	}
}

func TestAProcessThatFailsFailsTheStory(t *testing.T) {
	t.Setenv(variable, "fail")
	_, err := play(t, func(ctx context.Context, s *Stage) (string, error) {
		if _, err := s.Start("A"); err != nil {
			return "", err
		}
		<-ctx.Done()
		return "", ctx.Err()
	})
	if err == nil || !strings.Contains(err.Error(), "A: exit status 1") {
		t.Error(err)
	}
}

func TestProcessesEndWhenTheStoryLetsGoOfThem(t *testing.T) {
	t.Setenv(variable, "wait")
	said, err := play(t, func(ctx context.Context, s *Stage) (string, error) {
		all, err := s.StartAll("A", "B", "C")
		if err != nil {
			return "", err
		}
		if err := s.AwaitAll(ctx, 3, "works on []"); err != nil {
			return "", err
		}
		if err := errors.Join(all[0].Stop(ctx), all[1].Kill()); err != nil { // C ends with the story
			return "", err
		}
		_, err = s.Await(ctx, "more", all[0])
		if !errors.Is(err, errEnded) {
			t.Errorf("waiting for a process that has ended: %v", err)
		}
		return "done", nil
	})
	if err != nil || !strings.Contains(said, "B         is KILLED") {
		t.Errorf("%v\n%s", err, said)
	}
}
