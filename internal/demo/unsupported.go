//go:build !unix

package demo

import (
	"context"
	"io"
)

// Run gives ErrUnsupported on this system.
func Run(context.Context, Options) error { return ErrUnsupported }

// Work gives ErrUnsupported on this system.
func Work(context.Context, io.Reader, io.Writer) error { return ErrUnsupported }
