package lockadmin

import (
	"time"

	"github.com/jackc/pgx/v5"
)

// The statements of a look reach the server one after another, and much time may pass between them: on a slow line, or
// while this program is stopped. What tables have is of one moment, At, and ages of other moments cannot be compared
// with it. So a look reckons all ages to At.

// ago is the age at At of what began at a time; 0 if it began later.
func (l *look) ago(since time.Time) time.Duration { return max(0, l.At.Sub(since)) }

// reckon turns ages at a time into ages at At. Something that began after At has the least age that there is: an age of
// 0 is that of nothing.
func (l *look) reckon(at time.Time, ages ...*time.Duration) {
	for _, age := range ages {
		if *age > 0 {
			*age = max(time.Microsecond, *age-at.Sub(l.At))
		}
	}
}

func (l *look) scanBackend(rows pgx.Rows) (Backend, error) {
	b, at, err := scanBackendAt(rows)
	l.reckon(at, &b.InState, &b.Transaction, &b.Query)
	return b, err
}

func (l *look) scanWaiter(rows pgx.Rows) (Waiter, error) {
	w, err := scanWaiter(rows)
	w.Waiting = l.ago(w.Since)
	return w, err
}

func (l *look) scanHolderLife(rows pgx.Rows) (leaseLife, error) {
	life, err := scanHolderLife(rows)
	if !life.SignedAt.IsZero() {
		life.Silent = l.ago(life.SignedAt)
	}
	return life, err
}
