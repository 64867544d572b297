//go:build unix

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/integration/chaos/internal/wire"
)

// lag is how far an asynchronous standby may be behind before a fault begins.
const lag = 500 * time.Millisecond

// each fault begins with the leader of the moment, and ends when the cluster is whole again.
func (p *Patroni) fault(ctx context.Context, f func(ctx context.Context, leader *Member) error) error {
	p.turns.Lock()
	defer p.turns.Unlock()
	ctx = context.WithoutCancel(ctx) // half a fault is useless
	p.safe.Store(int64(history.Now().Add(-lag)))
	if err := f(ctx, p.leader()); err != nil {
		return err
	}
	return p.Whole(ctx)
}

// replaced waits until another server leads.
func (p *Patroni) replaced(ctx context.Context, old *Member) error {
	return p.told(p.await(ctx, func() bool { return p.leader() != old }))
}

// KillLeader kills all processes of the leader, and starts it again when another leads.
func (p *Patroni) KillLeader(ctx context.Context) error {
	return p.fault(ctx, func(ctx context.Context, m *Member) error {
		m.kill()
		return errors.Join(p.replaced(ctx, m), m.start())
	})
}

// Switch has another server lead, as an operator does before maintenance.
func (p *Patroni) Switch(ctx context.Context) error {
	return p.fault(ctx, func(ctx context.Context, m *Member) error {
		body, _ := json.Marshal(map[string]string{"leader": m.name})
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+loopback(m.rest)+"/switchover",
			bytes.NewReader(body))
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if said, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
			return fmt.Errorf("cluster: switchover: %s: %s", answer.Status, said)
		}
		return p.replaced(ctx, m)
	})
}

// FreezeLeader stops all processes of the leader, and lets them go on a while after another leads.
func (p *Patroni) FreezeLeader(ctx context.Context, after time.Duration) error {
	return p.fault(ctx, func(ctx context.Context, m *Member) error {
		goOn := m.still()
		err := p.replaced(ctx, m)
		pause(ctx, after)
		goOn()
		return err
	})
}

// CutLeader cuts the leader off from everybody but us, until a while after another leads. It goes on, and Patroni makes
// it a standby when it cannot reach etcd. Its clients hear nothing.
func (p *Patroni) CutLeader(ctx context.Context, after time.Duration) error {
	return p.fault(ctx, func(ctx context.Context, m *Member) error {
		mend := m.consensus.cut()
		ends := append(silence(m.peers), silence(m.clients)...)
		err := p.replaced(ctx, m)
		pause(ctx, after)
		for _, end := range append(ends, mend) {
			end()
		}
		return err
	})
}

// ForsakeLeader cuts the leader off from the other servers and stops its Patroni, which is all that would make it a
// standby. It goes on as a primary, and its clients still reach it, until a while after another leads.
func (p *Patroni) ForsakeLeader(ctx context.Context, after time.Duration) error {
	return p.fault(ctx, func(ctx context.Context, m *Member) error {
		m.process.signal(syscall.SIGSTOP)
		ends := silence(m.peers)
		err := p.replaced(ctx, m)
		pause(ctx, after)
		for _, end := range ends {
			end()
		}
		m.process.signal(syscall.SIGCONT)
		return err
	})
}

func silence(line *wire.Line) []func() {
	return []func(){line.Hold(wire.Up, true), line.Hold(wire.Down, true)}
}

// KillReplica kills all processes of a standby, the synchronous one if there is, and starts it again after a while.
func (p *Patroni) KillReplica(ctx context.Context, down time.Duration) error {
	return p.fault(ctx, func(ctx context.Context, leader *Member) error {
		var name string
		if err := leader.ask(ctx, func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `SELECT application_name FROM pg_stat_replication
				WHERE application_name LIKE 'node%' ORDER BY sync_state = 'sync' DESC LIMIT 1`).Scan(&name)
		}); err != nil {
			return err
		}
		for _, m := range p.nodes {
			if m.name == name {
				m.kill()
				pause(ctx, down)
				return m.start()
			}
		}
		return fmt.Errorf("cluster: no server is named %q", name)
	})
}

// StopEtcd stops etcd for a while. Nobody leads when that is longer than Patroni bears.
func (p *Patroni) StopEtcd(ctx context.Context, d time.Duration) error {
	return p.fault(ctx, func(ctx context.Context, _ *Member) error {
		p.etcd.signal(syscall.SIGSTOP)
		pause(ctx, d)
		p.etcd.signal(syscall.SIGCONT)
		pause(ctx, 2*patroniLoop*time.Second) // it may take notice only now
		return nil
	})
}
