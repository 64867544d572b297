package pause

import (
	"context"
	"time"
)

// Soon is how long a call whose ctx has ended may still talk to the server, as to roll back: so it returns within a
// quarter of a second also where nobody answers.
const Soon = 150 * time.Millisecond

// Afterwards is a context for the last words of a call whose ctx may have ended, or may end meanwhile: most, and no
// longer than Soon after the end of ctx.
func Afterwards(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
	stop := context.AfterFunc(ctx, func() {
		Exactly(after, Soon)
		cancel()
	})
	return after, func() {
		stop()
		cancel()
	}
}
