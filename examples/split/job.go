package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// Part is one of the databases. A lock, its fence, and the data that it protects are in the same one.
type Part struct {
	Pool   *pgxpool.Pool
	Client *pglock.Client
	Store  *fencedstore.Store // of this pool
}

// Parts are all databases, in the same order in every program.
type Parts []Part

// Of is the part of a name. What comes before the first slash decides, so that acme/orders and acme/stock are together.
// Every program must get the same answer: while two programs differ, both may hold the lock.
func (p Parts) Of(name string) Part {
	group, _, _ := strings.Cut(name, "/")
	sum := sha256.Sum256([]byte(group)) // not maphash, which differs in each process
	return p[binary.BigEndian.Uint64(sum[:])%uint64(len(p))]
}

// Write writes what the lock protects, in the database that grants the lock.
func (p Parts) Write(ctx context.Context, name string, work func(ctx context.Context, tx pgx.Tx) error) error {
	part := p.Of(name)
	return part.Client.Do(ctx, name, func(ctx context.Context, lease *pglock.Lease) error {
		return part.Store.Write(ctx, lease, work)
	})
}

// ErrApart: no transaction and no AcquireAll comprises several databases.
var ErrApart = errors.New("these names are in different databases")

// AcquireAll takes all locks or none, if they are in one database.
func (p Parts) AcquireAll(ctx context.Context, names ...string) (*pglock.Leases, error) {
	if len(names) == 0 {
		return nil, pglock.ErrInvalid
	}
	part := p.Of(names[0])
	for _, name := range names[1:] {
		if p.Of(name) != part {
			return nil, ErrApart
		}
	}
	return part.Client.AcquireAll(ctx, names)
}
