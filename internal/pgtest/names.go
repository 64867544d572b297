package pgtest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"
)

// names makes the names of databases. All of one process begin alike, and no
// two processes make the same, so that they can share a server.
type names struct {
	prefix string
	last   *atomic.Int64
}

func newNames(now time.Time) names {
	var random [6]byte
	rand.Read(random[:]) // never fails
	return names{
		prefix: fmt.Sprintf("pglock_test_%d_%s", now.Unix(), hex.EncodeToString(random[:])),
		last:   new(atomic.Int64),
	}
}

func (n names) template() string { return n.prefix + "_template" }

func (n names) next() string { return fmt.Sprintf("%s_%d", n.prefix, n.last.Add(1)) }

var namePattern = regexp.MustCompile(`^(pglock_test_([0-9]+)_[0-9a-f]+)(_.*)?$`)

// parseName gives the prefix of the process that made the name, and when that
// process began.
func parseName(name string) (prefix string, made time.Time, ok bool) {
	m := namePattern.FindStringSubmatch(name)
	if m == nil {
		return "", time.Time{}, false
	}
	seconds, err := strconv.ParseInt(m[2], 10, 64)
	if err != nil {
		return "", time.Time{}, false
	}
	return m[1], time.Unix(seconds, 0), true
}
