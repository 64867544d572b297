package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/build"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/pglock"
)

type programView struct {
	Version       string `json:"version"`
	Revision      string `json:"revision,omitempty"`
	Modified      bool   `json:"modified,omitempty"`
	Go            string `json:"go"`
	Platform      string `json:"platform"`
	SchemaVersion int    `json:"schema_version"` // that this program needs
}

func newVersion(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program and of the schema that it needs",
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := programView{Version: build.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" +
				runtime.GOARCH, SchemaVersion: pglock.SchemaVersion}
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					switch s.Key {
					case "vcs.revision":
						v.Revision = s.Value
					case "vcs.modified":
						v.Modified = s.Value == "true"
					}
				}
			}
			return o.Show(cmd, v, func(w *cli.Page) {
				revision := v.Revision + shown.Either(v.Modified, " (modified)", "")
				cli.DrawFields(w, [][2]string{
					{"pglock-admin", v.Version}, {"revision", revision}, {"built with", v.Go + " " + v.Platform},
					{"schema needed", fmt.Sprintf("version %d", v.SchemaVersion)},
				})
			})
		},
	}
}
