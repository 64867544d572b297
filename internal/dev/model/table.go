package model

import "hash/maphash"

// A table numbers states in the order in which they come. It holds each once, in chunks that do not move, and finds it
// by its hash: a map would take several times as much memory.
type table[S comparable] struct {
	seed    maphash.Seed
	chunks  [][]S
	n       int
	entries []entry // by hash, at least half of them empty
}

// An entry has the hash of a state, and its number plus 1; 0: empty.
type entry struct{ hash, number uint32 }

const chunkLength = 1 << 14

func newTable[S comparable]() *table[S] {
	return &table[S]{seed: maphash.MakeSeed(), entries: make([]entry, 1<<10)}
}

func (t *table[S]) at(n int) S { return t.chunks[n/chunkLength][n%chunkLength] }

// add returns the number of a state, and whether it is new.
func (t *table[S]) add(s S) (n int, isNew bool) {
	hash := uint32(maphash.Comparable(t.seed, s))
	i := t.first(hash)
	for ; t.entries[i].number != 0; i = t.next(i) {
		if p := t.entries[i]; p.hash == hash && t.at(int(p.number)-1) == s {
			return int(p.number) - 1, false
		}
	}
	if t.n%chunkLength == 0 {
		t.chunks = append(t.chunks, make([]S, 0, chunkLength))
	}
	last := &t.chunks[len(t.chunks)-1]
	*last = append(*last, s)
	t.n++
	t.entries[i] = entry{hash, uint32(t.n)}
	if 2*t.n > len(t.entries) {
		t.grow()
	}
	return t.n - 1, true
}

func (t *table[S]) first(hash uint32) int { return int(hash) & (len(t.entries) - 1) }

func (t *table[S]) next(i int) int { return (i + 1) & (len(t.entries) - 1) }

func (t *table[S]) grow() {
	old := t.entries
	t.entries = make([]entry, 2*len(old))
	for _, p := range old {
		if p.number == 0 {
			continue
		}
		i := t.first(p.hash)
		for t.entries[i].number != 0 {
			i = t.next(i)
		}
		t.entries[i] = p
	}
}
