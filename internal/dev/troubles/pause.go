//go:build unix

package troubles

import (
	"context"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
)

func pauseBriefly(ctx context.Context) bool { return pause.Exactly(ctx, 5*time.Millisecond) }
