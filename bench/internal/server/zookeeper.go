package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pglock-dev/pglock/bench/internal/peer"
)

// zooKeeperJar is Debian's; it names the others that it needs.
const zooKeeperJar = "/usr/share/java/zookeeper.jar"

// startZooKeeper runs Debian's server with its own configuration and data folder.
func startZooKeeper(ctx context.Context, o Options) (*Running, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(zooKeeperJar); err != nil {
		return nil, err
	}
	tick := peer.ZooKeeperTick
	if o.Smoke {
		tick = peer.ZooKeeperTickSmoke
	}
	return onFreePorts(ctx, "zookeeper", 1, func(folder string, ports []int) (*Running, error) {
		if err := configure(folder, ports[0], tick); err != nil {
			return nil, err
		}
		k, err := keep(order{
			Folder: folder, Program: java,
			Args: []string{
				"-Xmx1000m", "-Dzookeeper.jmx.log4j.disable=true", "-cp", folder + ":" + zooKeeperJar,
				"org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(folder, zooKeeperConfig),
			},
		})
		if err != nil {
			return nil, err
		}
		r := &Running{
			Address: hostPort(ports[0]), Port: ports[0], PID: k.pid, Version: "ZooKeeper " + zooKeeperVersion(),
			Settings: fmt.Sprintf("one server; tickTime=%d maxClientCnxns=0, 1000 MB heap, its script's default",
				tick/time.Millisecond),
			stop: k.stop,
		}
		if err := k.await(ctx, func(ctx context.Context) error { return askZooKeeper(ctx, r.Address) }); err != nil {
			return nil, errors.Join(err, k.stop())
		}
		return r, nil
	})
}

const (
	zooKeeperConfig  = "zoo.cfg"
	zooKeeperLogging = `log4j.rootLogger=WARN, OUT
log4j.appender.OUT=org.apache.log4j.ConsoleAppender
log4j.appender.OUT.layout=org.apache.log4j.SimpleLayout
`
)

// configure writes the server's files: on loopback only, and nothing else that listens or answers.
func configure(folder string, port int, tick time.Duration) error {
	config := fmt.Sprintf(`tickTime=%d
dataDir=%s
clientPort=%d
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
4lw.commands.whitelist=
`, tick/time.Millisecond, filepath.Join(folder, "data"), port)
	return errors.Join(
		os.WriteFile(filepath.Join(folder, zooKeeperConfig), []byte(config), 0o600),
		os.WriteFile(filepath.Join(folder, "log4j.properties"), []byte(zooKeeperLogging), 0o600),
	)
}

// zooKeeperVersion is in the name of the jar's other name.
func zooKeeperVersion() string {
	others, _ := filepath.Glob("/usr/share/java/zookeeper-[0-9]*.jar") // the pattern is well formed
	if len(others) != 1 {
		return "of an unknown version"
	}
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(others[0]), "zookeeper-"), ".jar")
}

// askZooKeeper makes a session, and reads: the port is open before the server serves.
func askZooKeeper(ctx context.Context, address string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address) // the client below would try for ever
	if err != nil {
		return err
	}
	_ = conn.Close()
	c, events, err := zk.Connect([]string{address}, 4*time.Second, zk.WithLogInfo(false), zk.WithLogger(quiet{}))
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				_, _, err := c.Exists("/")
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}
