//go:build unix

package check

import (
	"fmt"
	"strings"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// chains checks that every write builds on the one that was committed before it, and that tokens ascend at each fence.
type chains struct {
	*court
	last map[string]history.Link // of each resource
	lost map[int64]bool          // writes that a failover has lost
}

// onceResource begins the names of resources that are no fences: each has one link, of one key.
const onceResource = "once/"

func (c *chains) link(l history.Link, at history.Time) {
	before := c.last[l.Resource]
	if l.Prev != before.Op {
		what := fmt.Sprintf("write %d of resource %q builds on %d, but the last write was %d", l.Op, l.Resource, l.Prev,
			before.Op)
		if c.lost[l.Prev] {
			what += ", and that one was lost with a failover"
		}
		c.blame("chain", at, []string{l.Resource}, what, before, l)
	}
	if !strings.HasPrefix(l.Resource, onceResource) && (l.Token < before.Token || l.Token == before.Token && !l.Again) {
		c.blame("stale token", at, []string{l.Resource},
			fmt.Sprintf("write %d of resource %q passed the fence with token %d after write %d with token %d",
				l.Op, l.Resource, l.Token, before.Op, before.Token), before, l)
	}
	c.last[l.Resource] = l
}

// promoted takes the chains as the new primary has them.
func (c *chains) promoted(p history.Promotion) {
	kept := make(map[int64]bool, len(p.State.Links))
	for _, l := range p.State.Links {
		kept[l.Op] = true
	}
	was := c.last
	c.last = c.read(p.State)
	for _, l := range was {
		if !kept[l.Op] {
			c.lost[l.Op] = true
		}
	}
}

func (c *chains) finish(s history.State) {
	for resource, l := range c.read(s) {
		if c.last[resource].Op != l.Op {
			c.blame("chain", history.Now(), []string{resource},
				fmt.Sprintf("the order of commits ends with write %d of resource %q, the table with %d",
					c.last[resource].Op, resource, l.Op), l)
		}
	}
}

// read goes through the chains in the tables: each must be one line from its first link to its head.
func (c *chains) read(s history.State) map[string]history.Link {
	next := make(map[string]map[int64]history.Link) // by what they build on
	for _, l := range s.Links {
		m := next[l.Resource]
		if m == nil {
			m = make(map[int64]history.Link)
			next[l.Resource] = m
		}
		if other, fork := m[l.Prev]; fork {
			c.blame("chain", history.Now(), []string{l.Resource}, fmt.Sprintf("two writes of resource %q build on %d",
				l.Resource, l.Prev), other, l)
		}
		m[l.Prev] = l
	}
	last := make(map[string]history.Link)
	for resource, m := range next {
		var l history.Link
		steps := 0
		for follower, there := m[0]; there && steps <= len(m); follower, there = m[l.Op] {
			l = follower
			steps++
		}
		if steps != len(m) {
			c.blame("chain", history.Now(), []string{resource},
				fmt.Sprintf("the chain of resource %q has %d links, of which %d hang together", resource, len(m),
					steps), l)
		}
		if head := s.Heads[resource]; head != l.Op {
			c.blame("chain", history.Now(), []string{resource},
				fmt.Sprintf("resource %q holds %d, the last link of its chain is %d", resource, head, l.Op), l)
		}
		last[resource] = l
	}
	return last
}
