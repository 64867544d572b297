package takeback

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
)

func add(l *List, n int, spend bool) {
	for range n {
		l.Add(protocol.RequestID{Name: "report", GrantID: uuid.New()}, spend, time.Second, 0)
	}
}

func TestBatchesAreOfOneKindAndNoLargerThanTheMost(t *testing.T) {
	l := New()
	if batch, wait := l.Due(0, Most), l.Until(0); batch != nil || wait != pause.Never {
		t.Errorf("of nothing: %d after %v", len(batch), wait)
	}
	add(l, 1, true)
	add(l, Most+3, false)
	add(l, 2, true)
	for _, want := range []int{3, Most, 2, 1} {
		batch := l.Due(0, map[bool]int{true: 2, false: 2 * Most}[want == 2])
		if len(batch) != want {
			t.Errorf("a batch of %d, want %d", len(batch), want)
		}
		for _, r := range batch {
			if r.Spend != batch[0].Spend {
				t.Fatal("a batch of both kinds")
			}
		}
		if l.Empty() {
			t.Error("empty while a batch is on its way")
		}
		l.Succeeded()
	}
	if !l.Empty() {
		t.Error("something is left")
	}
}

func TestFailureIsTriedAgainLaterWithLess(t *testing.T) {
	l := New()
	add(l, 100, false)
	now := time.Duration(0)
	for i, want := range []time.Duration{20, 40, 80, 160, 320, 640, 1000, 1000} {
		wait := l.Until(now)
		batch := l.Due(now, Most)
		if wait != 0 || len(batch) != max(1, 100>>i) {
			t.Fatalf("attempt %d: %d requests after %v", i, len(batch), wait)
		}
		l.Failed(batch, nil, len(batch), errors.New("connection lost"), now)
		if wait := l.Until(now); wait != want*time.Millisecond || l.Due(now, Most) != nil {
			t.Errorf("after failure %d it waits %v, want %d ms", i, wait, want)
		}
		now += want * time.Millisecond
	}
	if batch := l.Due(now, Most); len(batch) != 1 {
		t.Errorf("%d requests at once after failures", len(batch))
	}
	l.Succeeded()
	if wait, batch := l.Until(now), l.Due(now, Most); len(batch) != 2 || wait != 0 {
		t.Errorf("%d requests after a success, after %v", len(batch), wait)
	}
}

// What the server has refused alone goes behind all others, also behind those that have come since.
func TestWhatWasRefusedAloneGoesBehindTheOthers(t *testing.T) {
	l := New()
	add(l, 3, false)
	batch := l.Due(0, Most)
	rest, refused := batch[2:], batch[:2]
	l.Failed(rest, refused, 3, &pgconn.PgError{Code: "55P03"}, 0)
	later := l.Add(protocol.RequestID{Name: "report", GrantID: uuid.New()}, false, time.Second, 0)
	if batch := l.Due(time.Second, 2); !slices.Equal(batch, []*Request{rest[0], later}) {
		t.Errorf("%v, want what was not refused alone: %v and %v", batch, rest[0], later)
	}
	l.Succeeded()
	if batch := l.Due(time.Second, Most); !slices.Equal(batch, refused) {
		t.Errorf("%v, want the refused %v", batch, refused)
	}
}

// A refusal that will not pass is repeated for a minute, or for as long as the lease may last; with an absent server,
// or a standby, for ever.
func TestRefusalIsGivenUpInTheEnd(t *testing.T) {
	for code, kept := range map[string]bool{"42501": false, "40P01": true, "57P01": true, "25006": true} {
		for ttl, lasts := range map[time.Duration]time.Duration{time.Second: refusedFor, time.Hour: time.Hour} {
			l := New()
			l.Add(protocol.RequestID{Name: "report", GrantID: uuid.New()}, false, ttl, 0)
			batch := l.Due(0, Most)
			l.Failed(nil, batch, 1, &pgconn.PgError{Code: code}, lasts-1)
			if l.Empty() {
				t.Errorf("%s: given up too soon with a TTL of %v", code, ttl)
			}
			batch = l.Due(lasts+time.Second, Most)
			l.Failed(nil, batch, 1, &pgconn.PgError{Code: code}, lasts+time.Second)
			if l.Empty() == kept {
				t.Errorf("%s: kept after %v: %v", code, lasts, !kept)
			}
		}
	}
}

func TestAllTakesEverythingInBatches(t *testing.T) {
	l := New()
	add(l, Most+1, false)
	add(l, 1, true)
	if batches := l.All(); len(batches) != 3 || len(batches[0]) != Most || len(batches[1]) != 1 ||
		!batches[2][0].Spend || !l.Empty() {
		t.Errorf("%d batches", len(batches))
	}
}
