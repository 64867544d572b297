//go:build unix

package main

import (
	"context"
	"math/rand/v2"
	"net/url"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/cluster"
	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/integration/chaos/internal/load"
	"github.com/pglock-dev/pglock/integration/chaos/internal/wire"
)

// Clusters, as --cluster names them.
const (
	ownCluster   = "own"
	patroniSync  = "patroni"
	patroniAsync = "patroni-async"
)

var clusters = []string{ownCluster, patroniSync, patroniAsync}

// patroniFaults are those of a cluster that Patroni keeps. The first ones hold in the asynchronous mode too: there the
// old leader grants nothing any more when another leads.
var patroniFaults = []fault{
	{name: "leader-kill", about: "all processes of the leader are killed, its Patroni too", lane: serverLane,
		moves: true, run: losing((*cluster.Patroni).KillLeader)},
	{name: "leader-switch", about: "an operator has another server lead", lane: serverLane, moves: true,
		run: losing((*cluster.Patroni).Switch)},
	{name: "leader-cut", about: "nobody hears from the leader, which goes on until its Patroni gives up",
		lane: serverLane, moves: true, run: lasting((*cluster.Patroni).CutLeader, 3*time.Second)},
	{name: "replica-kill", about: "all processes of the synchronous standby are killed", lane: serverLane, moves: true,
		run: lasting((*cluster.Patroni).KillReplica, 4*time.Second)},
	{name: "etcd-away", about: "etcd stands still for a minute", lane: serverLane, moves: true,
		run: lasting((*cluster.Patroni).StopEtcd, time.Minute)},
	{name: "leader-freeze", about: "the leader stands still (SIGSTOP), and goes on when another leads",
		lane: serverLane, moves: true, run: lasting((*cluster.Patroni).FreezeLeader, time.Second)},
	{name: "leader-forsaken", about: "the leader's Patroni stands still, and no standby hears from it; it goes on, " +
		"and its clients reach it", lane: serverLane, moves: true,
		run: lasting((*cluster.Patroni).ForsakeLeader, 3*time.Second)},
}

// faultsOf are all that there are for a cluster.
func faultsOf(name string) []fault {
	switch name {
	case patroniSync:
		return slices.Concat(patroniFaults, useFaults[:2])
	case patroniAsync:
		return slices.Concat(patroniFaults[:5], useFaults[:2])
	}
	return allFaults
}

func losing(f func(*cluster.Patroni, context.Context) error) func(*hit) error {
	return func(h *hit) error { return f(h.patroni, h.ctx) }
}

func lasting(f func(*cluster.Patroni, context.Context, time.Duration) error, d time.Duration) func(*hit) error {
	return func(h *hit) error { return f(h.patroni, h.ctx, d) }
}

// startCluster starts the servers.
func (l *lab) startCluster(ctx context.Context) (err error) {
	if l.clusterName == ownCluster || l.clusterName == "" {
		l.cluster, err = cluster.Start(ctx, l.programs, l.committed, l.giveUp)
		return err
	}
	l.patroni, err = cluster.StartPatroni(ctx, l.programs, l.clusterName == patroniSync, l.committed,
		func(p history.Promotion) {
			l.judge.Promoted(p)
			l.eye.line.LeadTo(l.cluster.Address())
			l.eye.line.Cut(true)
		}, l.giveUp)
	if err == nil {
		l.cluster = l.patroni.Cluster
	}
	return err
}

// way is how a worker reaches the cluster: by a line of its own; under Patroni by HAProxy, or by the list of servers.
func (l *lab) way(n int) (line *wire.Line, connString string, err error) {
	to := l.cluster.Address()
	if l.patroni != nil {
		u, err := url.Parse(l.patroni.ProxyURL())
		if err != nil {
			return nil, "", err
		}
		to = u.Host
	}
	if line, err = wire.Listen(to); err != nil {
		return nil, "", err
	}
	switch {
	case l.patroni == nil:
		connString = l.cluster.AppURL(line.Address())
	case n%2 == 0:
		connString = l.patroni.HostsURL()
	default:
		connString = l.patroni.ProxyURL()
	}
	return line, connString, nil
}

// keepTTLs are those of the leases that every worker holds for ever.
var keepTTLs = []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second}

// rounds injects the faults of Patroni's cluster, each once and then all again, in an order that the seed draws.
func (l *lab) rounds(ctx context.Context) {
	r := rand.New(rand.NewPCG(l.seed, 0))
	for _, m := range l.crew {
		for _, ttl := range keepTTLs {
			_ = m.now().tell(load.Order{Do: load.Keep, TTL: ttl})
		}
		_ = m.now().tell(load.Order{Do: load.Lead})
	}
	for ctx.Err() == nil {
		faults := ofLane(l.faults, serverLane)
		r.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, f := range faults {
			wait(ctx, 4*time.Second)
			if ctx.Err() != nil {
				return
			}
			l.calm.RLock()
			l.outages.begin(f.name)
			l.hit(ctx, f, r)
			l.outages.end()
			l.calm.RUnlock()
		}
		if l.oneRound {
			wait(ctx, 4*time.Second)
			l.once.Do(func() { close(l.enough) })
			return
		}
	}
}
