package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// containerLabel marks the container of one test process.
const containerLabel = "pglock.integration"

// minderVariable makes this test binary the minder of the container whose label it holds.
const minderVariable = "PGLOCK_INTEGRATION_CONTAINER"

// A containerMinder is this test binary once more, in its own session. Its standard input is a pipe whose only writer
// is this process. When that ends without a word, however this process ended, the minder removes the container.
// Testcontainers has the reaper for this, but only if the reaper's image is available.
type containerMinder struct {
	pipe io.WriteCloser
	cmd  *exec.Cmd
}

func startContainerMinder(label string) (*containerMinder, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("minder of the container: %w", err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), minderVariable+"="+label)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals from the terminal do not reach it
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("minder of the container: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("minder of the container: %w", err)
	}
	return &containerMinder{pipe, cmd}, nil
}

// finish ends the minder; nothing is left for it to do when removed is true.
func (m *containerMinder) finish(removed bool) error {
	var err error
	if removed {
		_, err = fmt.Fprintln(m.pipe, "removed")
	}
	return errors.Join(err, m.pipe.Close(), m.cmd.Wait())
}

// The engine may be about to make the container when its client dies, so the minder keeps looking for a while.
const (
	minderLooks    = 20
	minderInterval = 500 * time.Millisecond
)

// mindContainer does the minder's work and gives its exit code.
func mindContainer(label string) int {
	signal.Ignore(syscall.SIGHUP, os.Interrupt, syscall.SIGTERM)
	word, err := io.ReadAll(os.Stdin)
	if err == nil && len(word) > 0 {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(minderInterval)
	defer tick.Stop()
	for range minderLooks {
		found, err := removeContainers(ctx, label)
		if err == nil && found > 0 {
			return 0
		}
		<-tick.C
	}
	return 1
}

func removeContainers(ctx context.Context, label string) (int, error) {
	engine, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return 0, err
	}
	defer engine.Close()
	list, err := engine.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: make(client.Filters).Add("label", containerLabel+"="+label),
	})
	if err != nil {
		return 0, err
	}
	for _, c := range list.Items {
		if _, err := engine.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true,
			RemoveVolumes: true}); err != nil {
			return 0, err
		}
	}
	return len(list.Items), nil
}
