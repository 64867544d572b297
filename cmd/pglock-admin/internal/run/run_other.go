//go:build !unix

package run

import (
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
)

func runUnderLock(*cli.Options, *cobra.Command, *errand) error {
	return cli.Errorf(cli.ExitFailure, "run it on Linux or macOS, or in a container",
		"run needs a Unix system: only there can it end a command with everything that the command has started")
}

// CatchesNothing reports what it does on Unix systems.
func CatchesNothing([]string) bool { return false }

// NewMinder is a command that Unix systems have.
func NewMinder() *cobra.Command { return &cobra.Command{Use: "run-minder", Hidden: true} }
