//go:build !unix

package demo

import (
	"context"
	"io"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
)

func play(context.Context, options) error {
	return cli.Errorf(cli.ExitFailure, "run the demo on Linux or macOS, or in a container",
		"demo: it stops and continues processes, which needs a Unix system")
}

func work(context.Context, io.Reader, io.Writer) error { return play(context.Background(), options{}) }
