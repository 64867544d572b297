//go:build unix

package pgserver

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
)

// fill makes the data folder. It copies the one that is kept in cache, with its password. If there is none, or it
// cannot be copied, it runs initdb, which takes far longer, and keeps a copy for the servers to come.
//
// A kept folder gets its name when it is complete, and nobody changes it then. It may be removed at any time. Whoever
// keeps another removes those that nobody has copied for long: of programs that are gone, or half made.
func (p *process) fill(ctx context.Context, cache string) error {
	kept := filepath.Join(cache, p.edition())
	if password, err := os.ReadFile(filepath.Join(kept, "password")); cache != "" && err == nil {
		p.password = string(password)
		_ = os.Chtimes(kept, time.Time{}, time.Now()) // it is in use
		if _, err := p.run(ctx, "cp", "-R", filepath.Join(kept, "data"), p.data); err == nil || ctx.Err() != nil {
			return err
		}
	}
	err := errors.Join(os.RemoveAll(p.data), p.initdb(ctx))
	if err == nil && cache != "" {
		_ = p.keep(ctx, kept) // without a copy, for want of room or rights, the next server costs as much as this one
	}
	return err
}

// unused is how long nobody has copied a kept folder that is removed.
const unused = 30 * 24 * time.Hour

// forget removes what was kept in the cache and is unused, and what a process that was killed has half made or half
// unpacked. What it cannot remove stays.
func forget(cache string) {
	for _, pattern := range []string{"data-*", "initdb-*", "unpack-*"} {
		folders, _ := filepath.Glob(filepath.Join(cache, pattern))
		for _, folder := range folders {
			if info, err := os.Stat(folder); err == nil && time.Since(info.ModTime()) > unused {
				_ = os.RemoveAll(folder)
			}
		}
	}
}

// edition names the data folder by all that it depends on.
func (p *process) edition() string {
	made := fmt.Sprint(4, initdbOptions, p.user) // the first number: of what initdb does here besides
	for _, name := range []string{"initdb", "postgres"} {
		file, err := filepath.EvalSymlinks(p.programs.Path(name))
		info, statErr := os.Stat(file)
		if errors.Join(err, statErr) == nil {
			made += fmt.Sprint(file, info.Size(), info.ModTime().UnixNano())
		}
	}
	digest := sha256.Sum256([]byte(made))
	return fmt.Sprintf("data-%s-%x", p.programs.Version, digest[:8])
}

// keep copies the data folder, before a server runs in it, and the password. Of two processes that do so at the same
// time the first one's copy stays.
func (p *process) keep(ctx context.Context, kept string) (err error) {
	if err := pgprograms.MakeCache(filepath.Dir(kept)); err != nil {
		return err
	}
	forget(filepath.Dir(kept))
	temp, err := os.MkdirTemp(filepath.Dir(kept), "initdb-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	if err := p.user.Own(temp); err != nil {
		return err
	}
	if _, err := p.run(ctx, "cp", "-R", p.data, filepath.Join(temp, "data")); err != nil {
		return err
	}
	if err := p.user.Write(filepath.Join(temp, "password"), p.password); err != nil {
		return err
	}
	return os.Rename(temp, kept)
}

// initdbOptions: C.UTF-8 sorts alike everywhere, and so does C, for systems without it. A data folder begins with a
// segment of the log, which is copied with it.
var initdbOptions = []string{"-U", "postgres", "-A", "scram-sha-256", "-E", "UTF8", "--no-sync", "--no-instructions",
	"--locale=C.UTF-8", "--wal-segsize=1"}

// initdb makes the data folder, with a new password.
func (p *process) initdb(ctx context.Context) error {
	p.password = rand.Text()
	file := filepath.Join(p.folder, "password")
	verifier, err := scram(p.password)
	if err == nil {
		err = p.user.Write(file, verifier)
	}
	if err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}
	defer os.Remove(file)
	arguments := append([]string{"-D", p.data, "--pwfile=" + file}, initdbOptions...)
	out, err := p.run(ctx, p.programs.Path("initdb"), arguments...)
	if err != nil && strings.Contains(out, "locale") && ctx.Err() == nil {
		_, err = p.run(ctx, p.programs.Path("initdb"), append(arguments, "--locale=C")...)
	}
	if err != nil {
		return err
	}
	return removeForks(filepath.Join(p.data, "base"))
}

// removeForks removes the maps of free space and of visibility, a fourth of the files of which each database is a copy.
// A server does without them, and makes new ones.
func removeForks(folder string) error {
	return filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && (strings.HasSuffix(path, "_fsm") || strings.HasSuffix(path, "_vm")) {
			err = os.Remove(path)
		}
		return err
	})
}

// scram is what the server keeps of a password (RFC 5803), with a quarter of the usual iterations. They make a weak
// password costly to guess; of a random one they only make each connection dearer. lib/pq takes no fewer than 1,000.
func scram(password string) (string, error) {
	salt := []byte(rand.Text()[:16])
	salted, err := pbkdf2.Key(sha256.New, password, salt, 1000, sha256.Size)
	if err != nil {
		return "", err
	}
	key := func(of string) []byte {
		mac := hmac.New(sha256.New, salted)
		mac.Write([]byte(of))
		return mac.Sum(nil)
	}
	stored := sha256.Sum256(key("Client Key"))
	text := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$1000:%s$%s:%s", text(salt), text(stored[:]), text(key("Server Key"))), nil
}
