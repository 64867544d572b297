package look

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

func drawBackends(w *cli.Page, v ShowView) {
	if len(v.Backends) > 0 {
		fmt.Fprintln(w)
		drawBackendTable(w, v.Backends)
	}
	var notes []string
	if slices.ContainsFunc(v.Backends, func(b lockadmin.Backend) bool { return b.Hidden }) {
		notes = append(notes, "The server hides CLIENT, STATE and TRANSACTION of some from this user. "+
			"Members of the role pg_read_all_stats see them, but not where track_activities is off.")
	}
	if v.BackendsNote != "" {
		notes = append(notes, v.BackendsNote)
	} else if unknown := withoutHeartbeat(v); unknown > 0 {
		whose := shown.Either(len(v.Holders) > 1, fmt.Sprintf("%d of the %d holders", unknown, len(v.Holders)),
			"the holder")
		notes = append(notes, "No server process is known for the heartbeat of "+whose+
			". A client opens that connection "+
			"when a lease has lasted for ten seconds, or a third of its TTL. Behind a pooler such as PgBouncer "+
			"clients share processes, and none belongs to a holder.")
	}
	for _, note := range notes {
		fmt.Fprintf(w, "\n%s\n", cli.Wrapped(note, cli.TextWidth(w)))
	}
}

func drawBackendTable(w *cli.Page, backends []lockadmin.Backend) {
	t := cli.Table{Titles: []string{"PID", "USE", "APPLICATION", "USER", "CLIENT", "STATE", "TRANSACTION"},
		Right: []string{"PID", "TRANSACTION"}}
	for _, b := range backends {
		client, state, transaction := "hidden", "hidden", "hidden"
		if !b.Hidden {
			client = shown.Either(b.Client == "", "local", shown.Text(b.Client))
			transaction = shown.Either(b.Transaction > 0, shown.Age(b.Transaction), "-")
			state = shown.Text(b.State) + " for " + shown.Age(b.InState)
			if b.State == "active" && b.WaitsFor != "" {
				state += ", waits for " + shown.Text(b.WaitsFor)
			}
		}
		t.Rows = append(t.Rows, []string{PidText(b.PID), ShortUse(b, shown.Text), shown.Text(b.Application),
			shown.Text(b.User), client, state, transaction})
	}
	t.Draw(w)
}

// PidText names the process; a prepared transaction has none.
func PidText(pid int) string { return shown.Either(pid == 0, "-", strconv.Itoa(pid)) }

// ShortUse says what a process does for the lock, or in its way. Its texts from outside are written by text.
func ShortUse(b lockadmin.Backend, text func(string) string) string {
	resource := shown.Either(b.Resource == "", "a new resource", text(b.Resource)) // see lockadmin.Backends
	use := map[lockadmin.BackendUse]string{
		lockadmin.BackendHeartbeat: "heartbeat",
		lockadmin.BackendWrite:     "write to " + resource,
		lockadmin.BackendAtFence:   "waits to write to " + resource,
		lockadmin.BackendRow:       "has locked the lock's row",
		lockadmin.BackendAtRow:     "waits for the lock's row",
		lockadmin.BackendBlocker:   "blocks one of these",
	}[b.Use]
	switch {
	case use == "":
		use = text(string(b.Use))
	case b.Use == lockadmin.BackendHeartbeat && b.Slot > 0:
		use += " #" + strconv.Itoa(b.Slot)
	}
	if b.Prepared != "" {
		use += ", prepared as " + text(b.Prepared)
	}
	return use
}

func withoutHeartbeat(v ShowView) (n int) {
	for _, h := range v.Holders {
		if !slices.ContainsFunc(v.Backends, func(b lockadmin.Backend) bool {
			return b.Use == lockadmin.BackendHeartbeat && b.Slot == h.Slot && b.Token == h.Token
		}) {
			n++
		}
	}
	return n
}

// drawEndings tells the ways to end a holder or an open transaction, and what each does and does not do.
func drawEndings(w *cli.Page, o *cli.Options, v ShowView) {
	fmt.Fprintf(w, "\nHOW TO END IT\n")
	way := func(command, effect string) {
		fmt.Fprintf(w, "\n  %s\n      %s\n", command, cli.Indented(cli.Wrapped(effect, cli.TextWidth(w)-6), 6))
	}
	name := shown.Name(v.Lock.Name)
	if len(v.Holders) > 0 {
		way(fmt.Sprintf("pglock-admin break %s --reason \"why\" --token %d%s", name, v.Holders[0].Token, o.Same()),
			"takes the lock away at once. The fence refuses the holder's later writes. Its program runs on. "+
				"It needs the role pglock_admin.")
		way("stop the program",
			"ends the holder itself. If it cannot release the lock, the lock is free when the lease has run out.")
	}
	end := func(use lockadmin.BackendUse, effect string) {
		if pids := pidsOf(v.Backends, use); len(pids) > 0 {
			way(terminate(pids), effect+rightToEnd(v.Backends, use))
		}
	}
	end(lockadmin.BackendWrite,
		"rolls back what this transaction has written, and lets the next holder pass the fence. ")
	end(lockadmin.BackendHeartbeat, "does not end the holder: its client connects again, and keeps the lock. ")
	if slices.ContainsFunc(v.Backends, awaitsStandby) {
		way("SELECT application_name, state, sync_state FROM pg_stat_replication;", "shows the standbys that are "+
			"connected: a commit waits for one. Do not end its process. It is committed here already, and a failover "+
			"may lose it.")
	}
	if slices.ContainsFunc(v.Backends, func(b lockadmin.Backend) bool {
		return b.PID == 0 || b.Use != lockadmin.BackendHeartbeat && b.Use != lockadmin.BackendWrite
	}) {
		way("pglock-admin why "+name+o.Same(), "says who stands in the way, and how to end that.")
	}
}

// awaitsStandby tells whether the commit of a process waits for a synchronous standby.
func awaitsStandby(b lockadmin.Backend) bool {
	return b.WaitsFor == "IPC: SyncRep"
}

func pidsOf(backends []lockadmin.Backend, use lockadmin.BackendUse) (pids []string) {
	for _, b := range backends {
		if pid := strconv.Itoa(b.PID); b.Use == use && b.PID != 0 && !awaitsStandby(b) && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func terminate(pids []string) string {
	if len(pids) == 1 {
		return "SELECT pg_terminate_backend(" + pids[0] + ");"
	}
	return "SELECT pg_terminate_backend(pid) FROM unnest(ARRAY[" + strings.Join(pids, ", ") + "]) pid;"
}

// rightToEnd says who may end the backends, or that this user may.
func rightToEnd(backends []lockadmin.Backend, use lockadmin.BackendUse) string {
	var users []string
	for _, b := range backends {
		if b.Use == use && !b.MayEnd && !awaitsStandby(b) && !slices.Contains(users, shown.Word(b.User)) {
			users = append(users, shown.Word(b.User))
		}
	}
	if len(users) == 0 {
		return "This user has the right to do that."
	}
	return "This user lacks the right: it needs the role " + strings.Join(users, " and ") +
		", or of pg_signal_backend where that role is no superuser."
}
