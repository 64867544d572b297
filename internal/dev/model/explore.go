package model

// A System is what Explore explores: states, and the steps that lead from one to the next.
type System[S, L comparable] interface {
	Start() S
	// Steps calls yield with every step from a state. It may depend only on the state.
	Steps(from S, yield func(Step[S, L]))
	// Canonical maps states that differ only in what no step depends on, such as how numbers are counted, to one.
	Canonical(s S) S
	// Waiting and Served say, by a bit for each, who waits in a state for what must come, and for whom it has come.
	Waiting(s S) uint8
	Served(s S) uint8
}

// A Step is what happens at once, beside whatever else may happen before and after it.
type Step[S, L comparable] struct {
	Label L
	To    S
	// Certain says that it happens by itself after some time: nobody has to decide it, and nothing can stop it.
	Certain bool
	// Breaks names the invariant that the step breaks.
	Breaks string
}

// A Result is what an exploration has found.
type Result[S, L comparable] struct {
	States, Steps, Depth int          // Depth: of the state that is farthest from the start
	Breaks               string       // the invariant that is broken, or who is stuck
	Trace                []Step[S, L] // a shortest way there
	Complete             bool         // all states were seen
}

// Explore visits every state that can be reached, the nearest first, and stops at the first step that breaks an
// invariant. If there is none, it looks for a state in which somebody waits in vain: certain steps alone never bring
// what they wait for. It gives up when there are more states than limit.
func Explore[S, L comparable](system System[S, L], limit int) Result[S, L] {
	e := explorer[S, L]{system: system, states: newTable[S]()}
	e.visit(system.Canonical(system.Start()), -1)
	var r Result[S, L]
	for at, level := 0, 1; at < e.states.n && e.states.n <= limit; at++ {
		if at == level {
			r.Depth, level = r.Depth+1, e.states.n
		}
		broken := ""
		system.Steps(e.states.at(at), func(step Step[S, L]) {
			r.Steps++
			if broken != "" {
				return
			}
			to := e.visit(system.Canonical(step.To), int32(at))
			if step.Certain {
				e.certain = append(e.certain, edge{int32(at), to})
			}
			if broken = step.Breaks; broken != "" {
				r.Breaks = broken
				r.Trace = e.trace(int32(at), func(s Step[S, L]) bool {
					return s.Breaks == broken && s.Label == step.Label
				})
			}
		})
		if broken != "" {
			break
		}
	}
	r.States = e.states.n
	r.Complete = r.Breaks == "" && r.States <= limit
	if r.Complete {
		e.findStuck(&r)
	}
	return r
}

type edge struct{ from, to int32 }

type explorer[S, L comparable] struct {
	system  System[S, L]
	states  *table[S]
	parents []int32
	certain []edge
}

func (e *explorer[S, L]) visit(s S, parent int32) int32 {
	at, isNew := e.states.add(s)
	if isNew {
		e.parents = append(e.parents, parent)
	}
	return int32(at)
}

// trace returns the way to a state, and one more step if there is last, without Canonical: it is for people.
func (e *explorer[S, L]) trace(at int32, last func(Step[S, L]) bool) (way []Step[S, L]) {
	var states []int32
	for ; at > 0; at = e.parents[at] {
		states = append(states, at)
	}
	now := e.system.Start()
	follow := func(is func(Step[S, L]) bool) {
		found := false
		e.system.Steps(now, func(s Step[S, L]) {
			if !found && is(s) {
				found, way = true, append(way, s)
			}
		})
		if !found {
			panic("model: Steps depends on what Canonical drops")
		}
		now = way[len(way)-1].To
	}
	for i := len(states) - 1; i >= 0; i-- {
		follow(func(s Step[S, L]) bool { return e.system.Canonical(s.To) == e.states.at(int(states[i])) })
	}
	if last != nil {
		follow(last)
	}
	return way
}

// findStuck looks for the nearest state in which somebody waits who can be served by no way of certain steps. It goes
// back from the states in which they are served.
func (e *explorer[S, L]) findStuck(r *Result[S, L]) {
	begins := make([]int32, e.states.n+1) // where the edges to a state begin in into
	for _, c := range e.certain {
		begins[c.to]++
	}
	for i := range e.states.n {
		begins[i+1] += begins[i]
	}
	into := make([]int32, len(e.certain))
	for _, c := range e.certain {
		begins[c.to]--
		into[begins[c.to]] = c.from
	}
	e.certain = nil
	will := make([]uint8, e.states.n) // be served
	var changed []int32
	for i := range e.states.n {
		if will[i] = e.system.Served(e.states.at(i)); will[i] != 0 {
			changed = append(changed, int32(i))
		}
	}
	for len(changed) > 0 {
		to := changed[len(changed)-1]
		changed = changed[:len(changed)-1]
		for _, from := range into[begins[to]:begins[to+1]] {
			if will[from]|will[to] != will[from] {
				will[from] |= will[to]
				changed = append(changed, from)
			}
		}
	}
	for i := range e.states.n {
		if e.system.Waiting(e.states.at(i))&^will[i] != 0 {
			r.Breaks, r.Trace = Stuck, e.trace(int32(i), nil)
			return
		}
	}
}

// Stuck is what is broken where somebody waits in vain.
const Stuck = "somebody waits in vain"
