package dashboard

import (
	"context"
	"errors"
	"net/http"
	"time"
)

const (
	streamKind = "text/event-stream; charset=utf-8"

	// A stream that has nothing to tell writes a comment after this time, and so notices that its reader is gone.
	quietFor = 15 * time.Second
	// A reader that does not take a piece of an event within this time is disconnected.
	pieceWithin = 10 * time.Second
	pieceBytes  = 64 << 10
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
	if err := c.SetWriteDeadline(time.Now().Add(pieceWithin)); err != nil { // a reader that stops would hold it for ever
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
	_ = c.SetReadDeadline(time.Time{}) // a ReadTimeout of the host's server would end the stream
	w.Header().Set("Content-Type", streamKind)
	w.Header().Set("X-Accel-Buffering", "no") // a proxy must not keep events back
	w.WriteHeader(http.StatusOK)
	s := stream{w: w, control: c, beginning: d.beginnings.of(who), life: d.life}
	defer s.endWrites()()
	s.run(r.Context(), f)
}

// stream is one answer that goes on. Its writes belong to the goroutine of the request.
type stream struct {
	w         http.ResponseWriter
	control   *http.ResponseController
	beginning []byte
	life      context.Context // of the Dashboard
}

// endWrites ends a write to a slow reader when the Dashboard is closed. The function that it returns undoes that, and must
// be called.
func (s *stream) endWrites() (undo func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(s.life, func() {
		defer close(done)
		_ = s.control.SetWriteDeadline(time.Now()) // if this fails, the deadline of the piece ends the write
	})
	return func() {
		if !stop() {
			<-done
		}
	}
}

// run writes events until one of the two contexts ends, the reader is too slow, or the time is up.
func (s *stream) run(ctx context.Context, f *feed) {
	quiet, over := time.NewTicker(quietFor), time.NewTimer(streamFor)
	defer quiet.Stop()
	defer over.Stop()
	if !s.send([]byte("retry: 2000\n\n")) {
		return
	}
	for seen := 0; ; {
		now, next := f.current()
		if now.number != seen {
			seen = now.number
			if !s.sendState(now) {
				return
			}
			quiet.Reset(quietFor)
			continue // a newer one may be there already
		}
		select {
		case <-next:
		case <-quiet.C:
			if !s.send([]byte(":\n\n")) {
				return
			}
		case <-over.C:
			return
		case <-ctx.Done():
			return
		case <-s.life.Done():
			return
		}
	}
}

// sendState writes an event. JSON has no line breaks. All streams of a feed share the data.
func (s *stream) sendState(now state) bool {
	begin, data := s.beginning, now.data[1:]
	if now.event == eventProblem {
		begin, data = nil, now.data
	}
	return s.send([]byte("event: "+now.event+"\ndata: "), begin, data, []byte("\n\n"))
}

// send writes and flushes, piece by piece, and reports whether the reader took it.
func (s *stream) send(parts ...[]byte) bool {
	for _, part := range parts {
		for len(part) > 0 {
			n := min(len(part), pieceBytes)
			if s.control.SetWriteDeadline(time.Now().Add(pieceWithin)) != nil || s.life.Err() != nil {
				return false
			}
			if _, err := s.w.Write(part[:n]); err != nil {
				return false
			}
			part = part[n:]
		}
	}
	return s.control.Flush() == nil
}
