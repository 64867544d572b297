package model

// A Scenario says who takes part and what may happen.
type Scenario struct {
	Name  string
	Roles []Role // of the clients, three at most
	Stops []int  // which of them may stop while they wait, and come back
	// What else may happen besides requests, grants, releases and the clock.
	Writes, Renewals, GivingUp, HandOvers, Breaks, Hints, LostAnswers bool
}

// A Role is what a client asks for.
type Role uint8

const (
	OnX  Role = iota // a lease of x
	OnY              // a lease of y
	Tree             // a lease of the subtree with x and y
)

// Model is a scenario with a mistake or without one. It is a System.
type Model struct {
	Scenario
	Mistake Mistake
	tree    bool
}

// New makes a model.
func New(s Scenario, mistake Mistake) *Model {
	m := &Model{Scenario: s, Mistake: mistake}
	for c := range s.Roles {
		m.tree = m.tree || m.isTree(c)
	}
	return m
}

// Start is a state in which nobody has asked for anything.
func (m *Model) Start() State { return State{} }

func (m *Model) isTree(c int) bool { return m.Roles[c] == Tree }

// Waiting has those who wait and live.
func (m *Model) Waiting(s State) (who uint8) {
	for c := range m.Roles {
		client := &s.Clients[c]
		if client.At >= drawn && client.At <= waiting && (client.Life == lives || client.Life == back) {
			who |= 1 << c
		}
	}
	return who
}

// Served has those who know that they hold a lease, and do.
func (m *Model) Served(s State) (who uint8) {
	for c := range m.Roles {
		if s.Clients[c].At == holding && s.holds(m, c) {
			who |= 1 << c
		}
	}
	return who
}

// lease is the row of a client's lease.
func (s *State) lease(m *Model, c int) *Lease {
	if m.isTree(c) {
		return &s.Clients[c].Sub
	}
	return &s.Locks[m.Roles[c]].Lease
}

// owns says that the row of a client's lease still is the one that it believes in.
func (s *State) owns(m *Model, c int) bool {
	l := s.lease(m, c)
	return s.Clients[c].Token != 0 && l.Token == s.Clients[c].Token && l.Phase != free
}

// holds says that it does, and runs by the server's clock.
func (s *State) holds(m *Model, c int) bool { return s.owns(m, c) && s.lease(m, c).Phase == running }

// A change is one step in the making.
type change struct {
	State
	m      *Model
	saw    [clients]view // what the transaction knows of sessions and subtrees
	breaks string
}

// require notes an invariant that the step breaks.
func (t *change) require(holds bool, invariant string) {
	if !holds && t.breaks == "" {
		t.breaks = invariant
	}
}

// The invariants, besides Stuck.
const (
	Exclusion = "two leases that exclude each other run by the server's clock"
	Ascending = "a token is not greater than those of earlier leases of the name"
	FenceHeld = "a write passes the fence after a greater token"
	InTime    = "a transaction commits under a lease that was over, or granted to somebody else"
	InTurn    = "a grant passes a lower ticket that counts"
)

// ended states what must hold after every step.
func (t *change) ended() {
	for a := range t.m.Roles {
		if !t.m.isTree(a) || t.Clients[a].Sub.Phase != running {
			continue
		}
		for b := range t.m.Roles {
			switch {
			case b == a:
			case t.m.isTree(b):
				t.require(t.Clients[b].Sub.Phase != running, Exclusion)
			default:
				t.require(t.Locks[t.m.Roles[b]].Phase != running, Exclusion)
			}
		}
	}
}

// nextToken draws from the sequence.
func (t *change) nextToken() uint8 {
	last := t.Fence
	for _, l := range t.Locks {
		last = max(last, l.Token)
	}
	for _, c := range t.Clients {
		last = max(last, c.Token, c.Sub.Token, c.Hint)
	}
	return last + 1
}

// nextTicket draws from the other one.
func (t *change) nextTicket() uint8 {
	var last uint8
	for _, c := range t.Clients {
		last = max(last, c.Ticket)
	}
	return last + 1
}

// Steps has every step that is possible in a state.
func (m *Model) Steps(from State, yield func(Step[State, Label])) {
	g := guide{m, from, yield}
	for c := range m.Roles {
		switch {
		case from.Clients[c].Stage != none:
			g.transaction(c)
		case m.isTree(c):
			g.subtree(c)
		default:
			g.plain(c)
		}
		g.holder(c)
		g.life(c)
	}
	g.clock()
	g.around()
}

// A guide offers the steps from one state.
type guide struct {
	m     *Model
	from  State
	yield func(Step[State, Label])
}

// step offers a step, which do makes of a copy of the state.
func (g *guide) step(certain bool, l Label, do func(*change)) {
	t := change{State: g.from, m: g.m}
	do(&t)
	t.ended()
	if t.State != g.from || t.breaks != "" {
		g.yield(Step[State, Label]{Label: l, To: t.State, Certain: certain, Breaks: t.breaks})
	}
}
