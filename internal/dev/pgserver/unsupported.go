//go:build !unix

package pgserver

import (
	"context"
)

// No server can be started on this system.
type process struct{ over error }

// Start returns ErrUnsupported on this system.
func Start(context.Context, Options) (*Server, error) { return nil, ErrUnsupported }

func (p *process) PID() int                      { return 0 }
func (p *process) DataDir() string               { return "" }
func (p *process) LogFile() string               { return "" }
func (p *process) Stop() error                   { return nil }
func (p *process) Kill() error                   { return p.over }
func (p *process) Restart(context.Context) error { return p.over }
