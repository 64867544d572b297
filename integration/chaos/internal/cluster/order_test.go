//go:build unix

package cluster

import (
	"encoding/binary"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/internal/dev/must"
)

// message builds a message of the replication of these parts: bytes, integers of their size, strings that end with a
// NUL.
func message(parts ...any) (m []byte) {
	for _, p := range parts {
		switch p := p.(type) {
		case byte:
			m = append(m, p)
		case uint16:
			m = binary.BigEndian.AppendUint16(m, p)
		case uint32:
			m = binary.BigEndian.AppendUint32(m, p)
		case uint64:
			m = binary.BigEndian.AppendUint64(m, p)
		case string:
			m = append(append(m, p...), 0)
		case []byte:
			m = append(m, p...)
		}
	}
	return m
}

// row builds a row of values; "" is NULL.
func row(values ...string) (m []byte) {
	m = binary.BigEndian.AppendUint16(m, uint16(len(values)))
	for _, v := range values {
		if v == "" {
			m = append(m, 'n')
			continue
		}
		m = append(binary.BigEndian.AppendUint32(append(m, 't'), uint32(len(v))), v...)
	}
	return m
}

func relationMessage(id uint32, schema, name string, columns ...string) []byte {
	m := message(byte('R'), id, schema, name, byte('d'), uint16(len(columns)))
	for _, c := range columns {
		m = append(m, message(byte(0), c, uint32(25), uint32(0))...)
	}
	return m
}

func TestCommitIsMadeOfTheMessagesOfTheReplication(t *testing.T) {
	d := decoder{relations: make(map[uint32]relation)}
	columns := []string{"name", "slot", "token", "holder", "grant_id", "mode", "capacity", "acquired_at", "expires_at",
		"ended_at"}
	var commits []history.Commit
	for _, m := range [][]byte{
		relationMessage(1, "pglock", "locks", columns...),
		relationMessage(2, "public", "links", "op", "resource", "prev", "lock", "slot", "token", "again"),
		relationMessage(3, "public", "marks", "one", "n"),
		message(byte('B'), uint64(77), uint64(1_000_000), uint32(42)),
		message(byte('I'), uint32(1), byte('N'), row("x", "2", "5", "alice", "g", "limit", "3",
			"2026-01-02 03:04:05.5+00", "2026-01-02 03:04:06+00", "")),
		message(byte('U'), uint32(1), byte('K'), row("x", "0"), byte('N'), row("x", "0", "6", "bob", "h", "exclusive",
			"", "2026-01-02 03:04:05+00", "-infinity", "2026-01-02 03:04:05.25+00")),
		message(byte('D'), uint32(1), byte('K'), row("y", "1")),
		message(byte('I'), uint32(2), byte('N'), row("9", "x", "8", "x", "2", "5", "t")),
		message(byte('U'), uint32(3), byte('N'), row("t", "12")),
		message(byte('C'), byte(0), uint64(77), uint64(78), uint64(1_000_000)),
	} {
		c, err := d.message(m)
		if err != nil {
			t.Fatalf("%q: %v", m, err)
		}
		if c != nil {
			commits = append(commits, *c)
		}
	}
	at := func(s string) time.Time {
		when := must.Get(time.Parse(time.RFC3339Nano, s))(t)
		return when
	}
	want := history.Commit{
		Position: 77, Xid: 42, At: at("2000-01-01T00:00:01Z"), Mark: 12,
		Links: []history.Link{{Op: 9, Resource: "x", Prev: 8, Lock: "x", Slot: 2, Token: 5, Again: true}},
		Versions: []history.Version{
			{Name: "x", Slot: 2, Token: 5, Holder: "alice", Grant: "g 2026-01-02 03:04:05.5+00", Mode: "limit",
				Capacity: 3, AcquiredAt: at("2026-01-02T03:04:05.5Z"), ExpiresAt: at("2026-01-02T03:04:06Z")},
			{Name: "x", Token: 6, Holder: "bob", Grant: "h 2026-01-02 03:04:05+00", Mode: "exclusive",
				AcquiredAt: at("2026-01-02T03:04:05Z"), EndedAt: at("2026-01-02T03:04:05.25Z")},
			{Name: "y", Slot: 1, Grant: " ", Gone: true},
		},
	}
	if len(commits) != 1 {
		t.Fatalf("%d commits", len(commits))
	}
	got := commits[0]
	for i := range got.Versions {
		v := &got.Versions[i]
		for _, moment := range []*time.Time{&v.AcquiredAt, &v.ExpiresAt, &v.EndedAt} {
			if !moment.IsZero() {
				*moment = moment.UTC()
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for i, held := range []bool{true, false, false} {
		if got.Versions[i].Held() != held {
			t.Errorf("version %d is held: %v", i, !held)
		}
	}
}

func TestMessageThatIsCutShortIsAnError(t *testing.T) {
	d := decoder{relations: make(map[uint32]relation)}
	whole := relationMessage(1, "pglock", "locks", "name")
	for n := 1; n < len(whole); n++ {
		if _, err := d.message(whole[:n]); !errors.Is(err, errShort) {
			t.Errorf("%d of %d bytes: %v", n, len(whole), err)
		}
	}
}
