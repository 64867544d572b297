package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// verdict is what became of a mutant. It survives if nothing killed it and it was fit.
type verdict struct {
	Mutant   string  `json:"mutant"`
	Tests    string  `json:"tests"`
	Code     string  `json:"code,omitempty"`      // the digest of the code and the mutant
	KilledBy string  `json:"killed_by,omitempty"` // the first test that failed
	Said     string  `json:"said,omitempty"`      // what that program said first
	Unfit    string  `json:"unfit,omitempty"`     // why it could not be tried
	Seconds  float64 `json:"seconds"`
}

func (v verdict) String() string {
	switch {
	case v.Unfit != "":
		return "COULD NOT BE TRIED: " + v.Unfit
	case v.KilledBy != "":
		return fmt.Sprintf("killed by %s (%.1fs)", v.KilledBy, v.Seconds)
	case strings.HasPrefix(v.Mutant, untouched):
		return fmt.Sprintf("passes (%.1fs)", v.Seconds)
	}
	return fmt.Sprintf("SURVIVES %s (%.1fs)", v.Tests, v.Seconds)
}

// record keeps verdicts in a file, a line of JSON for each, so that a later run of the same code need not try again.
type record struct {
	code string // the digest of the tree

	mu    sync.Mutex
	file  *os.File // nil: nothing is kept
	known map[string]verdict
}

func openRecord(path, root string) (*record, error) {
	r := &record{known: make(map[string]verdict)}
	if path == "" {
		return r, nil
	}
	var err error
	if r.code, err = digest(root); err != nil {
		return nil, err
	}
	r.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644) //nolint:gosec // named by the caller
	if err != nil {
		return nil, err
	}
	for lines := bufio.NewReader(r.file); ; {
		line, err := lines.ReadBytes('\n')
		var v verdict
		if errors.Is(err, io.EOF) {
			return r, nil // a line without an end is of a run that was killed
		} else if err == nil {
			err = json.Unmarshal(line, &v)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", path, err), r.close())
		}
		r.known[v.Code] = v
	}
}

func (r *record) close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// of returns the verdict of a mutant if this code has one. What was not killed is tried again.
func (r *record) of(m mutant) (verdict, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, has := r.known[r.key(m)]
	return v, has && (v.KilledBy != "") != strings.HasPrefix(m.name, untouched) && v.Unfit == ""
}

func (r *record) add(m mutant, v verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return
	}
	v.Code = r.key(m)
	line, err := json.Marshal(v)
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants: a verdict is not recorded:", err)
	}
}

func (r *record) key(m mutant) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %q", r.code, []any{m.name, m.edits, m.pkg, m.test}))
	return fmt.Sprintf("%x", sum[:12])
}

// digest is that of every file that the tests are built from; the list of mutants is not among them.
func digest(root string) (string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if path != root && strings.HasPrefix(entry.Name(), ".") ||
				path == filepath.Join(root, "internal/dev/mutants") {
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(path) {
		case ".go", ".sql", ".mod", ".sum":
		default:
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // a file of the tree
		_, _ = fmt.Fprintf(sum, "%s %x\n", strings.TrimPrefix(path, root), sha256.Sum256(text))
		return err
	})
	return fmt.Sprintf("%x", sum.Sum(nil)), err
}
