//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/pgserver"
	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

// told is what the story must tell, in this order.
var told = []string{
	`A         writes "Monday, token `,
	`A         puts "Monday, token `,
	`200 OK`,
	`operator  breaks the lease of A`,
	`B         writes "Tuesday, token `,
	`B         puts "Tuesday, token `,
	`200 OK`,
	`A         writes "late Monday, token 1" into the file: REFUSED by the fence`,
	`A         puts "late Monday, token 1" on the page: REFUSED with 409`,
	`operator  breaks the lease of C`,
	`C         finds its lease lost after it wrote "Wednesday, token`,
	`UNDONE`,
	`C         puts "Wednesday, token`,
	`NOT SENT`,
	`operator  breaks the lease of D`,
	`E         writes "Friday, token `,
	`E         puts "Friday, token `,
	`200 OK`,
	`D         finds its lease lost after it wrote`,
	`LEFT ALONE`,
	`file      Friday, token `,
	`page      Friday, token `,
	`audit     break of A, token 1`,
	`audit     break of D, token `,
}

func wantStory(t *testing.T, story string) {
	t.Helper()
	rest := story
	for _, want := range told {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Fatalf("%q is not told, or not here:\n%s", want, story)
		}
		rest = after
	}
}

func TestTheLastGoodWriteStandsInTheFileAndOnThePage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var out strings.Builder
	if err := play(t.Context(), &out, pgtest.Database(t).URL(), dir); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	wantStory(t, out.String())
	content, err := os.ReadFile(filepath.Join(dir, "report.txt"))
	if err != nil || !strings.HasPrefix(string(content), "Friday, token ") || !strings.Contains(out.String(), "page      "+string(content)+"\n") {
		t.Errorf("the file has %q, %v\n%s", content, err, out.String())
	}
}

func TestTheProgramBringsItsOwnServer(t *testing.T) {
	t.Parallel()
	if kind, err := pgserver.ForcedKind(pgserver.KindPrograms, pgserver.KindDownload); err != nil {
		t.Skipf("the environment wants no server of %s's own: %v", t.Name(), err)
	} else if kind == "" {
		if _, _, err := pgserver.LocatePrograms(t.Context(), pgserver.KindPrograms, io.Discard); err != nil {
			t.Skipf("no programs are installed, and none are downloaded for this: %v", err)
		}
	}
	var out strings.Builder
	if err := run(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	wantStory(t, out.String())
}

func TestFileIsReplacedOnlyFromWhatWasSeen(t *testing.T) {
	t.Parallel()
	f := file{filepath.Join(t.TempDir(), "f")}
	put := func(text string) {
		t.Helper()
		if err := f.update(t.Context(), func(string) (string, error) { return text, nil }); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		captured, applied string // what others have written after each
		apply, restore    error
		left              string
	}{
		"alone":             {"", "", nil, nil, "before"},
		"before Apply":      {"other", "", errChanged, nil, "other"},
		"after Apply":       {"", "other", nil, fencedstore.ErrOvertaken, "other"},
		"restored by other": {"", "before", nil, nil, "before"},
	} {
		put("before")
		op := replace(f, "ours")
		if err := op.Capture(t.Context()); err != nil {
			t.Fatal(err)
		}
		if tc.captured != "" {
			put(tc.captured)
		}
		if err := op.Apply(t.Context()); !errors.Is(err, tc.apply) {
			t.Errorf("%s: Apply: %v, want %v", name, err, tc.apply)
		}
		if tc.applied != "" {
			put(tc.applied)
		}
		if err := op.Restore(t.Context()); !errors.Is(err, tc.restore) {
			t.Errorf("%s: Restore: %v, want %v", name, err, tc.restore)
		}
		if now, err := f.read(); err != nil || now != tc.left {
			t.Errorf("%s: there is %q, %v; want %q", name, now, err, tc.left)
		}
	}
}
