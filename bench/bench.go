package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/procfs"
	"github.com/pglock-dev/pglock/bench/internal/report"
	"github.com/pglock-dev/pglock/bench/internal/run"
	"github.com/pglock-dev/pglock/bench/internal/server"
)

// bench starts the servers, has everything measured, prints the tables and writes the files.
func bench(ctx context.Context, args []string) (err error) {
	o, out, err := parse(args, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	began := time.Now()
	progress := run.NewProgress(os.Stderr)
	results := &report.Results{
		Command: strings.Join(append([]string{"go -C bench run ."}, args...), " "), Commit: commit(ctx), Began: began,
		Peers: names(o.Peers), Repetitions: o.Repetitions, Duration: o.Duration, Modules: modules(o.Peers),
	}
	if results.Machine, err = procfs.Look(os.TempDir()); err != nil {
		return err
	}
	progress.Say("starting servers")
	servers := server.StartAll(ctx, needed(o), server.Options{Smoke: o.Smoke})
	defer func() { err = errors.Join(err, servers.Stop()) }()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, name := range needed(o) {
		if missing := servers.Missing[name]; missing != nil {
			progress.Say("%s could not be started: %v", name, missing)
			results.Servers = append(results.Servers, report.Server{Name: name, Missing: missing.Error()})
			continue
		}
		s := servers.Running[name]
		progress.Say("%s runs: %s", name, s.Version)
		results.Servers = append(results.Servers, report.Server{Name: name, Version: s.Version, Settings: s.Settings})
	}
	err = run.New(o, servers, results, progress).Run(ctx)
	if err != nil && !errors.Is(err, run.ErrIncomplete) {
		return err
	}
	results.Took = time.Since(began)
	if !o.Smoke {
		results.Judge()
	}
	progress.Say("measured in %v", results.Took.Round(time.Second))
	return errors.Join(err, results.WriteText(os.Stdout), write(results, out))
}

// needed are the servers of the peers that take part in anything.
func needed(o run.Options) (names []peer.Server) {
	for _, k := range o.Peers {
		if o.Takes(k) && !slices.Contains(names, k.Server) {
			names = append(names, k.Server)
		}
	}
	return names
}

// write makes the files in a folder; in none for "".
func write(r *report.Results, folder string) error {
	if folder == "" {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		return err
	}
	figures, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	files := r.Charts()
	files["results.txt"], files["results.json"] = text.String(), string(figures)+"\n"
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// commit is what is checked out, with a sign if there are changes; "" where nobody knows.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// modules are the versions of the peers' modules in this program.
func modules(kinds []peer.Kind) map[string]string {
	versions := make(map[string]string)
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return versions
	}
	for _, k := range kinds {
		for _, path := range k.Modules {
			for _, m := range info.Deps {
				if m.Path == path {
					versions[path] = m.Version
				}
			}
		}
	}
	return versions
}
