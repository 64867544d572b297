//go:build unix

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/integration/internal/datafolder"
	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
)

// standbyName is what synchronous_standby_names contains: the follower of the order must not count as a standby.
const standbyName = "chaos_standby"

// BuildStandby starts a standby of the primary, which replicates asynchronously. It does nothing where there is one.
func (c *Cluster) BuildStandby(ctx context.Context) error {
	c.turns.Lock()
	defer c.turns.Unlock()
	if c.standby != nil {
		return nil
	}
	primary := c.primaryNode()
	server, err := pgserver.Start(ctx, pgserver.Options{Programs: c.programs, Settings: settings})
	if err != nil {
		return err
	}
	standby, err := c.copyTo(ctx, primary, server)
	if err != nil {
		return errors.Join(fmt.Errorf("cluster: build a standby: %w", err), server.Stop())
	}
	c.mu.Lock()
	c.standby = standby
	c.mu.Unlock()
	return nil
}

// HasStandby says whether there is one.
func (c *Cluster) HasStandby() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.standby != nil
}

// copyTo replaces a server's data by a copy of the primary's. It uses the primary's backup functions, so that no
// client program is needed.
func (c *Cluster) copyTo(ctx context.Context, primary *node, server *pgserver.Server) (*node, error) {
	if err := server.Kill(); err != nil {
		return nil, err
	}
	owner, err := pgprograms.Account()
	if err != nil {
		return nil, err
	}
	data := datafolder.Folder{Path: server.DataDir(), Owner: owner}
	if err := data.Clear(); err != nil {
		return nil, err
	}
	start, stop := `pg_backup_start('standby', true)`, `pg_backup_stop(false)`
	if c.programs.Major < 15 {
		start, stop = `pg_start_backup('standby', true, false)`, `pg_stop_backup(false)`
	}
	var label string
	var to *pgx.ConnConfig
	err = primary.ask(ctx, func(conn *pgx.Conn) error {
		to = conn.Config()
		if _, err := conn.Exec(ctx, `SELECT `+start); err != nil {
			return err
		}
		if err := data.CopyFrom(primary.DataDir(), "postgresql.auto.conf"); err != nil {
			return err
		}
		return conn.QueryRow(ctx, `SELECT labelfile FROM `+stop).Scan(&label)
	})
	if err != nil {
		return nil, err
	}
	own := fmt.Sprintf("primary_conninfo = 'host=%s port=%d user=%s password=%s sslmode=disable application_name=%s'\n"+
		"wal_retrieve_retry_interval = '100ms'\nwal_receiver_status_interval = '1s'\n", to.Host, to.Port, to.User,
		to.Password, standbyName)
	if err := errors.Join(data.Append("backup_label", label), data.Append("standby.signal", ""),
		data.Append("postgresql.auto.conf", own)); err != nil {
		return nil, err
	}
	if err := server.Restart(ctx); err != nil {
		return nil, err
	}
	u, err := url.Parse(primary.url)
	if err != nil {
		return nil, err
	}
	u.Host = address(server.URL())
	standby := &node{server, u.String()}
	return standby, c.catchUp(ctx, primary, standby)
}

// catchUp returns when the standby shows all that the primary has committed so far.
func (c *Cluster) catchUp(ctx context.Context, primary, standby *node) error {
	var position string
	err := primary.ask(ctx, func(conn *pgx.Conn) error {
		// Its commit flushes those before it.
		if _, err := conn.Exec(ctx, `SELECT pg_logical_emit_message(true, 'probe', '')`); err != nil {
			return err
		}
		return conn.QueryRow(ctx, `SELECT pg_current_wal_flush_lsn()::text`).Scan(&position)
	})
	if err != nil {
		return err
	}
	return standby.eventually(ctx, `SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`, position)
}

// synchronous makes commits wait for the standby until asynchronous.
func synchronous(ctx context.Context, primary *node) error {
	if err := primary.exec(ctx, `ALTER SYSTEM SET synchronous_standby_names = '`+standbyName+`'`,
		`SELECT pg_reload_conf()`); err != nil {
		return err
	}
	return primary.eventually(ctx,
		`SELECT EXISTS (SELECT FROM pg_stat_replication WHERE application_name = $1 AND sync_state = 'sync')`,
		standbyName)
}

func asynchronous(ctx context.Context, primary *node) error {
	return primary.exec(ctx, `ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`)
}

// SlowFlush makes every commit that waits for the disk slow: commits then also wait for the standby, which is stopped
// for so long.
func (c *Cluster) SlowFlush(ctx context.Context, d time.Duration) (err error) {
	c.turns.Lock()
	defer c.turns.Unlock()
	if c.standby == nil {
		return errors.New("cluster: there is no standby")
	}
	if err := synchronous(ctx, c.primary); err != nil {
		return errors.Join(err, asynchronous(context.WithoutCancel(ctx), c.primary))
	}
	var receiver int
	err = c.standby.ask(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT pid FROM pg_stat_wal_receiver`).Scan(&receiver)
	})
	if err == nil {
		err = syscall.Kill(receiver, syscall.SIGSTOP)
	}
	if err == nil {
		pause(ctx, d)
		err = syscall.Kill(receiver, syscall.SIGCONT)
	}
	return errors.Join(err, asynchronous(context.WithoutCancel(ctx), c.primary))
}

// Failover kills the primary and replaces it by its standby. With lossy, the standby has not received the commits of
// the last moments, for as long as said; otherwise it has all that was answered. cut is called when the old primary
// is dead, to end the remaining connections to it; open when the new one is ready, before anything else reaches it.
func (c *Cluster) Failover(ctx context.Context, lossy bool, last time.Duration, cut func(),
	open func(history.Promotion)) error {
	c.turns.Lock()
	defer c.turns.Unlock()
	ctx = context.WithoutCancel(ctx) // half a failover is useless
	old, standby := c.primary, c.standby
	if standby == nil {
		return errors.New("cluster: there is no standby")
	}
	p := history.Promotion{Lossy: lossy}
	var err error
	if lossy {
		p.Safe = history.Now()
		err = errors.Join(c.catchUp(ctx, old, standby),
			standby.exec(ctx, `ALTER SYSTEM SET primary_conninfo = ''`, `SELECT pg_reload_conf()`),
			standby.eventually(ctx,
				`SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'walreceiver')`))
	} else {
		err = synchronous(ctx, old)
	}
	if err != nil {
		return fmt.Errorf("cluster: prepare the standby: %w", err)
	}
	pause(ctx, last)
	if err := old.Kill(); err != nil {
		return err
	}
	p.Dead = history.Now()
	if !lossy {
		p.Safe = p.Dead
	}
	cut()
	c.unfollow()
	c.followed.Wait()
	if err := errors.Join(standby.exec(ctx, `SELECT pg_promote(true, 20)`),
		standby.eventually(ctx, `SELECT NOT pg_is_in_recovery()`)); err != nil {
		return fmt.Errorf("cluster: promote: %w", err)
	}
	err = standby.ask(ctx, func(conn *pgx.Conn) error {
		if err := makeSlot(ctx, conn); err != nil {
			return err
		}
		p.State, err = readState(ctx, conn)
		return err
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.primary, c.standby = standby, nil
	c.mu.Unlock()
	p.Opened = history.Now()
	open(p)
	c.followPrimary()
	return c.retire(old)
}
