//go:build !unix

package demo

import (
	"context"
	"io"
)

// Run returns ErrUnsupported on this system.
func Run(context.Context, Options) error { return ErrUnsupported }

// Work returns ErrUnsupported on this system.
func Work(context.Context, io.Reader, io.Writer) error { return ErrUnsupported }
