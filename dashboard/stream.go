package dashboard

import (
	"bytes"
	"errors"
	"net/http"
	"time"
)

const (
	// A stream that has nothing to tell writes a comment after this time, and so notices that its reader is gone.
	quietFor = 15 * time.Second
	// A reader that does not take an event within this time is disconnected.
	eventWithin = 10 * time.Second
	// A stream ends after this time. Browsers connect again, and show their credentials again.
	streamFor = 15 * time.Minute
)

// serveStream writes server-sent events until the client leaves, the Dashboard is closed, or its time is up.
func (d *Dashboard) serveStream(w http.ResponseWriter, r *http.Request, who Identity) {
	q, wrong := streamQuery(r.URL.RawQuery)
	if wrong != nil {
		wrong.write(w)
		return
	}
	c := http.NewResponseController(w)
	if err := c.SetWriteDeadline(time.Now().Add(eventWithin)); err != nil { // a reader that stops would hold it for ever
		refusal{Status: http.StatusNotImplemented, Error: "This server cannot stream."}.write(w)
		return
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", streamKind)
		return
	}
	if !d.enter() {
		refusal{Status: http.StatusServiceUnavailable, Error: "The server is shutting down."}.write(w)
		return
	}
	defer d.streams.Done()
	f, err := d.join(q)
	if err != nil {
		text := "Too many pages are open. Close some, or try again later."
		if errors.Is(err, errManyFeeds) {
			text = "Too many different views are open. Try again later."
		}
		refusal{Status: http.StatusServiceUnavailable, Error: text}.write(w)
		return
	}
	defer d.leave(q, f)
	w.Header().Set("Content-Type", streamKind)
	w.Header().Set("X-Accel-Buffering", "no") // a proxy must not keep events back
	w.WriteHeader(http.StatusOK)
	d.stream(w, r, c, f, who)
}

const streamKind = "text/event-stream; charset=utf-8"

func (d *Dashboard) stream(w http.ResponseWriter, r *http.Request, c *http.ResponseController, f *feed, who Identity) {
	send := func(text []byte) bool {
		if c.SetWriteDeadline(time.Now().Add(eventWithin)) != nil {
			return false
		}
		_, err := w.Write(text)
		return err == nil && c.Flush() == nil
	}
	quiet, over := time.NewTicker(quietFor), time.NewTimer(streamFor)
	defer quiet.Stop()
	defer over.Stop()
	if !send([]byte("retry: 2000\n\n")) {
		return
	}
	for seen := 0; ; {
		s, next := f.current()
		if s.number != seen {
			seen = s.number
			if !send(s.text(who)) {
				return
			}
			quiet.Reset(quietFor)
			continue
		}
		select {
		case <-next:
		case <-quiet.C:
			if !send([]byte(":\n\n")) {
				return
			}
		case <-over.C:
			return
		case <-r.Context().Done():
			return
		case <-d.life.Done():
			return
		}
	}
}

// text is the event as it is sent. JSON has no line breaks.
func (s state) text(who Identity) []byte {
	data := s.data
	if s.event != "problem" {
		data = forReader(data, who)
	}
	return bytes.Join([][]byte{[]byte("event: "), []byte(s.event), []byte("\ndata: "), data, []byte("\n\n")}, nil)
}
