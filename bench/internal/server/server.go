// Package server starts the servers to measure, on loopback only, each in a temporary folder that is removed with it.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/pglock-dev/pglock/bench/internal/peer"
)

// Running is a server that runs.
type Running struct {
	Name     peer.Server
	Address  string // as peer.Config takes it
	Port     int
	PID      int // its processes are this one and its descendants
	Version  string
	Settings string // those that differ from its defaults
	stop     func() error
}

// Stop ends the server and removes its folder.
func (r *Running) Stop() error {
	if err := r.stop(); err != nil {
		return fmt.Errorf("stop %s: %w", r.Name, err)
	}
	return nil
}

// Options are for all servers.
type Options struct {
	Smoke       bool // short sessions, where a server has least ones
	Connections int  // the most of PostgreSQL; 0 for as many as W1 to W7 need
}

// Start starts one server.
func Start(ctx context.Context, name peer.Server, o Options) (*Running, error) {
	starts := map[peer.Server]func(context.Context, Options) (*Running, error){
		peer.Postgres:     startPostgres,
		peer.RedisMemory:  startRedisMemory,
		peer.RedisFlushed: startRedisFlushed,
		peer.Etcd:         startEtcd,
		peer.ZooKeeper:    startZooKeeper,
	}
	start := starts[name]
	if start == nil {
		return nil, fmt.Errorf("no server %q", name)
	}
	r, err := start(ctx, o)
	if err != nil {
		return nil, err
	}
	r.Name = name
	return r, nil
}

// Set is the servers of a run.
type Set struct {
	Running map[peer.Server]*Running
	Missing map[peer.Server]error // that could not be started, and why
}

// StartAll starts servers at the same time. It reports those that cannot be started, and the others run.
func StartAll(ctx context.Context, names []peer.Server, o Options) *Set {
	s := &Set{Running: make(map[peer.Server]*Running), Missing: make(map[peer.Server]error)}
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, name := range names {
		all.Go(func() {
			r, err := Start(ctx, name, o)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				s.Missing[name] = err
			} else {
				s.Running[name] = r
			}
		})
	}
	all.Wait()
	return s
}

// Stop ends all of them.
func (s *Set) Stop() error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, r := range s.Running {
		all.Go(func() {
			err := r.Stop()
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// attempts is how often a start is tried: between the choice of a free port and its use somebody else may take it.
const attempts = 3

// onFreePorts runs start with free ports of 127.0.0.1 and a new folder, and again with others if it fails. It removes
// the folder of a failed start.
func onFreePorts(ctx context.Context, kind string, n int,
	start func(folder string, ports []int) (*Running, error),
) (*Running, error) {
	var errs []error
	for range attempts {
		ports, err := freePorts(n)
		if err != nil {
			return nil, err
		}
		folder, err := os.MkdirTemp("", "pglock-bench-"+kind+"-")
		if err != nil {
			return nil, err
		}
		if folder, err = filepath.Abs(folder); err != nil {
			return nil, err
		}
		r, err := start(folder, ports)
		if err == nil {
			return r, nil
		}
		errs = append(errs, err, os.RemoveAll(folder))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// freePorts are different from each other, because all are held until the last is found.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func hostPort(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
