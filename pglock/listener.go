package pglock

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"
)

const (
	// probeEvery is how often the listener proves that it still hears, and probeWait how long a proof may take.
	probeEvery = 30 * time.Second
	probeWait  = 3 * time.Second
	// A listener that fails connects again, soon at first.
	firstRelisten = 50 * time.Millisecond
	lastRelisten  = time.Minute

	probeWord = "probe "
)

// channel is where the server tells this client of its grants; the SQL function announce names it.
func (c *Client) channel() string {
	return "pglock_" + strings.ReplaceAll(c.session.String(), "-", "")
}

// listen hears of grants and of changes of watched locks, on one connection, while any call waits or watches. What it hears
// is a hint: nothing but the time that a wait takes depends on it. It runs until the client is closed.
func (c *Client) listen() {
	for delay := firstRelisten; c.ctx.Err() == nil; {
		if !c.wantsToHear() {
			c.sleep(never, c.earWake)
			continue
		}
		l := listener{client: c, subscribed: make(map[string]bool), sent: make(chan error, 1), idleSince: -1}
		l.run()
		c.setHears(false)
		if l.heard {
			delay = firstRelisten
		}
		if c.wantsToHear() && pause(c.ctx, delay) {
			delay = min(2*delay, lastRelisten)
		}
	}
}

// startListener starts the goroutine that listens, once. The mutex is held.
func (c *Client) startListener() {
	if !c.listening && !c.closed {
		c.listening = true
		c.tasks.Go(c.listen)
	}
}

// wantsToHear reports whether any call waits or watches.
func (c *Client) wantsToHear() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue.waiters) > 0 || len(c.watchers) > 0
}

// setHears notes whether hints can be counted on. At either change the tables are looked at: what was told before is
// found there.
func (c *Client) setHears(hears bool) {
	now := c.now()
	c.mu.Lock()
	changed := c.queue.hears != hears
	if changed {
		c.queue.hears, c.queue.pace, c.queue.next = hears, firstLook, now
		for _, watchers := range c.watchers {
			for w := range watchers {
				signal(w.wake)
			}
		}
	}
	c.mu.Unlock()
	if changed {
		signal(c.beatWake)
	}
}

// listener is the life of one connection. A connection that takes LISTEN may still hear nothing, behind a pooler or on a
// line that died: so it sends itself a notification through the pool, at first and now and then.
type listener struct {
	client     *Client
	ear        ear
	subscribed map[string]bool
	heard      bool          // anything at all
	sent       chan error    // 1-buffered: the outcome of sending a probe
	probe      int           // the number of the last one
	due        time.Duration // on the monotonic clock: the next probe, or the end of waiting for one
	waiting    bool          // for the probe to be heard
	idleSince  time.Duration // since when nobody wants to hear; -1 while somebody does
}

func (l *listener) run() {
	c := l.client
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	ear, err := c.store.listen(ctx)
	cancel()
	if err != nil {
		return
	}
	defer ear.close()
	l.ear, l.due = ear, c.now().mono
	for c.ctx.Err() == nil && l.subscribe() && l.prove() {
		channel, payload, err := l.next()
		switch {
		case errors.Is(err, errQuiet):
		case err != nil:
			return
		default:
			l.hear(channel, payload)
		}
	}
}

// subscribe listens to what is wanted now. False ends the connection.
func (l *listener) subscribe() bool {
	c := l.client
	now := c.now().mono
	c.mu.Lock()
	wanted := map[string]bool{c.channel(): true}
	for channel := range c.watchers {
		wanted[channel] = true
	}
	needed := len(c.queue.waiters) > 0 || len(c.watchers) > 0
	c.mu.Unlock()
	switch {
	case needed:
		l.idleSince = -1
	case l.idleSince < 0:
		l.idleSince = now
	case now-l.idleSince >= idle:
		return false
	}
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	for channel := range wanted {
		if !l.subscribed[channel] {
			if l.ear.subscribe(ctx, channel) != nil {
				return false
			}
			l.subscribed[channel] = true
			c.changed(channel) // what happened before is seen by looking
		}
	}
	for channel := range l.subscribed {
		if !wanted[channel] {
			if l.ear.unsubscribe(ctx, channel) != nil {
				return false
			}
			delete(l.subscribed, channel)
		}
	}
	return true
}

// prove sends a probe when one is due. False says that the last one was sent and not heard.
func (l *listener) prove() bool {
	c := l.client
	select {
	case err := <-l.sent:
		if err != nil { // it was not sent: nothing is proved, try again soon
			l.waiting, l.due = false, c.now().mono+time.Second
		}
	default:
	}
	if c.now().mono < l.due {
		return true
	}
	if l.waiting {
		return false
	}
	l.probe++
	l.waiting, l.due = true, c.now().mono+probeWait
	payload := probeWord + strconv.Itoa(l.probe)
	return c.background(func() {
		ctx, cancel := context.WithTimeout(c.ctx, probeWait*2/3)
		defer cancel()
		select {
		case l.sent <- c.store.notify(ctx, c.channel(), payload):
		default:
		}
	})
}

// next waits for a notification, until there is something else to do.
func (l *listener) next() (channel, payload string, err error) {
	c := l.client
	until := l.due
	if l.idleSince >= 0 {
		until = min(until, l.idleSince+idle)
	}
	ctx, cancel := context.WithTimeout(c.ctx, max(until-c.now().mono, time.Millisecond))
	woken := make(chan struct{})
	go func() {
		defer close(woken)
		select {
		case <-c.earWake:
			cancel()
		case <-ctx.Done():
		}
	}()
	channel, payload, err = l.ear.next(ctx)
	cancel()
	<-woken
	return channel, payload, err
}

func (l *listener) hear(channel, payload string) {
	c := l.client
	l.heard = true
	if channel != c.channel() {
		c.changed(channel)
		return
	}
	if payload == probeWord+strconv.Itoa(l.probe) {
		l.waiting, l.due = false, c.now().mono+probeEvery
		c.setHears(true)
		return
	}
	c.heard(payload, nil)
}
