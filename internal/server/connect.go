package server

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/pause"
)

const (
	// hostAlone is how long the server's first address is tried alone, and so on with the next: one that is silent, as
	// after a failover, holds up the others no longer.
	hostAlone = 300 * time.Millisecond
	// hostAgain is when those that have refused are asked again while another is silent, or up to twice as late: one of
	// them may be promoted meanwhile.
	hostAgain = 400 * time.Millisecond
)

// connectAny is pgx.ConnectConfig, but tries the addresses of several servers beside each other if they are slow, and
// takes the first connection. Attempts that come too late end by themselves; Close waits for them. Without
// target_session_attrs any server will do, and so the order counts: a slow primary must not lead to a standby.
func (s *Server) connectAny(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	hosts := apart(config)
	if len(hosts) == 1 || config.ValidateConnect == nil {
		return pgx.ConnectConfig(ctx, config)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type attempt struct {
		host int
		conn *pgx.Conn
		err  error
	}
	ended := make(chan attempt)
	try := func(host int) {
		s.attempts.Go(func() {
			conn, err := pgx.ConnectConfig(ctx, hosts[host])
			select {
			case ended <- attempt{host, conn, err}:
			case <-ctx.Done():
				if err == nil {
					closing, end := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
					_ = conn.Close(closing)
					end()
				}
			}
		})
	}
	refused := make(map[int]error)
	begun, underWay := 1, 1
	try(0)
	timer := time.NewTimer(hostAlone)
	defer timer.Stop()
	for {
		select {
		case a := <-ended:
			if a.err == nil {
				return a.conn, nil
			}
			refused[a.host] = a.err
			if underWay--; underWay == 0 && begun == len(hosts) {
				return nil, joined(refused)
			} else if begun < len(hosts) {
				timer.Reset(0)
			}
		case <-timer.C:
			if begun < len(hosts) {
				try(begun)
				begun, underWay = begun+1, underWay+1
			} else if s.mayAskAgain() {
				for host := range refused {
					delete(refused, host)
					try(host)
					underWay++
				}
			}
			timer.Reset(hostAlone)
		case <-ctx.Done():
			return nil, errors.Join(joined(refused), ctx.Err())
		}
	}
}

// followsLeader reports whether a configuration has several servers, and says which of them it wants.
func followsLeader(config *pgx.ConnConfig) bool {
	return config.ValidateConnect != nil && len(Addresses(config)) > 1
}

// dialsAtOnce is how many dials of own connections there may be: one that tries several servers beside each other does
// not hang with one of them, and waits for the next leader.
func (s *Server) dialsAtOnce() int {
	if followsLeader(s.pool.Config().ConnConfig) {
		return 1
	}
	return 0
}

// waitForLeader has a server that is not wanted, as a standby, asked again over the same connection until ctx ends: it
// may be promoted, and another connection would cost it a process. So clients that have lost their leader wait for the
// next without a crowd of connections, and have one when it comes.
func waitForLeader(ctx context.Context, config *pgx.ConnConfig) {
	suits := config.ValidateConnect
	if !followsLeader(config) {
		return
	}
	config.ValidateConnect = func(_ context.Context, conn *pgconn.PgConn) error {
		for {
			err := suits(ctx, conn)
			preferred := new(pgconn.NotPreferredError)
			if err == nil || conn.IsClosed() || errors.As(err, &preferred) || !pause.For(ctx, hostAgain) {
				return err
			}
		}
	}
}

// mayAskAgain reports whether it is time to ask servers again that have refused. However many dials are under way, they
// are not asked more often.
func (s *Server) mayAskAgain() bool {
	now := time.Now().UnixNano()
	next := s.askAgain.Load()
	return now >= next && s.askAgain.CompareAndSwap(next, now+int64(hostAgain+rand.N(hostAgain)))
}

func joined(refused map[int]error) (err error) {
	for _, host := range slices.Sorted(maps.Keys(refused)) {
		err = errors.Join(err, refused[host])
	}
	return err
}

// apart is a configuration for each server of one with several.
func apart(config *pgx.ConnConfig) (all []*pgx.ConnConfig) {
	own := config.Copy()
	own.Fallbacks = nil
	all = append(all, own)
	for _, f := range config.Fallbacks {
		// pgx has the same server twice, with and without TLS
		if last := all[len(all)-1]; last.Host == f.Host && last.Port == f.Port {
			last.Fallbacks = append(last.Fallbacks, f)
			continue
		}
		next := config.Copy()
		next.Host, next.Port, next.TLSConfig, next.Fallbacks = f.Host, f.Port, f.TLSConfig, nil
		all = append(all, next)
	}
	return all
}
