//go:build unix

package minder

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglock-dev/pglock/internal/trust"
)

// These are how often the minder looks at the clocks, which may jump, how often it asks whether a group has ended, and
// how often it looks at each process for that.
const (
	clockTick = time.Second
	groupTick = 5 * time.Millisecond
	deadTick  = 100 * time.Millisecond
)

// minder is the process between the program and the command.
type minder struct {
	socket    *os.File
	clock     trust.Clock
	killAfter time.Duration

	deadline trust.Instant // KILL
	pid      int           // of the command, and of its group
	warned   bool          // TERM was sent
	killed   bool          // KILL was sent
	ended    *Event        // of the command, while others of its group have not ended
	looked   time.Time     // at each process
}

// death is the end of a process that the minder has waited for.
type death struct {
	pid    int
	status unix.WaitStatus
}

// Mind runs the minder, or the gate. The arguments are those that Start, or the minder, appends to Command.Minder.
func Mind(args []string) error {
	if len(args) < 4 {
		return errors.New("it is started by pglock-admin run, and by nobody else")
	}
	if IsGate(args) {
		return pass(args[1:])
	}
	socket, err := inherited(args[0])
	if err != nil {
		return err
	}
	killAfter, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	m := &minder{socket: socket, clock: trust.SystemClock(), killAfter: killAfter}
	showName()
	bearSignals()
	adoptOrphans()
	orders := make(chan order)
	go receive(m.socket, orders) // ends with the process, as do the others
	first, alive := <-orders
	if !alive || first.Trust == nil {
		return errors.New("the program has ended")
	}
	m.trust(*first.Trust)
	if m.clock().Reached(m.deadline) {
		send(m.socket, Event{Kind: Failed, Err: syscall.ETIME})
		return nil
	}
	gate, err := m.start(os.Args[1:len(os.Args)-len(args)], args[2:])
	if err != nil {
		send(m.socket, Event{Kind: Failed, Err: number(err)})
		return nil
	}
	send(m.socket, Event{Kind: Started, Pid: m.pid})
	gate.open()
	m.mind(orders)
	return nil
}

// bearSignals keeps the minder alive when it gets signals that are not for it. It changes nothing for the command.
// HUP and INT that were ignored before, as under nohup, stay ignored for both; Go does not keep that of the others.
func bearSignals() {
	heard := make(chan os.Signal, 1) // nobody listens
	for _, s := range []os.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGPIPE,
	} {
		if !signal.Ignored(s) {
			signal.Notify(heard, s)
		}
	}
}

func (m *minder) trust(s span) { m.deadline = m.clock().Add(s.left(time.Now())) }

// mind returns when the whole group has ended, or when the program is gone and the minder has killed the group.
func (m *minder) mind(orders <-chan order) {
	deaths := make(chan death)
	go reap(deaths)
	for {
		look := time.NewTimer(m.next())
		select {
		case o, alive := <-orders:
			if !alive {
				m.kill()
				return
			}
			m.obey(o)
		case d := <-deaths:
			m.learn(d)
		case <-look.C:
		}
		look.Stop()
		m.heed()
		if m.ended != nil && m.gone() {
			send(m.socket, m.ended)
			return
		}
	}
}

// next is how long the minder may wait before it looks again.
func (m *minder) next() time.Duration {
	if m.ended != nil {
		return groupTick
	}
	now := m.clock()
	switch {
	case m.killed:
		return clockTick
	case m.warned:
		return max(0, min(clockTick, now.Until(m.deadline)))
	}
	return max(0, min(clockTick, now.Until(m.deadline)-m.killAfter))
}

func (m *minder) heed() {
	now := m.clock()
	if !m.killed && now.Reached(m.deadline) {
		m.kill()
	} else if !m.warned && now.Until(m.deadline) <= m.killAfter {
		m.warn()
		send(m.socket, Event{Kind: Ending})
	}
}

func (m *minder) obey(o order) {
	switch {
	case o.Trust != nil && !m.warned: // a group that got TERM ends, even if there is more time now
		m.trust(*o.Trust)
	case o.Signal == syscall.SIGKILL:
		m.kill()
	case o.Signal != 0:
		m.signal(o.Signal)
	case o.End && !m.warned:
		m.warn()
	}
}

// learn notes what became of the command. Others are orphans of its group.
func (m *minder) learn(d death) {
	switch {
	case d.pid != m.pid:
	case d.status.Stopped():
		send(m.socket, Event{Kind: Stopped, Signal: d.status.StopSignal()})
	case d.status.Signaled():
		m.end(Event{Kind: Ended, Signal: d.status.Signal()})
	case d.status.Exited():
		m.end(Event{Kind: Ended, Code: d.status.ExitStatus()})
	}
}

// end ends what the command has left running in its group.
func (m *minder) end(e Event) {
	m.ended = &e
	if !m.warned && !m.gone() {
		send(m.socket, Event{Kind: Left})
		m.warn()
	}
}

// warn asks the group to end. It has time until the deadline at most.
func (m *minder) warn() {
	m.warned = true
	now := m.clock()
	if later := now.Add(m.killAfter); later.Until(m.deadline) > 0 {
		m.deadline = later
	}
	m.signal(syscall.SIGTERM)
}

func (m *minder) kill() {
	m.killed, m.warned = true, true
	m.signal(syscall.SIGKILL)
	send(m.socket, Event{Kind: Killed})
}

// signal sends a signal to the group. It continues members that are stopped, so that they can handle the signal.
func (m *minder) signal(s syscall.Signal) {
	_ = syscall.Kill(-m.pid, s) // none may be left
	switch s {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
		_ = syscall.Kill(-m.pid, syscall.SIGCONT)
	}
}

// gone reports whether the whole group has ended. Nobody else gets the group's number while one member lives.
func (m *minder) gone() bool {
	if errors.Is(syscall.Kill(-m.pid, 0), syscall.ESRCH) {
		return true
	}
	if !m.killed || time.Since(m.looked) < deadTick {
		return false
	}
	m.looked = time.Now()
	return isDead(m.pid)
}

// reap waits for the command, and for the orphans that the minder has adopted.
func reap(deaths chan<- death) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // no children: mind looks at the group by itself
			return
		default:
			deaths <- death{pid, status}
		}
	}
}
