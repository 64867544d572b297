//go:build !unix

package main

import tea "charm.land/bubbletea/v2"

// suspends does nothing: here nobody continues a stopped program.
type suspends struct{}

func newSuspends(*tea.Program) *suspends { return &suspends{} }

func (*suspends) suspend() {}
func (*suspends) stop()    {}
