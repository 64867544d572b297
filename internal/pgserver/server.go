// Package pgserver runs throwaway PostgreSQL servers and knows where one can
// come from.
//
// A server that Start made belongs to the process that started it. Stop ends it
// and removes its folder; when the process ends without Stop, however it ends,
// a minder process does the same.
package pgserver

import (
	"errors"

	"github.com/pglock-dev/pglock/internal/pgprograms"
)

var (
	// ErrUnsupported is what Start gives on systems where it has no way to
	// mind a server.
	ErrUnsupported = errors.New("pgserver: servers can be started on Unix systems only; give a connection string")

	// ErrNotOurs is what Kill and Restart give for a server that somebody else
	// started and that is known by its connection string only.
	ErrNotOurs = errors.New("pgserver: the server was not started here")

	// ErrStopped is what Kill and Restart give after Stop.
	ErrStopped = errors.New("pgserver: the server was stopped and its folder removed")
)

// Options say how to start a server.
type Options struct {
	// Programs are the server's programs. Required.
	Programs pgprograms.Programs

	// Kind is what Server.Kind tells: KindPrograms or KindDownload. Defaults to
	// KindPrograms.
	Kind Kind

	// Settings are written into the server's postgresql.conf, after the
	// defaults of a throwaway server (fsync=off, no Unix sockets,
	// max_connections=200). The address, the port and the data folder cannot
	// be set. Defaults to none.
	Settings map[string]string

	// Env is added to the environment of the server, not to that of initdb.
	// Defaults to nothing.
	Env []string

	// BaseDir is where the server's folder is made. Defaults to the first of
	// os.TempDir, /tmp and /var/tmp that the server's user can reach.
	BaseDir string
}

// Server is a PostgreSQL server: one that Start started, or one that is known
// by its connection string only. Its methods may be called concurrently.
type Server struct {
	kind        Kind
	url         string
	description string

	own // what there is only of a server that was started here
}

// Kind tells where the server came from.
func (s *Server) Kind() Kind { return s.kind }

// URL is a connection string for the server's postgres database. For a server
// that Start made its user is a superuser; for another it is the string that
// was given.
func (s *Server) URL() string { return s.url }

// Description names the version and the place for people, without a password:
// "PostgreSQL 15.18 from /usr/lib/postgresql/15/bin".
func (s *Server) Description() string { return s.description }
