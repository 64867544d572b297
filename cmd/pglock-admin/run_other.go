//go:build !unix

package main

import "github.com/spf13/cobra"

func (*options) runUnderLock(*cobra.Command, *errand) error {
	return &advised{code: exitFailure, hint: "run it on Linux or macOS, or in a container",
		text: "run needs a Unix system: only there can it end a command with everything that the command has started"}
}

func newRunMinder() *cobra.Command { return &cobra.Command{Use: "run-minder", Hidden: true} }
