// Command mutants breaks the code on purpose, one known fault at a time, and shows which test notices. Every
// invariant and every trap of the design has at least one. Nothing in the tree is changed: the go command reads the
// broken files through an overlay, and a broken schema is read by the test itself.
//
//	go run ./internal/dev/mutants                            all of them
//	go run ./internal/dev/mutants I4 I17                     those whose name contains one of the words
//	go run ./internal/dev/mutants -shard 1/4                 every fourth, from the first
//	go run ./internal/dev/mutants -record /tmp/mutants.json  again after an interrupt, it goes on where it was
//
// First it runs the tests of the chosen mutants on the code as it is: they must pass. At the end it prints a table, in
// Markdown, and exits with 1 if a mutant survives or does not fit the code. A mutant that is killed by "a timeout" was
// noticed by no test, only by the clock.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// mutant is one fault: replacements of texts in files, and the test that must then fail.
type mutant struct {
	name  string
	edits []edit
	pkg   string
	test  string // a regular expression for -run
}

// edit replaces a text that occurs exactly once in a file. Line breaks do not matter.
type edit struct{ file, old, broken string }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("mutants", flag.ExitOnError)
	shard := flags.String("shard", "1/1", "the `part/of` the list to try: 1/4 is every fourth mutant, from the first")
	record := flags.String("record", "", "a `file` that keeps the verdicts: those it has of this code are not tried "+
		"again")
	jobs := flags.Int("jobs", runtime.NumCPU()+1, "how many mutants are tried at once")
	_ = flags.Parse(args) // it exits
	chosen, err := choose(all, flags.Args(), *shard)
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	b, err := newBench(strings.TrimSpace(string(out)))
	if err != nil {
		return err
	}
	defer b.close()
	known, err := openRecord(*record, b.root)
	if err != nil {
		return err
	}
	defer known.close()
	began := time.Now()
	if failed := judge(ctx, b, known, *jobs, asItIs(chosen)); ctx.Err() == nil && len(failed) > 0 {
		return fmt.Errorf("the tests must pass on the code as it is: %s", list(failed))
	}
	verdicts := judge(ctx, b, known, *jobs, chosen)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	printTable(os.Stdout, verdicts)
	alive := slices.DeleteFunc(slices.Clone(verdicts), func(v verdict) bool {
		return v.KilledBy != "" || v.Unfit != ""
	})
	unfit := slices.DeleteFunc(slices.Clone(verdicts), func(v verdict) bool { return v.Unfit == "" })
	killed := len(verdicts) - len(alive) - len(unfit)
	fmt.Printf("\n%d mutants, %d killed, in %v.\n", len(verdicts), killed, time.Since(began).Round(time.Second))
	if len(alive)+len(unfit) > 0 {
		return fmt.Errorf("%d survive: %s; %d could not be tried: %s", len(alive), list(alive), len(unfit), list(unfit))
	}
	return nil
}

// choose returns the mutants of a part whose names contain one of the words.
func choose(from []mutant, words []string, shard string) (chosen []mutant, err error) {
	var part, of int
	_, err = fmt.Sscanf(shard, "%d/%d", &part, &of)
	if err != nil || part < 1 || part > of || shard != fmt.Sprintf("%d/%d", part, of) {
		return nil, fmt.Errorf("shard is %q: it must be part/of, with the part from 1 to of", shard)
	}
	n := 0
	for _, m := range from {
		if len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(m.name, w) }) {
			continue
		}
		if n%of == part-1 {
			chosen = append(chosen, m)
		}
		n++
	}
	if len(chosen) == 0 {
		return nil, errors.New("no mutant is of that name")
	}
	return chosen, nil
}

const untouched = "as it is: "

// asItIs returns a mutant for each package that breaks nothing and is to survive all its tests.
func asItIs(chosen []mutant) (plain []mutant) {
	tests := make(map[string][]string)
	for _, m := range chosen {
		tests[m.pkg] = append(tests[m.pkg], m.test)
	}
	for pkg, of := range tests {
		slices.Sort(of)
		plain = append(plain, mutant{untouched + pkg, nil, pkg, strings.Join(slices.Compact(of), "|")})
	}
	slices.SortFunc(plain, func(a, b mutant) int { return strings.Compare(a.name, b.name) })
	return plain
}

// judge tries mutants, several at once, and returns the verdicts in the order of the mutants; of the code as it is only
// those that are not what they must be.
func judge(ctx context.Context, b *bench, known *record, jobs int, of []mutant) []verdict {
	verdicts := make([]verdict, len(of))
	next := make(chan int)
	var wg sync.WaitGroup
	for range max(1, jobs) {
		wg.Go(func() {
			for i := range next {
				v, had := known.of(of[i])
				if !had {
					v = b.try(ctx, of[i])
					if ctx.Err() != nil {
						continue
					}
					known.add(of[i], v)
				}
				fmt.Printf("%-78s %s\n", v.Mutant, v)
				verdicts[i] = v
			}
		})
	}
	for i := range of {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	return slices.DeleteFunc(verdicts, func(v verdict) bool {
		return v.Mutant == "" || strings.HasPrefix(v.Mutant, untouched) && v.KilledBy == "" && v.Unfit == ""
	})
}

func list(of []verdict) string {
	var names []string
	for _, v := range of {
		names = append(names, v.Mutant+" ("+v.String()+")")
	}
	return strings.Join(names, "; ")
}
