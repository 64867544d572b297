package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// pgbenchScript is BareAsync's pair. In the prepared protocol pgbench passes its variables as parameters.
const pgbenchScript = `
\set n random(0, 7)
INSERT INTO bare.locks_pgbench AS l (name, holder, session_id, grant_id, token, ttl, acquired_at, renewed_at, expires_at)
	VALUES ('%[1]s/' || :client_id || '/' || :n, 'bench', '%[2]s', gen_random_uuid(), nextval('bare.seq'), '30 s',
		clock_timestamp(), clock_timestamp(), clock_timestamp() + interval '30 s')
	ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, session_id = excluded.session_id, grant_id = excluded.grant_id,
		token = GREATEST(nextval('bare.seq'), l.token + 1), ttl = excluded.ttl, acquired_at = clock_timestamp(),
		renewed_at = clock_timestamp(), expires_at = clock_timestamp() + excluded.ttl
		WHERE l.expires_at <= clock_timestamp()
	RETURNING token, grant_id \gset
WITH s AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS x)
	UPDATE bare.locks_pgbench l SET expires_at = '-infinity' FROM s
	WHERE s.x IS NOT NULL AND l.name = '%[1]s/' || :client_id || '/' || :n AND l.token = :token AND l.grant_id = :grant_id;
`

// Pgbench is PostgreSQL's own program with the same statements, one at a time for each client.
func Pgbench() Kind {
	return Kind{
		Name: "pgbench", Server: Postgres,
		Is:         "pgbench, the release does not wait for the disk",
		Guarantees: bareGuarantees,
		In:         []Workload{W1},
		Settings:   "-M prepared, a connection for each caller, a thread for each core",
		WarmUp:     time.Second, // it connects after the start
		OneProcess: true,
		Open:       openPgbench,
	}
}

// PairRunner is a Client that runs W1 by itself, outside this process.
type PairRunner interface {
	// RunPairs starts the callers and returns after end with the pairs that were done by then. name distinguishes
	// them from those of other runs. started gets the process.
	RunPairs(ctx context.Context, name string, end time.Time, started func(pid int)) ([]Pair, error)
}

// Pair is one acquisition and release: when it was done and how long it took.
type Pair struct {
	Done time.Time
	Took time.Duration
}

type pgbenchClient struct {
	*counter
	config  Config
	program string
}

func openPgbench(_ context.Context, c Config) (Client, error) {
	program, err := exec.LookPath("pgbench")
	if err != nil {
		return nil, err
	}
	return &pgbenchClient{newCounter(c), c, program}, nil
}

func (c *pgbenchClient) Caller(context.Context) (Caller, error) {
	return nil, errors.New("pgbench has callers of its own")
}

func (c *pgbenchClient) RunPairs(ctx context.Context, name string, end time.Time, started func(pid int)) (_ []Pair,
	err error) {
	dir, err := os.MkdirTemp("", "pglock-bench-pgbench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	script := filepath.Join(dir, "pair.sql")
	if err := os.WriteFile(script, fmt.Appendf(nil, pgbenchScript, name, "00000000-0000-0000-0000-000000000001"),
		0o600); err != nil {
		return nil, err
	}
	server, err := url.Parse(c.config.Address)
	if err != nil {
		return nil, err
	}
	password, _ := server.User.Password()
	seconds := int(time.Until(end)/time.Second) + 1 // it takes whole seconds; what comes after end is not counted
	cmd := exec.CommandContext(ctx, c.program, "-n", "-M", "prepared", "-f", script, "-T", strconv.Itoa(seconds),
		"-c", strconv.Itoa(c.config.Callers), "-j", strconv.Itoa(min(runtime.NumCPU(), c.config.Callers)),
		"--log", "--log-prefix="+filepath.Join(dir, "log"),
		"-h", server.Hostname(), "-p", server.Port(), "-U", server.User.Username(),
		strings.TrimPrefix(server.Path, "/"))
	cmd.Env = append(os.Environ(), "PGPASSWORD="+password, "PGAPPNAME=bench")
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	started(cmd.Process.Pid)
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("pgbench: %w: %s", err, said.String())
	}
	logs, err := filepath.Glob(filepath.Join(dir, "log.*"))
	if err != nil {
		return nil, err
	}
	var pairs []Pair
	for _, log := range logs {
		if pairs, err = readLog(pairs, log); err != nil {
			return nil, err
		}
	}
	return pairs, nil
}

// readLog reads pgbench's log: client, transaction, microseconds, script, second, microsecond of the end.
func readLog(pairs []Pair, file string) ([]Pair, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var client, number, took, script, second, microsecond int64
		if _, err := fmt.Sscan(lines.Text(), &client, &number, &took, &script, &second, &microsecond); err != nil {
			return nil, fmt.Errorf("pgbench's log: %q: %w", lines.Text(), err)
		}
		pairs = append(pairs, Pair{Done: time.UnixMicro(second*1e6 + microsecond),
			Took: time.Duration(took) * time.Microsecond})
	}
	return pairs, lines.Err()
}

func (c *pgbenchClient) Close(context.Context) error { return nil }
