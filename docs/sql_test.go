package docs_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

// Operators copy this SQL at three in the morning. What is for psql alone, or has a gap to fill, is left out.
func TestTheSQLForOperatorsRuns(t *testing.T) {
	t.Parallel()
	blocks := regexp.MustCompile("(?ms)^ *```sql\n(.*?)^ *```$")
	for _, page := range []string{"operations.md", "connections.md", "failover.md", "guards.md"} {
		ran := 0
		for i, block := range blocks.FindAllStringSubmatch(read(t, "docs", page), -1) {
			if strings.ContainsAny(block[1], `…\`) {
				continue
			}
			ran++
			t.Run(fmt.Sprint(page, i), func(t *testing.T) {
				t.Parallel()
				conn := pgtest.Database(t).Conn(t)
				script := "CREATE TABLE public.accounts (id int);" + comments.ReplaceAllString(block[1], "")
				for s := range strings.SplitAfterSeq(strings.TrimSpace(script), ";") {
					if _, err := conn.Exec(t.Context(), s, pgx.QueryExecModeSimpleProtocol); err != nil {
						t.Errorf("%s: %v", s, err)
					}
				}
			})
		}
		if ran == 0 {
			t.Errorf("%s: no SQL was found", page)
		}
	}
}

var comments = regexp.MustCompile(`--.*`)
