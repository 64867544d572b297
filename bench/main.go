// Command bench measures this library beside its alternatives. README.md says how to run it, how to add a peer, and
// what each number means.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/pglock-dev/pglock/bench/internal/server"
	"github.com/pglock-dev/pglock/bench/internal/worker"
)

func main() {
	if err := role(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// role finds out whether this process was started by hand, or is one of those that the program starts itself.
func role() error {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case worker.Role:
			return worker.Run(context.Background())
		case server.KeeperRole:
			return server.Keeper()
		case server.EtcdRole:
			if len(os.Args) != 3 {
				return errors.New("an etcd server needs its order")
			}
			return server.Etcd(os.Args[2])
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return bench(ctx, os.Args[1:])
}
