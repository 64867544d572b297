package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// EtcdRole is the first argument that makes this program an etcd server, so that its processor time is its own; the
// second is its order.
const EtcdRole = "be-etcd"

type etcdOrder struct {
	Folder       string
	Client, Peer string // addresses
}

func startEtcd(ctx context.Context, _ Options) (*Running, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return onFreePorts(ctx, "etcd", 2, func(folder string, ports []int) (*Running, error) {
		what, err := json.Marshal(etcdOrder{folder, hostPort(ports[0]), hostPort(ports[1])})
		if err != nil {
			return nil, err
		}
		k, err := keep(order{Folder: folder, Program: self, Args: []string{EtcdRole, string(what)}})
		if err != nil {
			return nil, err
		}
		r := &Running{
			Address: hostPort(ports[0]), Port: ports[0], PID: k.pid, Version: "etcd " + version.Version + ", embedded",
			Settings: "one member; defaults", stop: k.stop,
		}
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{r.Address}, Logger: zap.NewNop()})
		if err == nil {
			defer client.Close()
			err = k.await(ctx, func(ctx context.Context) error {
				_, err := client.Get(ctx, "ready")
				return err
			})
		}
		if err != nil {
			return nil, errors.Join(err, k.stop())
		}
		return r, nil
	})
}

// Etcd is the life of an etcd server. Its keeper ends it by a signal.
func Etcd(what string) error {
	var o etcdOrder
	if err := json.Unmarshal([]byte(what), &o); err != nil {
		return err
	}
	config := embed.NewConfig()
	config.Name = "bench"
	config.Dir = filepath.Join(o.Folder, "data")
	config.LogLevel, config.LogOutputs = "error", []string{"stderr"}
	client, peer := url.URL{Scheme: "http", Host: o.Client}, url.URL{Scheme: "http", Host: o.Peer}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	s, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer s.Close()
	select {
	case <-s.Server.ReadyNotify():
	case <-time.After(patience):
		return fmt.Errorf("etcd was not ready within %v", patience)
	case err := <-s.Err():
		return err
	}
	select {
	case <-signals:
		return nil
	case err := <-s.Err():
		return err
	}
}
