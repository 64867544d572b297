//go:build unix

package main

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
)

var treeFaults = []fault{
	{name: "open-above", about: "a stranger that waits for a subtree asks again and leaves its transaction open, " +
		"idle; at times it has lifted the time limits",
		lane: useLane, weight: 2, quiet: true,
		delays: lifted, run: func(h *hit) error { return open(h.rand.IntN(2) == 0, above, idle)(h) }},
}

// above has asked for the subtrees that the names lie below, and has asked again in its transaction: so it knows which
// leases are in its way.
func above(ctx context.Context, s *stranger, names []string, _ time.Duration) error {
	trees := make(map[string]uuid.UUID)
	for _, name := range names {
		if tree, _, below := strings.Cut(name, "/"); below {
			trees[tree] = uuid.New()
		}
	}
	for _, begin := range []string{`SELECT`, `BEGIN`} { // the first time, each by itself
		if _, err := s.Exec(ctx, begin); err != nil {
			return err
		}
		for tree, grant := range trees {
			if _, err := s.Exec(ctx, `SELECT pglock.acquire_subtree($1, $2, $3, 'chaos stranger', $4,
				p_session_ttl => '5 s')`, tree, grant, s.key, strangerTTL); err != nil {
				return err
			}
		}
	}
	return nil
}
