//go:build !unix

package main

import "github.com/spf13/cobra"

func (*options) runUnderLock(*cobra.Command, *errand) error {
	return &advised{text: "run needs a Unix system: only there can it end a command with all that it has started", code: exitFailure,
		hint: "run on Linux or macOS, or in a container"}
}

func newRunMinder() *cobra.Command { return &cobra.Command{Use: "run-minder", Hidden: true} }
