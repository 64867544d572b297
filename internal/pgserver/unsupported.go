//go:build !unix

package pgserver

import (
	"context"

	"github.com/pglock-dev/pglock/internal/pgprograms"
)

// No server can be started on this system.
type process struct{ over error }

// Template is for other systems.
type Template struct{}

// NewTemplate returns ErrUnsupported on this system.
func NewTemplate(context.Context, pgprograms.Programs) (*Template, error) { return nil, ErrUnsupported }

// Start returns ErrUnsupported on this system.
func Start(context.Context, Options) (*Server, error) { return nil, ErrUnsupported }

func (t *Template) Remove() error                { return nil }
func (p *process) PID() int                      { return 0 }
func (p *process) DataDir() string               { return "" }
func (p *process) LogFile() string               { return "" }
func (p *process) Stop() error                   { return nil }
func (p *process) Kill() error                   { return p.over }
func (p *process) Restart(context.Context) error { return p.over }
