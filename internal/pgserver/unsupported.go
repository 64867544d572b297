//go:build !unix

package pgserver

import "context"

type own struct{}

var _ = Server{own: own{}} // nothing else uses the field on this system

// Start gives ErrUnsupported on this system.
func Start(context.Context, Options) (*Server, error) { return nil, ErrUnsupported }

// PID is 0: no server is started on this system.
func (s *Server) PID() int { return 0 }

// DataDir is empty: no server is started on this system.
func (s *Server) DataDir() string { return "" }

// LogFile is empty: no server is started on this system.
func (s *Server) LogFile() string { return "" }

// Stop does nothing: no server is started on this system.
func (s *Server) Stop() error { return nil }

// Kill gives ErrNotOurs: no server is started on this system.
func (s *Server) Kill() error { return ErrNotOurs }

// Restart gives ErrNotOurs: no server is started on this system.
func (s *Server) Restart(context.Context) error { return ErrNotOurs }
