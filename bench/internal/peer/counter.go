package peer

import (
	"sync"
	"sync/atomic"
	"time"
)

// counter counts requests and tells of each before it is sent.
type counter struct {
	n  atomic.Int64
	mu sync.Mutex
	on func(time.Time)
}

func newCounter(c Config) *counter { return &counter{on: c.OnRequest} }

func (c *counter) add(n int64) {
	if n == 0 {
		return
	}
	c.n.Add(n)
	if c.on != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.on(time.Now())
	}
}

// Requests is how many were sent.
func (c *counter) Requests() int64 { return c.n.Load() }
