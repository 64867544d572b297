package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/bench/internal/peer"
)

func TestArgumentsThatCannotBeAreRefusedByName(t *testing.T) {
	for _, c := range []struct{ arg, says string }{
		{"-workloads=W1,W9", `workload "W9"`},
		{"-peers=etcd,consul", `peer "consul"`},
		{"-repetitions=0", "repetitions 0"},
		{"-duration=1ms", "duration 1ms"},
		{"more", `argument "more"`},
	} {
		if _, _, err := parse([]string{c.arg}, io.Discard); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %s in it", c.arg, err, c.says)
		}
	}
}

func TestSmokeRunsEverythingOnceAndWritesNothing(t *testing.T) {
	o, out, err := parse([]string{"-smoke", "-repetitions", "5", "-out", "somewhere"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if o.Repetitions != 1 || out != "" || len(o.Workloads) != len(peer.Workloads()) || len(o.Peers) != len(peer.All()) {
		t.Errorf("%d repetitions into %q, %d workloads, %d peers", o.Repetitions, out, len(o.Workloads), len(o.Peers))
	}
}

func TestEveryPeerIsWholeAndNamedOnce(t *testing.T) {
	var seen []string
	for _, k := range peer.All() {
		if slices.Contains(seen, k.Name) {
			t.Errorf("peer %s is there twice", k.Name)
		}
		seen = append(seen, k.Name)
		g := k.Guarantees
		for what, said := range map[string]string{
			"Is": k.Is, "Server": string(k.Server), "Settings": k.Settings,
			"Durable": g.Durable, "Fair": g.Fair, "Token": g.Token, "Bound": g.Bound,
		} {
			if said == "" {
				t.Errorf("peer %s: %s is empty", k.Name, what)
			}
		}
		if len(k.In) == 0 || k.Open == nil {
			t.Errorf("peer %s takes part in nothing, or has no Open", k.Name)
		}
	}
}

func TestAPartIsNamedByItsFormsAndWritesNothing(t *testing.T) {
	o, out, err := parse([]string{"-workloads", "W1", "-forms", "8c", "-peers", "pglock,bare-async"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if out != "" || !slices.Equal(o.Forms, []string{"8c"}) {
		t.Errorf("forms %q, written into %q", o.Forms, out)
	}
	if _, out, err := parse(nil, io.Discard); err != nil || out != published {
		t.Errorf("everything: written into %q, %v, want %q", out, err, published)
	}
	if _, out, err := parse([]string{"-workloads", "W1", "-out", "here"}, io.Discard); err != nil || out != "here" {
		t.Errorf("a part with -out: written into %q, %v", out, err)
	}
	if _, _, err := parse([]string{"-workloads", "W1", "-forms", "10000"}, io.Discard); err == nil ||
		!strings.Contains(err.Error(), `form "10000"`) {
		t.Errorf("a form of another workload: %v", err)
	}
}

func TestServersOfFormsThatAreNotAskedForAreNotNeeded(t *testing.T) {
	o, _, err := parse([]string{"-workloads", "W1", "-forms", "8c", "-peers", "pglock,bare-renew,etcd"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if got := needed(o); !slices.Equal(got, []peer.Server{peer.Postgres, peer.Etcd}) {
		t.Errorf("servers %q", got)
	}
	if o, _, err = parse([]string{"-workloads", "W5", "-peers", "pglock,etcd"}, io.Discard); err != nil {
		t.Fatal(err)
	}
	if got := needed(o); !slices.Equal(got, []peer.Server{peer.Postgres}) {
		t.Errorf("servers %q", got)
	}
}
