package lockadmin

import (
	"strings"

	"github.com/pglock-dev/pglock/internal/server"
)

// Place is where an Admin looks, so that people can see whether that is where they mean to be.
type Place struct {
	Server   string `json:"server"` // host:port or the path of a socket; several, with commas, if the pool may use any
	Database string `json:"database"`
	Schema   string `json:"schema"`
}

// String names the schema only if it is not the usual one.
func (p Place) String() string {
	s := p.Server + ", database " + word(p.Database)
	if p.Schema != defaultSchema {
		s += ", schema " + word(p.Schema)
	}
	return s
}

// Place returns the server and the database as the pool's configuration names them. It asks nobody.
func (a *Admin) Place() Place {
	p := Place{Schema: a.schema}
	if a.pool != nil {
		config := a.pool.Config().ConnConfig
		p.Server, p.Database = strings.Join(server.Addresses(config), ", "), server.Database(config)
	}
	return p
}
