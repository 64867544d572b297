package main

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/run"
)

// smokeDuration is that of one measurement where everything is to be short.
const smokeDuration = 80 * time.Millisecond

// parse reads the arguments. out is where the results are written; "" means nowhere.
func parse(args []string, usage io.Writer) (o run.Options, out string, err error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(usage)
	workloads := f.String("workloads", "", "what to measure, by commas; all by default: "+all())
	forms := f.String("forms", "", "in which forms, by commas, such as 8p for 8 processes of one caller and 8c for 8 "+
		"callers of one\nprocess; all by default")
	peers := f.String("peers", "", "whom to measure, by commas; all by default: "+strings.Join(names(peer.All()), ","))
	f.IntVar(&o.Repetitions, "repetitions", 3, "how often each figure is measured, in turns")
	f.DurationVar(&o.Duration, "duration", time.Second, "of one measurement of all but W3, W4 and most of W8, after "+
		"its warm-up")
	f.BoolVar(&o.Smoke, "smoke", false, "everything once and short, to see that it works; writes no results")
	f.StringVar(&out, "out", "", "the `folder` for results.txt, results.json and charts; by default "+published+
		" if everything\n"+
		"is measured, else none")
	if err := f.Parse(args); err != nil {
		return o, "", err
	}
	if f.NArg() > 0 {
		return o, "", fmt.Errorf("argument %q: only flags are known", f.Arg(0))
	}
	if *workloads == "" && *peers == "" && *forms == "" && out == "" {
		out = published
	}
	for _, w := range split(*workloads) {
		if !slices.Contains(peer.Workloads(), peer.Workload(w)) {
			return o, "", fmt.Errorf("workload %q: must be one of %s", w, all())
		}
		o.Workloads = append(o.Workloads, peer.Workload(w))
	}
	if len(o.Workloads) == 0 {
		o.Workloads = peer.Workloads()
	}
	o.Forms = split(*forms)
	if o.Peers, err = peer.Named(split(*peers)); err != nil {
		return o, "", err
	}
	if o.Smoke {
		o.Repetitions, o.Duration, out = 1, smokeDuration, ""
	}
	if o.Repetitions < 1 {
		return o, "", fmt.Errorf("repetitions %d: must be 1 or more", o.Repetitions)
	}
	if o.Duration < 10*time.Millisecond {
		return o, "", fmt.Errorf("duration %v: must be 10ms or more", o.Duration)
	}
	return o, out, o.CheckForms()
}

// published is where the results of a whole run go.
const published = "../docs/benchmarks"

// all names the workloads.
func all() string {
	var names []string
	for _, w := range peer.Workloads() {
		names = append(names, string(w))
	}
	return strings.Join(names, ",")
}

func split(list string) (words []string) {
	for word := range strings.SplitSeq(list, ",") {
		if word = strings.TrimSpace(word); word != "" {
			words = append(words, word)
		}
	}
	return words
}

func names(kinds []peer.Kind) (names []string) {
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	return names
}
