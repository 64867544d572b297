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

// Hint is the grant of a ticket as the server tells it. It is dated by when that ticket was last seen in the queue, so that
// trust in it ends before the lease, however late it comes.
type Hint struct {
	ticket int64
	Token  int64
	First  int64 // of a block; else the token
	Slot   int
	Left   time.Duration // of the lease, when it was told
	Seen   trust.Instant // a moment before the grant, from which trust counts
}

// early is a hint that waits for its ticket to be known.
type early struct {
	text string
	sent *trust.Instant
}

const (
	// earlyMost bounds what a stranger's notifications can make a client remember.
	earlyMost = 1024
	// blockMost is how many tokens a grant carries at most.
	blockMost = 1000
)

// digest is what only those who know the grant ID can put before the text of a hint.
func digest(text string, grantID uuid.UUID) string {
	sum := sha256.Sum256(append([]byte(text), grantID[:]...))
	return hex.EncodeToString(sum[:])
}

// parse reads what the server says of a grant.
func parse(text string) (h Hint, ok bool) {
	var left int64
	fields := strings.Fields(text)
	if len(fields) != 5 || strings.Join(fields, " ") != text {
		return h, false
	}
	for i, target := range []*int64{&h.ticket, &h.Token, nil, &left, &h.First} {
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
	return h, h.First > 0 && h.First <= h.Token && h.Token-h.First < blockMost
}

// Hear takes the hint of a grant to its ticket; sent is a local moment before the grant, nil when it is not known. A hint belongs to
// one ticket, and proves by its digest that the server has told it. One that comes before the answer that tells its ticket is kept
// for that.
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
	t.tell(News{Hint: &h})
}
