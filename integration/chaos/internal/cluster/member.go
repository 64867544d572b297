//go:build unix

package cluster

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/integration/chaos/internal/wire"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
)

// service is a process that we have started.
type service struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// run starts a program of the folder, as the servers' user, with its output in a log.
func (p *Patroni) run(log, name string, args ...string) (*service, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(program(name), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.folder, out, out
	cmd.Env = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL=C.UTF-8", "TZ=UTC", "HOME=" + p.folder}
	cmd.SysProcAttr = session()
	p.owner.RunAs(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cluster: start %s: %w", name, err)
	}
	s := &service{cmd, make(chan struct{})}
	go func() {
		defer close(s.done)
		_ = cmd.Wait() // its log shows how it ended
	}()
	return s, nil
}

func (s *service) signal(sig syscall.Signal) { _ = s.cmd.Process.Signal(sig) }

func (s *service) kill() {
	s.signal(syscall.SIGKILL)
	<-s.done
}

// session gives a process a session of its own: an interrupt from the terminal does not reach it.
func session() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// freePort is one that the system gives to no outgoing connection.
func freePort() int {
	for {
		port := 20000 + rand.IntN(12000)
		if l, err := net.Listen("tcp", loopback(port)); err == nil {
			_ = l.Close()
			return port
		}
	}
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func (p *Patroni) startEtcd(ctx context.Context) (*service, error) {
	client, peer := "http://"+loopback(freePort()), "http://"+loopback(freePort())
	p.consensus = strings.TrimPrefix(client, "http://")
	s, err := p.run(p.path("etcd.log"), "etcd", "--enable-v2", "--name", "one", "--data-dir", p.path("etcd"),
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "one="+peer)
	if err != nil {
		return nil, err
	}
	return s, p.await(ctx, func() bool {
		answer, err := http.Get(client + "/health")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK // it has a leader, or Patroni would not start
	})
}

func (p *Patroni) startHAProxy(ctx context.Context) (err error) {
	p.proxy = loopback(freePort())
	var servers strings.Builder
	for _, m := range p.nodes {
		fmt.Fprintf(&servers, "    server %s %s check port %d\n", m.name, m.clients.Address(), m.rest)
	}
	config := fmt.Sprintf(haproxyConfig, p.proxy, servers.String())
	if err := p.owner.Write(p.path("haproxy.cfg"), config); err != nil {
		return err
	}
	if p.haproxy, err = p.run(p.path("haproxy.log"), "haproxy", "-db", "-f", p.path("haproxy.cfg")); err != nil {
		return err
	}
	// It leads to every server in turn until its checks have failed.
	in, row := &Member{url: strings.Replace(p.leader().url, loopback(p.leader().port), p.proxy, 1)}, 0
	return p.await(ctx, func() bool {
		if row++; !in.leads(ctx) {
			row = 0
		}
		return row > 2*len(p.nodes)
	})
}

// haproxyConfig is as Patroni's documentation has it, with shorter times.
const haproxyConfig = `global
    maxconn 2000
defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h
    timeout check 1s
listen primary
    bind %s
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions
%s`

// Member is one server of Patroni's.
type Member struct {
	patroni   *Patroni
	name      string
	port      int
	rest      int    // Patroni's port
	url       string // the superuser's, directly
	folder    string
	log       string
	gate      string     // this file is there while the server is about to be promoted
	clients   *wire.Line // by which clients reach it
	peers     *wire.Line // by which the other servers do
	consensus *pipe      // by which it reaches etcd
	process   *service
}

func (p *Patroni) newMember(n int) (*Member, error) {
	m := &Member{patroni: p, name: fmt.Sprint("node", n), port: freePort(), rest: freePort()}
	m.folder = p.path(m.name)
	m.log, m.gate = p.path(m.name+".log"), filepath.Join(m.folder, "promoting")
	u := url.URL{Scheme: "postgres", User: url.UserPassword("postgres", p.password), Host: loopback(m.port),
		Path: "/postgres", RawQuery: "sslmode=disable"}
	m.url = u.String()
	m.clients, m.peers = listenLine(loopback(m.port)), listenLine(loopback(m.port))
	var err error
	if m.consensus, err = newPipe(p.consensus); err != nil {
		return nil, err
	}
	if err := os.Mkdir(m.folder, 0o700); err != nil {
		return nil, err
	}
	if err := p.owner.Own(m.folder); err != nil {
		return nil, err
	}
	script := fmt.Sprintf("touch %[1]s\nn=0\n"+
		"while [ -e %[1]s ] && [ $n -lt 1000 ]; do sleep 0.01; n=$((n+1)); done\n", m.gate)
	if err := p.owner.Write(filepath.Join(m.folder, "gate.sh"), script); err != nil {
		return nil, err
	}
	return m, p.owner.Write(m.config(), fmt.Sprintf(patroniConfig, m.name, m.rest, m.consensus.address(),
		patroniTTL, patroniLoop, patroniRetry, p.Sync, p.programs.BinDir, m.port, m.peers.Address(),
		m.folder, p.password))
}

func (m *Member) config() string { return filepath.Join(m.folder, "patroni.yml") }

// patroniConfig is the whole of it. Of the servers' settings only those for speed are not as in a cluster for use.
// Patroni would learn etcd's own address and reach that, but for use_proxies. It speaks etcd's older protocol: by the
// newer one Patroni 3.0.2 takes the leader's key from another when it goes on after it stood still (_update_leader of
// etcd3.py puts it without a comparison), and what the other has answered is lost.
const patroniConfig = `scope: chaos
name: %[1]s
restapi: {listen: '127.0.0.1:%[2]d', connect_address: '127.0.0.1:%[2]d'}
etcd: {hosts: '%[3]s', use_proxies: true}
bootstrap:
  dcs:
    ttl: %[4]d
    loop_wait: %[5]d
    retry_timeout: %[6]d
    maximum_lag_on_failover: 1048576
    synchronous_mode: %[7]v
    ignore_slots: [{name: chaos, type: logical}]
    postgresql:
      use_pg_rewind: true
      use_slots: true
      parameters: {wal_level: logical, wal_keep_size: 128MB, max_connections: 600, max_wal_senders: 12,
        max_replication_slots: 12, fsync: 'off', unix_socket_directories: '', dynamic_shared_memory_type: mmap,
        wal_retrieve_retry_interval: 500ms, password_encryption: md5, log_line_prefix: '%%m [%%p] %%a %%e '}
  initdb: [{encoding: UTF8}, {locale: C.UTF-8}, {wal-segsize: '1'}, no-sync]
postgresql:
  listen: '127.0.0.1:%[9]d'
  connect_address: '%[10]s'
  data_dir: %[11]s/data
  bin_dir: %[8]s
  pgpass: %[11]s/pgpass
  pre_promote: /bin/sh %[11]s/gate.sh
  pg_hba: ['host all all 127.0.0.1/32 md5', 'host replication all 127.0.0.1/32 md5']
  authentication:
    superuser: {username: postgres, password: '%[12]s', sslmode: disable}
    replication: {username: replicator, password: '%[12]s', sslmode: disable}
`

func (m *Member) start() (err error) {
	m.process, err = m.patroni.run(m.log, "patroni", m.config())
	return err
}

func (m *Member) ask(ctx context.Context, f func(*pgx.Conn) error) error {
	return (&node{url: m.url}).ask(ctx, f)
}

// leads says that the server takes writes.
func (m *Member) leads(ctx context.Context) (yes bool) {
	brief, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = m.ask(brief, func(conn *pgx.Conn) error {
		return conn.QueryRow(brief, `SELECT NOT pg_is_in_recovery()`).Scan(&yes)
	})
	return yes
}

// pids are the processes of the server: its postmaster first, and what that has started.
func (m *Member) pids() []int {
	content, _ := os.ReadFile(filepath.Join(m.folder, "data", "postmaster.pid"))
	line, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(line)
	command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(command), m.folder) {
		return nil
	}
	children, _ := pgserver.ChildrenOf(pid)
	return append([]int{pid}, children...)
}

// kill ends all processes of the member at once, as if its machine had gone.
func (m *Member) kill() {
	if m.process == nil {
		return
	}
	m.process.signal(syscall.SIGSTOP) // it would start another server
	pids := m.pids()
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	m.process.kill()
	for deadline := time.Now().Add(10 * time.Second); len(m.pids()) > 0 && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
}

// end ends the member for good. The server has a moment to give its shared memory back.
func (m *Member) end() {
	if m.process == nil {
		return
	}
	m.process.kill()
	pids := m.pids()
	for i, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGCONT)
		if i == 0 {
			_ = syscall.Kill(pid, syscall.SIGQUIT)
		}
	}
	for deadline := time.Now().Add(5 * time.Second); len(m.pids()) > 0 && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	m.kill()
}

// still stops all processes of the member, and lets them go on.
func (m *Member) still() (goOn func()) {
	m.process.signal(syscall.SIGSTOP)
	pids := m.pids()
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
	return func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		m.process.signal(syscall.SIGCONT)
	}
}

// awaitsPromotion says that the server is about to be promoted, and waits for us.
func (m *Member) awaitsPromotion() bool {
	_, err := os.Stat(m.gate)
	return err == nil
}

// tail is the end of the log.
func (m *Member) tail() string {
	log, _ := os.ReadFile(m.log)
	return string(log[max(0, len(log)-3000):])
}

// pipe carries bytes to an address, until it is cut.
type pipe struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	isCut bool
	conns []net.Conn
	tasks sync.WaitGroup
}

func newPipe(to string) (*pipe, error) {
	listener, err := net.Listen("tcp", loopback(freePort()))
	if err != nil {
		return nil, err
	}
	p := &pipe{listener: listener, to: to}
	p.tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.tasks.Go(func() { p.carry(conn) })
		}
	})
	return p, nil
}

func (p *pipe) address() string { return p.listener.Addr().String() }

func (p *pipe) carry(from net.Conn) {
	to, err := net.Dial("tcp", p.to)
	if err != nil {
		_ = from.Close()
		return
	}
	p.mu.Lock()
	p.conns = append(p.conns, from, to)
	if p.isCut {
		_, _ = from.Close(), to.Close()
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			_, _ = io.Copy(way[1], way[0])
			_, _ = way[0].Close(), way[1].Close()
		})
	}
	both.Wait()
}

// cut ends all connections and refuses others until mend is called.
func (p *pipe) cut() (mend func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isCut = true
	for _, conn := range p.conns {
		_ = conn.Close()
	}
	p.conns = nil
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.isCut = false
	}
}

func (p *pipe) close() {
	_ = p.listener.Close()
	p.cut()
	p.tasks.Wait()
}
