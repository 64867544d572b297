package lockadmin

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

func TestColumnsAreTheSameInEveryModeOfPgx(t *testing.T) {
	type row struct {
		mode  pglock.Mode
		token pglock.Token
		limit int
		is    bool
		json  []byte
		since time.Time
		lasts time.Duration
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	conn := pgtest.Database(t).Conn(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		scan := func(sql string, args ...any) row {
			got := row{"x", 1, 1, true, []byte("x"), at, 1}
			err := conn.QueryRow(t.Context(), sql, append([]any{mode}, args...)...).Scan(null(&got.mode),
				null(&got.token), null(&got.limit), null(&got.is), null(&got.json), moment(&got.since),
				micros(&got.lasts))
			if err != nil {
				t.Errorf("%v: %v", mode, err)
			}
			return got
		}
		none := scan(`SELECT NULL::text, NULL::bigint, NULL::int, NULL::bool, NULL::text, NULL::bigint, NULL::bigint`)
		if none.mode != "" || none.token != 0 || none.limit != 0 || none.is || none.json != nil ||
			!none.since.IsZero() || none.lasts != 0 {
			t.Errorf("%v: %+v, want zero for NULL", mode, none)
		}
		some := scan(`SELECT 'shared'::text, 9223372036854775807, 7, true, '{"a": 1}'::text, $1::bigint, 1500::bigint`,
			at.UnixMicro())
		if some.mode != pglock.ModeShared || some.token != 1<<63-1 || some.limit != 7 || !some.is ||
			string(some.json) != `{"a": 1}` || some.since != at || some.lasts != 1500*time.Microsecond {
			t.Errorf("%v: %+v", mode, some)
		}
	}
}
