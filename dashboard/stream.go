package dashboard

import (
	"context"
	"net/http"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
)

const (
	streamKind = "text/event-stream; charset=utf-8"

	pieceBytes = 64 << 10

	// When the Dashboard is closed a reader has this time left to take what is being written.
	lastPiece = 500 * time.Millisecond
)

// pace has the times of streams, and that of a request.
type pace struct {
	poll  time.Duration // a feed reads again after this pause, or one as long as the last read
	again time.Duration // a feed of one lock tells it again, though only the ages in its explanation have changed
	quiet time.Duration // a stream with nothing to tell writes a comment, and so notices that its reader is gone
	piece time.Duration // a reader that does not take a piece of an event in time is disconnected
	whole time.Duration // a stream ends; browsers connect again, and show their credentials again
	body  time.Duration // a client has this long to send the body of a request
}

var defaultPace = pace{
	poll: 800 * time.Millisecond, again: 3 * time.Second, quiet: 15 * time.Second, piece: 10 * time.Second,
	whole: 15 * time.Minute,
	body:  10 * time.Second,
}

// serveStream writes server-sent events until the client leaves, the Dashboard is closed, or its time is up.
func (d *Dashboard) serveStream(w http.ResponseWriter, r *http.Request, who Identity) error {
	q, wrong := streamQuery(r.URL.RawQuery)
	if wrong != nil {
		return wrong
	}
	c := http.NewResponseController(w)
	// a reader that stops would hold it for ever
	if err := c.SetWriteDeadline(time.Now().Add(d.config.pace.piece)); err != nil {
		return refused(http.StatusNotImplemented, "This server cannot stream.")
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", streamKind)
		return nil
	}
	f, err := d.join(q)
	if err != nil {
		return err
	}
	defer d.leave(q, f)
	_ = c.SetReadDeadline(time.Time{}) // a ReadTimeout of the host's server would end the stream
	w.Header().Set("Content-Type", streamKind)
	w.Header().Set("X-Accel-Buffering", "no") // a proxy must not keep events back
	w.WriteHeader(http.StatusOK)
	s := stream{w: w, control: c, beginning: d.beginning(who), life: d.life, pace: d.config.pace}
	// ends a write to a slow reader when the Dashboard is closed; if it fails, the deadline of the piece does
	defer pause.After(d.life, func() { _ = c.SetWriteDeadline(time.Now().Add(lastPiece)) })()
	s.run(r.Context(), f)
	return nil
}

// stream is one answer that goes on. Its writes belong to the goroutine of the request.
type stream struct {
	w         http.ResponseWriter
	control   *http.ResponseController
	beginning []byte
	life      context.Context // of the Dashboard
	pace      pace
}

// run writes events until one of the two contexts ends, the reader is too slow, or the time is up.
func (s *stream) run(ctx context.Context, f *feed) {
	quiet, over := time.NewTicker(s.pace.quiet), time.NewTimer(s.pace.whole)
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
			quiet.Reset(s.pace.quiet)
			continue // a newer one may be there already
		}
		select {
		case <-next:
		case <-quiet.C:
			if !s.send([]byte(":\n\n")) {
				return
			}
		case <-over.C:
			// The end of the answer is written, too, and the deadline of the last piece may be over.
			_ = s.control.SetWriteDeadline(time.Now().Add(s.pace.piece))
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
	return s.send([]byte("event: "+now.event+"\ndata: "), s.beginning, now.data[1:], []byte("\n\n"))
}

// send writes and flushes, piece by piece, and reports whether the reader took it.
func (s *stream) send(parts ...[]byte) bool {
	for _, part := range parts {
		for len(part) > 0 {
			n := min(len(part), pieceBytes)
			if s.control.SetWriteDeadline(time.Now().Add(s.pace.piece)) != nil || s.life.Err() != nil {
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
