//go:build unix

package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/integration/chaos/internal/wire"
	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/migrations"
)

// The times of Patroni, in seconds, about as short as a busy machine and ttl >= loop_wait + 2*retry_timeout allow.
const (
	patroniTTL   = 10
	patroniLoop  = 1
	patroniRetry = 4
)

// whole is how long a cluster may take to be whole again after a fault.
const whole = 2 * time.Minute

// Patroni is three servers that Patroni keeps, one etcd, and HAProxy before them. Clients reach each server by a line
// of its own, and the servers reach each other by others. Between the moment in which a standby is about to be promoted
// and the moment in which the order of its commits is followed, its line holds everything back.
type Patroni struct {
	*Cluster
	Sync bool // synchronous_mode

	folder    string
	owner     *pgprograms.User
	minder    *exec.Cmd
	etcd      *service
	consensus string // address of etcd
	haproxy   *service
	proxy     string // address of HAProxy
	nodes     []*Member
	promoted  func(history.Promotion)

	watching context.CancelFunc
	watched  sync.WaitGroup
	safe     atomic.Int64 // history.Time of the beginning of the last fault
}

// PatroniPrograms says which of the programs are missing.
func PatroniPrograms() (missing []string) {
	for _, name := range []string{"patroni", "etcd", "haproxy"} {
		if program(name) == "" {
			missing = append(missing, name)
		}
	}
	return missing
}

func program(name string) string {
	for _, candidate := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path
		}
	}
	return ""
}

// StartPatroni is Start for a cluster that Patroni keeps. promoted is called for every promotion, before anybody
// reaches the new primary.
func StartPatroni(ctx context.Context, programs pgprograms.Programs, sync bool, commit func(history.Commit),
	promoted func(history.Promotion), fail func(error)) (_ *Patroni, err error) {
	if missing := PatroniPrograms(); len(missing) > 0 {
		return nil, fmt.Errorf("cluster: there is no program %s", strings.Join(missing, ", "))
	}
	c := &Cluster{programs: programs, password: rand.Text(), commit: commit, fail: fail, unfollow: func() {}}
	p := &Patroni{Cluster: c, Sync: sync, promoted: promoted, watching: func() {}}
	c.patroni = p
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if err := p.makeFolder(); err != nil {
		return nil, err
	}
	if err := p.startAll(ctx); err != nil {
		return nil, err
	}
	if err := migrations.Up(ctx, c.URL()); err != nil {
		return nil, err
	}
	if err := c.ask(ctx, func(conn *pgx.Conn) error {
		if err := makeApp(ctx, conn, c.password); err != nil {
			return err
		}
		return makeSlot(ctx, conn)
	}); err != nil {
		return nil, err
	}
	c.followPrimary()
	watching, stop := context.WithCancel(context.Background())
	p.watching = stop
	p.watched.Go(func() { p.watch(watching) })
	return p, nil
}

// makeFolder makes the folder of everything, and starts the process that ends the servers and removes the folder when
// this process has ended, however it has.
func (p *Patroni) makeFolder() (err error) {
	if p.owner, err = pgprograms.Account(); err != nil {
		return err
	}
	if p.folder, err = os.MkdirTemp(p.owner.TempDir(), "pglock-patroni-"); err != nil {
		return err
	}
	if err := p.owner.Own(p.folder); err != nil {
		return err
	}
	p.minder = exec.Command("/bin/sh", "-c", minderOfPatroni, "pglock-patroni-minder", p.folder)
	p.minder.SysProcAttr = session()
	if _, err = p.minder.StdinPipe(); err != nil {
		return err
	}
	return p.minder.Start()
}

// minderOfPatroni ends what still names the folder in its command line, which is all that was started there but the
// children of postmasters: they end with these. The shell's own command line names it too.
const minderOfPatroni = `trap '' HUP INT TERM
while read -r line; do :; done
for signal in QUIT QUIT KILL KILL; do
	for f in /proc/[0-9]*; do
		pid=${f#/proc/}
		[ "$pid" = $$ ] && continue
		case $(tr '\0' ' ' 2>/dev/null <"$f/cmdline") in *"$1"*) kill -$signal "$pid"; kill -CONT "$pid" ;; esac
	done 2>/dev/null
	sleep 0.2
done
rm -rf "$1"`

func (p *Patroni) startAll(ctx context.Context) (err error) {
	if p.etcd, err = p.startEtcd(ctx); err != nil {
		return err
	}
	for n := range 3 {
		m, err := p.newMember(n)
		if err != nil {
			return err
		}
		p.nodes = append(p.nodes, m)
	}
	if err := p.nodes[0].start(); err != nil {
		return err
	}
	if err := p.await(ctx, func() bool { return p.nodes[0].leads(ctx) }); err != nil {
		return fmt.Errorf("%w\n%s", err, p.nodes[0].tail())
	}
	for _, m := range p.nodes[1:] {
		if err := m.start(); err != nil {
			return err
		}
	}
	p.setPrimary(p.nodes[0])
	if err := p.Whole(ctx); err != nil {
		return err
	}
	return p.startHAProxy(ctx)
}

func (p *Patroni) setPrimary(m *Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	mode := "asynchronous"
	if p.Sync {
		mode = "synchronous"
	}
	p.primary = &node{pgserver.Known(pgserver.KindURL, m.url, fmt.Sprintf(
		"PostgreSQL %s under Patroni, three servers, %s", p.programs.Version, mode)), m.url}
}

// await asks until the answer is true.
func (p *Patroni) await(ctx context.Context, done func() bool) error {
	for deadline := time.Now().Add(whole); !done(); pause(ctx, 50*time.Millisecond) {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return errors.Join(fmt.Errorf("cluster: waited in vain for Patroni"), ctx.Err())
		}
	}
	return nil
}

// Whole waits until one server leads, both others follow it, and a synchronous standby is there where one must be.
func (p *Patroni) Whole(ctx context.Context) error {
	const complete = `SELECT NOT pg_is_in_recovery() AND count(*) FILTER (WHERE state = 'streaming') = 2
		AND (count(*) FILTER (WHERE sync_state = 'sync') >= 1 OR NOT $1) FROM pg_stat_replication
		WHERE application_name LIKE 'node%'`
	err := p.await(ctx, func() bool {
		brief, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		yes := false
		_ = p.leader().ask(brief, func(conn *pgx.Conn) error {
			return conn.QueryRow(brief, complete, p.Sync).Scan(&yes)
		})
		return yes
	})
	return p.told(err)
}

// told adds to an error what the servers have said.
func (p *Patroni) told(err error) error {
	if err != nil {
		for _, m := range p.nodes {
			err = fmt.Errorf("%w\n%s: %s", err, m.name, m.tail())
		}
	}
	return err
}

// leader is the server that clients are led to.
func (p *Patroni) leader() *Member {
	url := p.URL()
	for _, m := range p.nodes {
		if m.url == url {
			return m
		}
	}
	return p.nodes[0]
}

// HostsURL is the application's connection string with every server, as they are listed; ProxyURL is that by HAProxy.
func (p *Patroni) HostsURL() string {
	var hosts []string
	for _, m := range p.nodes {
		hosts = append(hosts, m.clients.Address())
	}
	return p.userURL(App, strings.Join(hosts, ",")) + "&target_session_attrs=read-write&connect_timeout=3"
}

// ProxyURL is the application's connection string by HAProxy.
func (p *Patroni) ProxyURL() string { return p.userURL(App, p.proxy) + "&connect_timeout=3" }

// stop ends everything.
func (p *Patroni) stop() error {
	var errs []error
	for _, m := range p.nodes {
		m.end()
		errs = append(errs, m.clients.Close(), m.peers.Close())
		m.consensus.close()
	}
	for _, s := range []*service{p.haproxy, p.etcd} {
		if s != nil {
			s.kill()
		}
	}
	if p.minder != nil && p.minder.Process != nil {
		_ = p.minder.Process.Kill()
		_ = p.minder.Wait()
	}
	return errors.Join(append(errs, os.RemoveAll(p.folder))...)
}

// ofPatroni is a line of a server's log about what Patroni, another server or the follower of a former leader has asked
// it, or of a standby that must be rewound because it has received more than the new leader: not the library's.
var ofPatroni = regexp.MustCompile(`(?m)^.* \[\d+\] (?:(?:node\d|Patroni|chaos order).*|` +
	` XX000 FATAL:  requested timeline \d+ does not contain minimum recovery point .*)\n`)

func (p *Patroni) memberLogs() (logs []string) {
	for _, m := range p.nodes {
		log, _ := os.ReadFile(m.log)
		logs = append(logs, ofPatroni.ReplaceAllString(string(log), ""))
	}
	return logs
}

// watch heeds every promotion until ctx ends.
func (p *Patroni) watch(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx, 5*time.Millisecond) {
		for _, m := range p.nodes {
			if m.awaitsPromotion() {
				if err := p.promote(ctx, m); err != nil && ctx.Err() == nil {
					p.fail(fmt.Errorf("cluster: promotion of %s: %w", m.name, err))
					return
				}
			}
		}
	}
}

// promote lets a standby become the primary, and leads clients to it. Nobody reaches it before we follow its commits.
func (p *Patroni) promote(ctx context.Context, m *Member) error {
	p.unfollow()
	p.followed.Wait()
	for _, end := range silence(m.clients) {
		defer end()
	}
	promotion := history.Promotion{Lossy: !p.Sync, Dead: history.Now()}
	promotion.Safe = promotion.Dead
	if !p.Sync {
		promotion.Safe = history.Time(p.safe.Load())
	}
	instead := false // it has lost the race before it was promoted
	if err := p.await(ctx, func() bool {
		_ = os.Remove(m.gate) // it may be back: Patroni begins anew when it loses etcd meanwhile
		instead = slices.ContainsFunc(p.nodes, func(o *Member) bool { return o != m && o.awaitsPromotion() })
		return instead || m.leads(ctx)
	}); err != nil || instead {
		return err
	}
	if err := m.ask(ctx, func(conn *pgx.Conn) (err error) {
		if err := makeSlot(ctx, conn); err != nil {
			return err
		}
		promotion.State, err = readState(ctx, conn)
		return err
	}); err != nil {
		return err
	}
	p.setPrimary(m)
	promotion.Opened = history.Now()
	p.promoted(promotion)
	p.followPrimary()
	return nil
}

func listenLine(to string) *wire.Line {
	line, err := wire.Listen(to)
	if err != nil {
		panic(err) // a hundred ports were taken
	}
	return line
}

func (p *Patroni) path(name string) string { return filepath.Join(p.folder, name) }
