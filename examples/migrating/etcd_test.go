package migrating_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/pglock-dev/pglock/examples/migrating/frometcd"
	"github.com/pglock-dev/pglock/pglock"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// cutOff is closed to cut a link. It keeps its connections open, and nothing comes through any more: neither side hears
// that the other is gone.
type cutOff chan struct{}

// link gives a client of etcd whose connections can be cut off.
func link(t *testing.T, etcd *clientv3.Client) (*clientv3.Client, cutOff) {
	t.Helper()
	listener := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	cut, ended, forwards := make(cutOff), make(chan struct{}), new(sync.WaitGroup)
	forward := func(to, from net.Conn) {
		defer to.Close()
		for buffer := make([]byte, 4096); ; {
			n, err := from.Read(buffer)
			select {
			case <-cut:
				<-ended
				return
			default:
			}
			if err != nil {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	forwards.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := new(net.Dialer).DialContext(t.Context(), "tcp", etcd.Endpoints()[0])
			if err != nil {
				_ = near.Close()
				continue
			}
			forwards.Go(func() { forward(near, far) })
			forwards.Go(func() { forward(far, near) })
		}
	})
	t.Cleanup(func() {
		close(ended)
		_ = listener.Close()
		forwards.Wait()
	})
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{listener.Addr().String()}, Logger: zap.NewNop(), DialTimeout: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client, cut
}

// The program must let go of pglock's lease, and let its caller go on, although etcd answers no more.
func TestAProgramThatIsStoppedEndsSoonAlsoIfEtcdIsCutOff(t *testing.T) {
	t.Parallel()
	s, server := newScene(t), newEtcd(t)
	for name, run := range map[string]func(ctx context.Context, etcd *clientv3.Client, works func()) error{
		"mutex": func(ctx context.Context, etcd *clientv3.Client, works func()) error {
			return pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), "SELECT FROM reports FOR UPDATE"); err != nil {
					return err
				}
				client, ended := s.client(), make(chan error)
				go func() { ended <- frometcd.MutexDuring(ctx, client, s.store, etcd) }()
				s.eventually(`SELECT EXISTS (SELECT FROM pg_locks
					WHERE NOT granted AND $1::int = ANY (pg_blocking_pids(pid)))`, tx.Conn().PgConn().PID())
				works()
				return <-ended
			})
		},
		"election": func(ctx context.Context, etcd *clientv3.Client, works func()) error {
			work := func(ctx context.Context, _ *pglock.Lease) error {
				works()
				<-ctx.Done()
				return ctx.Err()
			}
			return frometcd.ElectionDuring(ctx, s.client(), etcd, "a", work)
		},
	} {
		t.Run(name, func(t *testing.T) {
			etcd, cut := link(t, server)
			ctx, stop := context.WithCancel(t.Context())
			stopped, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				ended <- run(ctx, etcd, func() {
					close(cut)
					stop()
					close(stopped)
				})
			}()
			select {
			case <-stopped:
			case err := <-ended:
				t.Fatalf("the program did not come as far as its work: %v", err)
			}
			select {
			case err := <-ended:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%v, want %v", err, context.Canceled)
				}
			case <-time.After(patience):
				t.Errorf("the program still waits for etcd after %v", patience)
				_ = etcd.Close()
				<-ended
			}
		})
	}
}

// eventually waits until the query answers true.
func (s *scene) eventually(query string, args ...any) {
	s.t.Helper()
	for began, is := time.Now(), false; !is; {
		if err := s.pool.QueryRow(s.t.Context(), query, args...).Scan(&is); err != nil {
			s.t.Error(err)
			return
		}
		if time.Since(began) > patience {
			s.t.Errorf("waited %v in vain: %s", patience, query)
			return
		}
		time.Sleep(2 * time.Millisecond) // between two looks; nothing depends on its length
	}
}
