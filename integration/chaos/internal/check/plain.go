//go:build unix

package check

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// Each plain check judges one event, or one line of a log, by itself.

// heapMost limits how much a worker's heap may have grown when its client is closed.
const heapMost = 16 << 20

func (j *Judge) leftovers(e history.Event) {
	who := sayWho(e.Who)
	switch e.Kind {
	case history.Stormed:
		if e.Error != "" && !j.faults.Disturbed(worker(e.Who), e.From.Add(-time.Second), e.At, settling) {
			j.blame("leftovers", e.At, nil, fmt.Sprintf("%s %d goroutines are left %v after the last call of a storm "+
				"of cancelled calls has returned; before it there were %d", who,
				e.Goroutines, e.At.Sub(e.From), e.Before), e.Error)
		}
	case history.Drained:
		if e.Error != "" {
			j.blame("leftovers", e.At, nil, fmt.Sprintf("%s %d goroutines are left when every call has returned; "+
				"with a new client there were %d", who, e.Goroutines, e.Before), e.Error)
		}
	case history.Closed:
		if e.Goroutines > e.Before {
			j.blame("leftovers", e.At, nil, fmt.Sprintf("%s %d goroutines are left when client and pool are closed; "+
				"before them there were %d", who, e.Goroutines, e.Before), e.Error)
		}
		if e.Heap > e.HeapBefore+heapMost {
			j.blame("leftovers", e.At, nil, fmt.Sprintf("%s the heap has %d bytes when client and pool are closed; "+
				"with a new client it had %d", who, e.Heap, e.HeapBefore))
		}
	}
}

// explained are the classes of errors that faults, other holders and the callers' own contexts explain.
var explained = map[string]bool{
	"": true, "unknown": true, "stale token": true, "already done": true, "self-deadlock": true, "circle": true,
	"lost": true, "released": true, "nobody waits": true,
	"cancelled": true, "deadline": true, "held": true, "own retreat": true, "closed": true, "time limit": true,
	"57014": true,                               // cancelled, or the fence's limit
	"55P03": true,                               // the fence's limit
	"LK001": true, "LK003": true, "LK011": true, // refusals, where a statement of the worker's own was told
}

// lasting is for how long before its report an error may have come about.
const lasting = 10 * time.Second

// explained reports whether something explains an error: its class, the kind of the call, or a certain fault. Close may
// be late on a busy machine; what it has left is found besides. Its other errors need a fault: Close goes on for as
// long as an error may last.
func (j *Judge) explained(e history.Event) bool {
	if e.How == history.Close {
		return e.Class == "" || e.Class == "deadline" || j.disturbedLately(e)
	} else if explained[e.Class] {
		return true
	}
	switch e.Class {
	case "connection", "57P01", "57P02", "57P03": // of a server that was stopped, has crashed, or starts
		return j.disturbedLately(e)
	case "40001":
		return e.Kind == history.Wrote
	case "53300":
		return slices.ContainsFunc(j.faults.Between(e.At.Add(-lasting), e.At), func(f history.Fault) bool {
			return f.Full
		})
	case "0A000": // demoted
		return e.How == history.Unfenced && j.moved(e.At)
	case "read-only":
		return j.moved(e.At)
	case "unfenced": // the guard may ask for another fence
		return e.Kind == history.Wrote && j.tampered(e.At.Add(-lasting), e.At)
	}
	return false
}

// disturbedLately reports whether something kept the worker from the server, not long before.
func (j *Judge) disturbedLately(e history.Event) bool {
	return j.faults.Disturbed(worker(e.Who), e.At.Add(-lasting), e.At, settling)
}

// moved reports whether something had another server lead, not long before.
func (j *Judge) moved(at history.Time) bool {
	return slices.ContainsFunc(j.faults.Between(at.Add(-lasting), at), func(f history.Fault) bool { return f.Moves })
}

func (j *Judge) errors(e history.Event) {
	switch e.Kind {
	case history.Stuck:
		j.blame("stuck", e.At, nil, fmt.Sprintf("%s %s", sayWho(e.Who), e.How), e.Error)
	case history.Finds:
		j.blame("errors", e.At, nil, fmt.Sprintf("%s %s", sayWho(e.Who), e.Error))
	case history.Closed, history.Fails, history.Wrote, history.Renews, history.Extends, history.Left, history.Handed:
		if !j.explained(e) {
			j.blame("errors", e.At, nil, fmt.Sprintf("%s %s failed with an error that nothing explains (%s): %s",
				sayWho(e.Who), e.How, e.Class, e.Error), sayEvent(e))
		}
	}
}

// defect is a line of a server's log that must not occur: a panic, a deadlock, or an error that statements of the
// library and of the workers never have. The SQLSTATE stands before the severity.
var defect = regexp.MustCompile(`(?m)^.* (?:XX\d{3}|40P01|42\w{3}|22\w{3}|23\w{3}|0A\w{3}) (?:ERROR|FATAL|PANIC):.*$|^.* PANIC:.*$|^TRAP:.*$`)

// demoted is what a server that has just become a standby answers to a worker whose sessions are serializable, and to
// whoever asks there what became of a COMMIT.
var demoted = regexp.MustCompile(` 0A000 ERROR:  cannot (?:use serializable mode in a hot standby|` +
	`set transaction read-write mode during recovery)$`)

func (j *Judge) serverLog(log string) {
	for _, line := range defect.FindAllString(log, 20) {
		if demoted.MatchString(line) {
			continue
		}
		_, after, _ := strings.Cut(log, line)
		v := Violation{Check: "server log", What: line, At: history.Now()}
		for i, next := range strings.SplitN(after, "\n", 8) {
			if i > 0 && i < 7 {
				v.Evidence = append(v.Evidence, next)
			}
		}
		j.report(v)
	}
}

// count adds to the table of operations.
func (j *Judge) count(e history.Event) {
	how := e.How
	switch e.Kind {
	case history.Fails, history.Wrote, history.Renews, history.Extends, history.Handed:
	case history.Has:
		how = e.How
	case history.Left:
		how = "release"
		if e.How == history.Brief {
			how = "release, brief"
		}
	case history.Learns:
		how = "Outcome"
	default:
		return
	}
	class := e.Class
	switch {
	case e.Kind == history.Learns:
		class = e.Answer
	case class == "":
		class = "ok"
	}
	if j.answered[how] == nil {
		j.answered[how] = make(map[string]int)
	}
	j.answered[how][class]++
}

// Counts are how many operations there were, by kind and by how they ended.
func (j *Judge) Counts() map[string]map[string]int {
	j.mu.Lock()
	defer j.mu.Unlock()
	copied := make(map[string]map[string]int, len(j.answered))
	for how, classes := range j.answered {
		copied[how] = make(map[string]int, len(classes))
		for class, n := range classes {
			copied[how][class] = n
		}
	}
	return copied
}
