package failure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/puddle/v2"
)

// OfPool says that err, the end of ctx, ended the wait for a connection of a pool that had none to spare: how long it
// lasted, and how many connections were in use. most is 0 where the pool has no limit. Or it says what to do about a
// pool that is closed. Other errors stay as they are.
func OfPool(ctx context.Context, err error, began time.Time, used, most int) error {
	if errors.Is(err, puddle.ErrClosedPool) {
		return fmt.Errorf("%w (the program has closed it; close first what uses it, and then the pool)", err)
	}
	if ended := ctx.Err(); ended == nil || !errors.Is(err, ended) || most == 0 || used < most {
		return err
	}
	return fmt.Errorf("no connection of the pool in %v (%d of %d in use): %w",
		time.Since(began).Round(time.Millisecond), used, most, err)
}
