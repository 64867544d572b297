package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// schemaFolder is the environment variable by which a test finds the broken schema. So all mutants of the schema share
// one test program for each package: linking costs more than most tests.
const schemaFolder = "PGLOCK_MUTANT_SCHEMA"

// The schema's package as the tests see it: with the migrations of that folder, if it is named.
const (
	embedding = "migrations/migrations.go"
	embedded  = "var files embed.FS"
	replacing = "migrations/mutant.go"
	replaced  = `package migrations

import (
	"io/fs"
	"os"
)

var files = func() fs.FS {
	if folder := os.Getenv("` + schemaFolder + `"); folder != "" {
		return os.DirFS(folder)
	}
	return embedded
}()
`
)

// bench builds test programs and runs them. It has a folder, and one program for each package whose code is as it is.
type bench struct {
	root, dir string

	mu       sync.Mutex
	made     int
	programs map[string]func() (string, error)
}

func newBench(root string) (*bench, error) {
	dir, err := os.MkdirTemp("", "pglock-mutants-")
	if err != nil {
		return nil, err
	}
	return &bench{root: root, dir: dir, programs: make(map[string]func() (string, error))}, nil
}

func (b *bench) close() error { return os.RemoveAll(b.dir) }

// folder makes a folder of its own for something.
func (b *bench) folder() (string, error) {
	b.mu.Lock()
	b.made++
	dir := filepath.Join(b.dir, fmt.Sprint(b.made))
	b.mu.Unlock()
	return dir, os.Mkdir(dir, 0o755) //nolint:gosec // servers run as another user where root runs this
}

// try tells which test kills a mutant. A failed build, or a test that does not exist, kills nothing: then the mutant is
// unfit.
func (b *bench) try(ctx context.Context, m mutant) verdict {
	v := verdict{Mutant: m.name, Tests: m.pkg + " " + m.test}
	began := time.Now()
	if err := b.kill(ctx, m, &v); err != nil {
		v.Unfit = err.Error()
	}
	v.Seconds = time.Since(began).Seconds()
	return v
}

func (b *bench) kill(ctx context.Context, m mutant, v *verdict) error {
	texts, err := m.apply(b.root)
	if err != nil {
		return err
	}
	dir, err := b.folder()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the folder of all goes too
	env := os.Environ()
	code := make(map[string]string)
	for path, text := range texts {
		if filepath.Ext(path) != ".sql" {
			code[path] = text
			continue
		}
		if err := os.CopyFS(filepath.Join(dir, "schema"), os.DirFS(filepath.Dir(path))); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "schema", filepath.Base(path)), []byte(text), 0o600); err != nil {
			return err
		}
		env = append(env, schemaFolder+"="+filepath.Join(dir, "schema"))
	}
	var program string
	if len(code) == 0 {
		program, err = b.program(ctx, m.pkg)
	} else {
		program, err = b.build(ctx, m.pkg, code, dir)
	}
	if err != nil {
		return err
	}
	limit := "100s"
	if len(m.edits) == 0 {
		limit = "15m" // all tests that mutants name
	}
	cmd := exec.CommandContext(ctx, program, "-test.count=1", "-test.timeout="+limit, "-test.v", "-test.run="+m.test)
	cmd.Dir, cmd.Env = filepath.Join(b.root, m.pkg), env // which may be in another module
	return watch(cmd, v)
}

// program is the test program of a package whose code is as it is.
func (b *bench) program(ctx context.Context, pkg string) (string, error) {
	b.mu.Lock()
	build, has := b.programs[pkg]
	if !has {
		build = sync.OnceValues(func() (string, error) {
			dir, err := b.folder()
			if err != nil {
				return "", err
			}
			return b.build(ctx, pkg, nil, dir)
		})
		b.programs[pkg] = build
	}
	b.mu.Unlock()
	return build()
}

// build builds a package's test program in a folder, with broken code.
func (b *bench) build(ctx context.Context, pkg string, code map[string]string, dir string) (string, error) {
	path := filepath.Join(b.root, embedding)
	text, broken := code[path]
	if !broken {
		read, err := os.ReadFile(path) //nolint:gosec // a file of the tree
		if err != nil {
			return "", err
		}
		text = string(read)
	}
	if strings.Count(text, embedded) != 1 {
		return "", fmt.Errorf("%s does not have the text once: %s", embedding, embedded)
	}
	texts := map[string]string{filepath.Join(b.root, replacing): replaced}
	maps.Copy(texts, code)
	texts[path] = strings.Replace(text, embedded, "var embedded embed.FS", 1)
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	for path, text := range texts {
		file := filepath.Join(dir, fmt.Sprint(len(overlay.Replace))+filepath.Ext(path))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return "", err
		}
		overlay.Replace[path] = file
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	overlayFile, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, filepath.Base(pkg)+".test")
	if err := os.WriteFile(overlayFile, data, 0o600); err != nil {
		return "", err
	}
	// Nothing is vetted or optimized, and no debugger reads it: that takes half as long to build.
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-gcflags=-N -l", "-ldflags=-s -w",
		"-overlay", overlayFile, "-o", program, ".")
	cmd.Dir = filepath.Join(b.root, pkg)
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, said)
	}
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("%s has no tests", pkg)
	}
	return program, nil
}

var (
	failedTest = regexp.MustCompile(`^\s*--- FAIL: (\S+)`)
	saidByTest = regexp.MustCompile(`^\s+\w+\.go:\d+: `)
)

// watch runs a test program until its end, or until the first test has failed: then it asks the program to clean up.
func watch(cmd *exec.Cmd, v *verdict) error {
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	var said bytes.Buffer
	cmd.Stderr = &said
	lines, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ran, ended := false, false
	for r := bufio.NewReader(lines); ; {
		line, err := r.ReadString('\n')
		ran = ran || strings.HasPrefix(line, "=== RUN")
		if v.Said == "" && saidByTest.MatchString(line) {
			v.Said = strings.TrimSpace(line)
		}
		if found := failedTest.FindStringSubmatch(line); found != nil && !ended {
			v.KilledBy, ended = found[1], true
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
		if err != nil {
			break // also when the program is killed
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case ended:
		return nil
	case err != nil && !errors.As(err, &exit):
		return err
	case !ran:
		return fmt.Errorf("no test ran: %v %s", err, said.Bytes())
	case err != nil:
		v.KilledBy, v.Said = "a panic or a leak", lastLine(said.String())
		if strings.Contains(said.String(), "panic: test timed out after") {
			v.KilledBy = "a timeout"
		}
	}
	return nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
