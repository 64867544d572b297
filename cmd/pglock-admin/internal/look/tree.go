package look

import (
	"fmt"
	"strings"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/shown"
)

// branch is a part of a name, between slashes, with the leases of the name that ends there.
type branch struct {
	part   string
	leases []ListedLock
	below  []*branch
	parts  map[string]*branch // those below
}

// treeOf puts leases in the byte order of their names under each other. A name without leases that one lies below has a
// branch too.
func treeOf(locks []ListedLock) *branch {
	root := &branch{}
	for _, l := range locks {
		at := root
		for _, part := range strings.Split(l.Name, "/") {
			at = at.to(part)
		}
		at.leases = append(at.leases, l)
	}
	return root
}

// to finds the branch of a part, or makes one. Names of other branches may have come since.
func (b *branch) to(part string) *branch {
	if b.parts[part] == nil {
		if b.parts == nil {
			b.parts = make(map[string]*branch)
		}
		b.parts[part] = &branch{part: part}
		b.below = append(b.below, b.parts[part])
	}
	return b.parts[part]
}

// drawTree draws names by their parts. What covers all that stands below it says so.
func drawTree(w *cli.Page, view ListView, flags listFlags) {
	if len(view.Locks) == 0 {
		drawList(w, view, flags)
		return
	}
	for _, b := range treeOf(view.Locks).below {
		b.draw(w, "", "")
	}
	if view.More {
		flags.more(w, len(view.Locks), view.Locks[len(view.Locks)-1].Name)
	}
}

func (b *branch) draw(w *cli.Page, arm, rail string) {
	name := b.part
	for len(b.leases) == 0 && len(b.below) == 1 { // nobody uses the names between
		b = b.below[0]
		name += "/" + b.part
	}
	text := shown.Name(name)
	for n, l := range b.leases {
		if n > 0 {
			text, arm = strings.Repeat(" ", len([]rune(text))), rail
		}
		fmt.Fprintf(w, "%s%s  %s\n", arm, text, leafText(l))
	}
	if len(b.leases) == 0 {
		fmt.Fprintf(w, "%s%s/\n", arm, text)
	}
	for n, c := range b.below {
		if n == len(b.below)-1 {
			c.draw(w, rail+"└─ ", rail+"   ")
		} else {
			c.draw(w, rail+"├─ ", rail+"│  ")
		}
	}
}

// leafText says of a lease what a line has room for.
func leafText(l ListedLock) string {
	text := cli.Mark(l.Verdict) + "  " + SlotText(l.LockInfo)
	switch {
	case l.Held:
		text += fmt.Sprintf("  %s, token %d, for %s", shown.Text(l.Holder), int64(l.Token),
			shown.Age(lists.HeldFor(l.LockInfo)))
	case l.Grants == 0:
		text = cli.Mark(l.Verdict) + "  free, nobody has held it yet"
	default:
		text += fmt.Sprintf("  free, last %s, token %d", shown.Text(l.Holder), int64(l.Token))
	}
	if l.Waiting > 0 {
		text += fmt.Sprintf(", %d waiting", l.Waiting)
	}
	return text
}
