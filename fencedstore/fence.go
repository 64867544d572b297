package fencedstore

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// maxFences is how many fences one transaction may pass at once.
const maxFences = 1000

// Fenced says under which fences a transaction is: those of a *pglock.Lease, a Fence or Fences. There are no others.
type Fenced interface {
	// ForSiblings is for the packages of this module alone.
	ForSiblings(hooks.Key) hooks.Lease
}

// Fence is what a lease protects. A *pglock.Lease alone is a Fence without anything else.
type Fence struct {
	Lease *pglock.Lease
	// Resource names what the fence protects, in 1 to 512 bytes. All writers of the resource must use the same name.
	// Defaults to Lease.Resource: the lock's name, and for a slot of a shared or limited lock the name, '#', and the
	// slot. With a subtree's lease (pglock.WithSubtree) it must be the lock's name or below it.
	Resource string
	// SameToken lets one grant write to the resource any number of times. Without it a grant writes once, so repeating
	// a write does no harm.
	SameToken bool
}

// ForSiblings is for the packages of this module alone.
func (f Fence) ForSiblings(key hooks.Key) hooks.Lease { return f.Lease.ForSiblings(key) }

// Fences are several fences at once, 1 to 1,000: of several leases, or of several resources of one lease. Each resource
// is named once, all leases are of one schema of one database, and SameToken is the same in all.
//
// A transaction passes all of them or none, and COMMIT checks every lease. The server takes the fences in the byte
// order of their resources, and then the leases in the order of their names; but after Guard without Seal, in the order
// of their resources. So transactions may name them in any order and do not wait for each other in a circle; if you
// call Guard several times instead, you must keep an order yourself. Without WithTimeLimit the transaction may take
// until the first lease ends. WithTimeLimit extends every lease. The error is that of the fence that refused.
type Fences []Fence

// ForSiblings is for the packages of this module alone. It gives the first lease.
func (fs Fences) ForSiblings(key hooks.Key) hooks.Lease { return fs[0].ForSiblings(key) }

// listed are the fences with their defaults. It refuses what is wrong in any database.
func listed(fenced Fenced) (Fences, error) {
	switch f := fenced.(type) {
	case *pglock.Lease:
		return listed(Fence{Lease: f})
	case Fence:
		f, err := f.complete()
		return Fences{f}, err
	case Fences:
		return f.complete()
	}
	return nil, refuse.Invalid("fenced", fmt.Sprintf("%T", fenced), "be a *pglock.Lease, a Fence or Fences")
}

func (f Fence) complete() (Fence, error) {
	if err := refuse.Lease(f.Lease); err != nil {
		return f, err
	}
	f.Resource = cmp.Or(f.Resource, f.Lease.Resource())
	if f.named() == nil {
		return f, nil
	}
	if name := f.Lease.Name(); f.Lease.Subtree() && f.Resource != name && !strings.HasPrefix(f.Resource, name+"/") {
		return f, refuse.Invalid("resource", argument.Shorten(f.Resource),
			fmt.Sprintf("be %q or below it, which is what the lease covers", name))
	}
	return f, refuse.Text("resource", f.Resource, pglock.MaxNameBytes)
}

func (fs Fences) complete() (all Fences, err error) {
	if len(fs) == 0 || len(fs) > maxFences {
		return nil, refuse.Invalid("fences", fmt.Sprint(len(fs), " long"),
			fmt.Sprint("have 1 to ", maxFences, " elements"))
	}
	seen := make(map[string]bool, len(fs))
	for i, f := range fs {
		field := fmt.Sprintf("fences[%d]", i)
		if f, err = f.complete(); err != nil {
			return nil, failure.Told(err, "fencedstore: %s", field)
		}
		first, home := hooks.Of(fs).Home(), hooks.Of(f).Home()
		switch {
		case seen[f.Resource]:
			return nil, refuse.Invalid(field+".Resource", f.Resource, "be named once")
		case f.SameToken != fs[0].SameToken:
			return nil, refuse.Invalid(field+".SameToken", fmt.Sprint(f.SameToken), "be the same in all")
		case home != first:
			err := fmt.Errorf("%w: lock %q is of schema %q, and lock %q of schema %q: a transaction is of one database",
				pglock.ErrWrongDatabase, f.Lease.Name(), home.Schema, fs[0].Lease.Name(), first.Schema)
			return nil, failure.Told(err, "fencedstore: %s", field)
		}
		seen[f.Resource] = true
		all = append(all, f)
	}
	return all, nil
}

// named is the resource as the server needs it: NULL if the server knows it by itself.
func (f Fence) named() *string {
	if f.Resource == f.Lease.Resource() {
		return nil
	}
	return &f.Resource
}
