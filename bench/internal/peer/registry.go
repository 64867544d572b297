package peer

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// All are the peers in the order in which tables show them.
func All() []Kind {
	return []Kind{
		Pglock(), PglockHistory(), PglockWithoutHistory(),
		BareSync(), BareAsync(), BareBatched(), BareHandOver(), BareRenew(), PlainWrite(), BareFence(),
		Pgbench(), Advisory(), Goose(),
		Redislock("redislock", RedisMemory, 100*time.Millisecond, W1, W2, W3, W4),
		Redislock("redislock-16ms", RedisMemory, 16*time.Millisecond, W4),
		Redislock("redislock-flushed", RedisFlushed, 100*time.Millisecond, W1, W2),
		Redsync("redsync", RedisMemory, W1, W2, W4),
		Redsync("redsync-flushed", RedisFlushed, W1),
		EtcdMutex(), ZooKeeperLock(),
		// cirello.io/pglock and allisson/go-pglock belong here: see elsewhere.go.
	}
}

// Named gives the peers of these names, in the order of All; all of them for no names.
func Named(names []string) ([]Kind, error) {
	all := All()
	if len(names) == 0 {
		return all, nil
	}
	var known []string
	for _, k := range all {
		known = append(known, k.Name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("peer %q: must be one of %s", name, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(all, func(k Kind) bool { return !slices.Contains(names, k.Name) }), nil
}
