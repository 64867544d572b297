//go:build !unix

package pgdownload

import (
	"context"
	"io"

	"github.com/pglock-dev/pglock/internal/pgprograms"
)

// Fetch gives ErrUnsupported on this system.
func Fetch(context.Context, io.Writer) (pgprograms.Programs, error) {
	return pgprograms.Programs{}, ErrUnsupported
}
