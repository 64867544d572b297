package integration

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/modules/postgres"
	"go.uber.org/goleak"

	"github.com/pglock-dev/pglock/internal/dev/pgserver"
)

// imageVariable is the environment variable with the image of the container.
const imageVariable = "PGLOCK_TEST_IMAGE"

const defaultImage = "postgres:17-alpine"

// engineTimeout bounds the question whether an engine answers.
const engineTimeout = 5 * time.Second

// startContainer runs the shared server in a container, if an engine answers.
func startContainer(ctx context.Context) (*pgserver.Server, func() error, error) {
	tclog.SetDefault(tclog.NewNoopLogger())
	image := cmp.Or(os.Getenv(imageVariable), defaultImage)
	if has, err := engineHas(ctx, image); err != nil {
		return nil, nil, fmt.Errorf("no Docker engine answers: %w", err)
	} else if !has {
		fmt.Fprintf(stdout, "pulling Docker image %s (once) …\n", image)
	}
	label := rand.Text()
	minder, err := startContainerMinder(label)
	if err != nil {
		return nil, nil, err
	}
	container, err := postgres.Run(ctx, image,
		testcontainers.WithLabels(map[string]string{containerLabel: label}),
		postgres.WithUsername("postgres"),
		postgres.WithPassword(rand.Text()),
		postgres.WithDatabase("postgres"),
		testcontainers.WithCmdArgs("-c", "max_connections=200"),
		postgres.BasicWaitStrategies(),
	)
	// The container may be there even when it did not start.
	end := func() error {
		err := testcontainers.TerminateContainer(container, testcontainers.StopTimeout(0))
		return errors.Join(err, minder.finish(err == nil))
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("image %s (%s names another): %w", image, imageVariable, err), end())
	}
	url, err := container.ConnectionString(ctx, "sslmode=disable")
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	server, err := pgserver.Connect(ctx, url)
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	description := fmt.Sprintf("%s in Docker image %s", server.Description(), image)
	return pgserver.Known(pgserver.KindDocker, url, description), end, nil
}

// stdout is the process's own: while an Example runs, its output is read from os.Stdout.
var stdout = os.Stdout

// engineHas says whether the engine, if one answers, has the image.
func engineHas(ctx context.Context, image string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return false, err
	}
	defer provider.Close()
	if err := provider.Health(ctx); err != nil {
		return false, err
	}
	_, err = provider.Client().ImageInspect(ctx, image)
	return err == nil, nil
}

// leaksOfDocker are the goroutines that the Docker client may leave: idle connections to the engine, and the one that
// keeps the reaper going.
var leaksOfDocker = []goleak.Option{
	goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"),
	goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"),
	goleak.IgnoreAnyFunction("github.com/testcontainers/testcontainers-go.(*Reaper).connect.func1"),
}
