package queue

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/trust"
)

// Hint is the grant of a ticket as the server reports it. Its time is when the ticket was last seen in the queue, so
// that trust in it ends before the lease, however late it arrives.
type Hint struct {
	ticket int64
	Token  int64
	Slot   int
	Left   time.Duration // of the lease, at the announcement
	Seen   trust.Instant // a moment before the grant, from which trust counts
}

// early is a hint that waits until its ticket is known.
type early struct {
	text string
	sent *trust.Instant
}

// earlyMost limits what a stranger's notifications can make a client remember.
const earlyMost = 1024

// digest is what only those who know the grant ID can put before the text of a hint.
func digest(text string, grantID uuid.UUID) string {
	sum := sha256.Sum256(append([]byte(text), grantID[:]...))
	return hex.EncodeToString(sum[:])
}

// parse reads the server's report of a grant. One without a token only says that the call should ask again.
func parse(text string) (h Hint, ok bool) {
	var left int64
	fields := strings.Fields(text)
	if len(fields) != 4 || strings.Join(fields, " ") != text {
		return h, false
	}
	for i, target := range []*int64{&h.ticket, &h.Token, nil, &left} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		switch {
		case err != nil || n < 0:
			return h, false
		case target == nil:
			h.Slot = int(n)
		default:
			*target = n
		}
	}
	h.Left = time.Duration(left) * time.Microsecond
	return h, h.Token > 0 || h.Slot == 0 && h.Left == 0
}

// Hear gives the hint of a grant to its ticket. sent is a local time before the grant, nil if unknown. A hint belongs
// to one ticket, and its digest proves that it comes from the server. A hint that arrives before the answer with its
// ticket is kept until then.
func (q *Queue) Hear(text string, sent *trust.Instant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hear(text, sent)
}

func (q *Queue) hear(text string, sent *trust.Instant) {
	proof, said, _ := strings.Cut(text, " ")
	h, ok := parse(said)
	if !ok || len(proof) != 2*sha256.Size {
		return
	}
	t := q.tickets[h.ticket]
	if t == nil {
		if len(q.early) >= earlyMost {
			clear(q.early) // of calls that have left
		}
		q.early[h.ticket] = early{text, sent}
		return
	}
	if proof != digest(said, t.grantID) {
		return
	}
	if h.Seen = t.seen; sent != nil {
		h.Seen = *sent
	}
	if h.Token == 0 {
		t.tell(News{AskAgain: true, Heard: true})
		return
	}
	t.tell(News{Hint: &h})
}
