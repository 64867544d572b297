//go:build unix

package pgdownload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lockEvery is how often a process that waits looks again.
const lockEvery = 50 * time.Millisecond

// lock makes f.dir and waits until this process is the only one to change it.
// The lock ends with the process at the latest.
func (f fetcher) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return nil, err
	}
	// The umask may have closed it.
	if err := os.Chmod(f.dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(f.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockEvery)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			// Closing the only descriptor gives the lock back.
			return func() { file.Close() }, nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			file.Close()
			return nil, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			file.Close()
			return nil, context.Cause(ctx)
		}
	}
}
