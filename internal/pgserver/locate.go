package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/pglock-dev/pglock/internal/pgdownload"
	"github.com/pglock-dev/pglock/internal/pgprograms"
)

// A Search says where Locate may find a server.
type Search struct {
	// ConnString names a server that somebody else runs. Defaults to none.
	ConnString string

	// Settings are for a server that is started; see Options.
	Settings map[string]string

	// Progress takes a line before programs are downloaded. Defaults to
	// nowhere.
	Progress io.Writer
}

// Locate gives the server that ConnString names, if it names one; else it
// starts one from installed programs; else from downloaded ones. Variable
// allows only one of the three. Whatever is found is used: Locate does not go on
// when that server cannot be reached or does not start. The caller owns the
// server and ends it with Stop.
func Locate(ctx context.Context, s Search) (*Server, error) {
	forced, err := ForcedKind(KindURL, KindPrograms, KindDownload)
	if err != nil {
		return nil, err
	}
	if forced == KindURL && s.ConnString == "" {
		return nil, fmt.Errorf("%s: %q needs a connection string, and none was given", Variable, string(forced))
	}
	if s.ConnString != "" && (forced == "" || forced == KindURL) {
		return Connect(ctx, s.ConnString)
	}
	programs, kind, err := LocatePrograms(ctx, forced, s.Progress)
	if err != nil {
		return nil, err
	}
	return Start(ctx, Options{Programs: programs, Kind: kind, Settings: s.Settings})
}

// LocatePrograms gives installed programs, else downloaded ones; only the one
// or the other when forced says so. It tells which.
func LocatePrograms(ctx context.Context, forced Kind, progress io.Writer) (pgprograms.Programs, Kind, error) {
	if progress == nil {
		progress = io.Discard
	}
	var errs []error
	if forced != KindDownload {
		programs, err := pgprograms.Find(ctx)
		if err == nil {
			return programs, KindPrograms, nil
		}
		errs = append(errs, err)
	}
	if forced != KindPrograms && ctx.Err() == nil {
		programs, err := pgdownload.Fetch(ctx, progress)
		if err == nil {
			return programs, KindDownload, nil
		}
		errs = append(errs, err)
	}
	return pgprograms.Programs{}, "", errors.Join(errs...)
}
