//go:build unix

package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// decoder turns messages of PostgreSQL's logical replication, protocol version 1, into commits.
type decoder struct {
	relations map[uint32]relation
	commit    *history.Commit // in progress
}

type relation struct {
	schema, name string
	columns      []string
}

var errShort = errors.New("cluster: a message of the replication is too short")

// message takes the next message. It returns a commit if that message is the last of a transaction.
func (d *decoder) message(m []byte) (*history.Commit, error) {
	b := bites{rest: m}
	var err error
	switch kind := b.byte(); kind {
	case 'B':
		d.commit = &history.Commit{Position: b.int64(), At: sincePostgresEpoch(int64(b.int64())), Xid: b.int32()}
	case 'C':
		done := d.commit
		d.commit = nil
		return done, nil
	case 'R':
		id := b.int32()
		r := relation{schema: b.text(), name: b.text()}
		b.byte()
		for range b.int16() {
			b.byte()
			r.columns = append(r.columns, b.text())
			b.int32()
			b.int32()
		}
		d.relations[id] = r
	case 'I', 'U', 'D':
		err = d.row(kind, &b)
	}
	if b.short {
		err = errShort
	}
	return nil, err
}

func (d *decoder) row(kind byte, b *bites) error {
	r, known := d.relations[b.int32()]
	if !known || d.commit == nil {
		return errors.New("cluster: the replication speaks of an unknown table")
	}
	column := make(map[string]string, len(r.columns))
	for what := b.byte(); ; what = b.byte() {
		clear(column)
		for i := range int(b.int16()) {
			switch b.byte() {
			case 't':
				if value := string(b.take(int(b.int32()))); i < len(r.columns) {
					column[r.columns[i]] = value
				}
			case 'n', 'u':
			}
		}
		if what == 'N' || kind == 'D' || b.short {
			break
		}
	}
	switch {
	case r.schema == locksSchema && r.name == locksTable:
		v, err := versionOf(column)
		v.Gone = kind == 'D'
		d.commit.Versions = append(d.commit.Versions, v)
		return err
	case r.name == "links":
		l, err := linkOf(column)
		if err == nil && kind == 'I' {
			d.commit.Links = append(d.commit.Links, l)
		}
		return err
	case r.name == "marks":
		n, err := strconv.ParseInt(column["n"], 10, 64)
		d.commit.Mark = n
		return err
	}
	return fmt.Errorf("cluster: the replication speaks of table %s.%s", r.schema, r.name)
}

func sincePostgresEpoch(us int64) time.Time {
	return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(us) * time.Microsecond)
}

// bites reads a message from its front. If the message is too short it returns zeros, and reports that at the end.
type bites struct {
	rest  []byte
	short bool
}

func (b *bites) take(n int) []byte {
	if n < 0 || n > len(b.rest) {
		b.short, b.rest = true, nil
		return nil
	}
	taken := b.rest[:n]
	b.rest = b.rest[n:]
	return taken
}

func (b *bites) byte() byte {
	if t := b.take(1); t != nil {
		return t[0]
	}
	return 0
}

func (b *bites) int16() uint16 {
	if t := b.take(2); t != nil {
		return binary.BigEndian.Uint16(t)
	}
	return 0
}

func (b *bites) int32() uint32 {
	if t := b.take(4); t != nil {
		return binary.BigEndian.Uint32(t)
	}
	return 0
}

func (b *bites) int64() uint64 {
	if t := b.take(8); t != nil {
		return binary.BigEndian.Uint64(t)
	}
	return 0
}

func (b *bites) text() string {
	for i, c := range b.rest {
		if c == 0 {
			s := string(b.rest[:i])
			b.rest = b.rest[i+1:]
			return s
		}
	}
	b.short = true
	return ""
}
