//go:build unix

package main

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/pglock-dev/pglock/fencedstore/reversible"
)

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
		"after Apply":       {"", "other", nil, reversible.ErrOvertaken, "other"},
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
