//go:build unix

package demo

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/timeline"
)

// outcome is what the database has at the end of an act.
type outcome struct {
	balance  int64
	accepted int // writes
}

func (p *performance) epilogue() {
	t := cli.Table{Titles: []string{"act", "worker", "token", "read", "wrote", "verdict", "balance"},
		Right: []string{"token", "read", "wrote", "balance"}}
	for _, r := range p.results {
		t.Rows = append(t.Rows, []string{fmt.Sprint(r.act), r.worker, fmt.Sprint(r.Token), fmt.Sprint(r.Read),
			fmt.Sprint(r.Wrote), p.judge(r), p.shown(r)})
	}
	page := &cli.Page{Width: cli.Columns(p.out)}
	t.Draw(page)
	p.stage.print("\n%s  every deposit counted, %s must hold %d\n\n%s", p.stage.style(styleTitle, "LEDGER"), p.account,
		p.total(), page)
	for i, o := range p.outcomes {
		verdict := p.stage.style(styleGood, timeline.Written+" right")
		if o.balance != p.total() {
			verdict = p.stage.style(styleBad, fmt.Sprintf("%s wrong, %d is lost", timeline.Refused,
				p.total()-o.balance))
		}
		p.stage.print("  %-18s expected %d, actual %d  %s", actTitle(i == 1), p.total(), o.balance, verdict)
	}
	p.stage.print(`
%s
  go run ./cmd/pglock-admin demo --workers 5 --ttl 500ms --seed %d
  export DATABASE_URL=%s
  go run ./cmd/pglock-admin migrate up        make the schema there
  go run ./cmd/pglock-admin list              who holds what, and for how long
  go run ./cmd/pglock-admin break NAME --reason "why"
                                              end the lease of a stuck holder
  go -C integration test -timeout 30m -p 4 . github.com/pglock-dev/pglock/...
                                              the promises, tested
  README.md                                   how to use it in a program`,
		p.stage.style(styleTitle, "TRY NEXT"), p.seed+1, cmp.Or(p.address, "postgres://…"))
}

func (p *performance) judge(r result) string {
	switch {
	case r.refused() && r.State != "":
		return p.stage.style(styleBad, "refused: "+r.State)
	case r.refused():
		return p.stage.style(styleBad, "refused")
	case r.late:
		return p.stage.style(styleBad, "accepted, too late")
	}
	return p.stage.style(styleGood, "accepted")
}

func (p *performance) shown(r result) string {
	b := strconv.FormatInt(r.balance, 10)
	if r.late && !r.refused() {
		return p.stage.style(styleBad, b)
	}
	return b
}

// verdict is nil if the story ended as it must: without the fence the stale write destroyed the others' deposits;
// with it the database refused that write and nothing was lost.
func (p *performance) verdict() error {
	if len(p.outcomes) != 2 {
		return fmt.Errorf("%w: %d acts", errStory, len(p.outcomes))
	}
	var wrong []string
	if o := p.outcomes[0]; o.balance != opening+p.deposits[0] || o.accepted != p.workers {
		wrong = append(wrong, fmt.Sprintf("without the fence the balance is %d after %d writes; the stale write of "+
			"%d should have destroyed the others",
			o.balance, o.accepted, opening+p.deposits[0]))
	}
	refused := false
	for _, r := range p.results {
		refused = refused || r.act == 2 && r.late && r.refused() && strings.HasPrefix(r.State, "LK")
	}
	if !refused {
		wrong = append(wrong, "the stale write was NOT refused by the fence")
	}
	if o := p.outcomes[1]; o.balance != p.total() || o.accepted != p.workers {
		wrong = append(wrong, fmt.Sprintf("with the fence the balance is %d after %d writes, not %d", o.balance,
			o.accepted, p.total()))
	}
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", errStory, strings.Join(wrong, "; "))
}
