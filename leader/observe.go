package leader

import (
	"context"
	"encoding/json"
	"iter"
	"time"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// Info says who leads.
type Info struct {
	Led      bool            `json:"led"` // false: nobody leads, and the other fields are empty
	Holder   string          `json:"holder,omitempty"`
	Token    pglock.Token    `json:"token,omitempty"`
	Since    time.Time       `json:"since,omitzero"` // by the server's clock, in UTC
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// Observe yields who leads now, and then each change, for as long as the loop runs. It also yields that nobody leads. A
// slow loop body may miss older states, and gets the newest one. Observers need no candidate. When ctx ends, the loop
// ends without an error; otherwise it ends with one last error, as that of pglock.Client.Watch does. Observe starts no
// goroutine.
//
//	for info, err := range leader.Observe(ctx, client, "leader/scheduler") {
//		if err != nil {
//			return err
//		}
//		…
//	}
func Observe(ctx context.Context, client *pglock.Client, name string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if client == nil {
			yield(Info{}, refuse.Nil("client", "be a *pglock.Client"))
			return
		}
		var last *Info
		for change, err := range client.Watch(ctx, name) {
			if err != nil {
				yield(Info{}, err)
				return
			}
			now := infoOf(change)
			if last != nil && last.Token == now.Token {
				continue // a term that we have missed has begun and ended
			}
			if !yield(now, nil) {
				return
			}
			last = &now
		}
	}
}

func infoOf(change pglock.Change) Info {
	if len(change.Holders) == 0 {
		return Info{}
	}
	l := change.Holders[0]
	return Info{Led: true, Holder: l.Holder, Token: l.Token, Since: l.AcquiredAt, Metadata: l.Metadata}
}

// Current returns who leads now: the first state that Observe yields. The error is that of Observe, or ctx's.
func Current(ctx context.Context, client *pglock.Client, name string) (Info, error) {
	for info, err := range Observe(ctx, client, name) {
		return info, err
	}
	return Info{}, failure.At(ctx, ctx.Err(), "leader: look who leads by %q", name)
}
