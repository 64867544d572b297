package live

import (
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/pglock"
)

// liveModel is the state of the screen of top and watch. Only bubbletea's loop touches it.
type liveModel struct {
	o        *cli.Options
	interval time.Duration
	watching bool // began with one lock, and has no list to go back to

	ask     func(liveWish)  // hands the reader a wish; does not wait
	breakIt func(liveBreak) // starts to break; the answer comes as liveBroken
	suspend func()          // stops this program until somebody continues it

	width, height int
	now           time.Time // by this machine's clock

	wish    liveWish     // what the screen is about
	shot    liveShot     // the last one that was read
	trouble *cli.Problem // why the last refresh has failed
	seen    bool         // the shot is about the wish
	rates   liveRates

	row    int // of the list: the chosen one
	chosen liveKey
	from   int // the first row or line on the screen

	token  pglock.Token // of the chosen holder in the view of a lock
	typing bool         // a filter
	asking *liveBreak
	notice string // what became of a break

	code int // exit code
}

// liveKey names a row of the list.
type liveKey struct {
	name string
	slot int
}

func keyOf(l look.ListedLock) liveKey { return liveKey{l.Name, l.Slot} }

type liveTick time.Time

func (m *liveModel) Init() tea.Cmd { return nil }

func (m *liveModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
		return m, tea.ClearScreen // what was written for the size before may have arrived after the change
	case liveTick:
		m.now = time.Time(msg)
	case liveShot:
		m.take(msg)
	case liveBroken:
		m.asking, m.notice = nil, msg.told()
		m.ask(m.wish)
	case liveSuspend:
		m.suspended()
	case tea.PasteMsg:
		m.typed(msg.Content)
	case tea.KeyPressMsg:
		return m, m.key(msg)
	}
	return m, nil
}

// liveSuspend asks to stop this program, as Ctrl-Z does.
type liveSuspend struct{}

// suspended returns when the program goes on. What is on the screen is old then.
func (m *liveModel) suspended() {
	m.suspend()
	m.now = time.Now()
	m.ask(m.wish)
}

// take shows what was read, if it is what the screen is about.
func (m *liveModel) take(s liveShot) {
	m.now = time.Now()
	if s.wish != m.wish {
		return // the wish has changed meanwhile
	}
	if s.trouble != nil {
		m.trouble = s.trouble
		return
	}
	m.shot, m.trouble, m.seen = s, nil, true
	if s.wish.name != "" {
		m.chooseHolder(0)
		return
	}
	m.rates.note(s)
	m.sort()
	m.follow()
}

// old tells how old the data on the screen are, if they are older than they should be.
func (m *liveModel) old() (time.Duration, bool) {
	age := max(0, m.now.Sub(m.shot.at))
	return age, m.seen && (m.trouble != nil || m.now.After(m.shot.next.Add(liveLate)))
}

// liveLate is how much later than planned a refresh may come before the data on the screen are called old.
const liveLate = 2 * time.Second

// wants changes what the screen is about. What it has shown of something else is no longer shown.
func (m *liveModel) wants(w liveWish) {
	if w.name != m.wish.name || w.match != m.wish.match || m.shot.more {
		m.seen, m.from = false, 0
	}
	m.wish, m.trouble = w, nil
	m.ask(w)
}

func (m *liveModel) key(k tea.KeyPressMsg) tea.Cmd {
	name := k.Keystroke()
	switch name {
	case "ctrl+c":
		m.code = cli.ExitInterrupted
		return tea.Quit
	case "ctrl+z":
		m.suspended()
		return nil
	}
	switch {
	case m.asking != nil:
		m.keyBreak(name, k.Text)
	case m.typing:
		m.keyFilter(name, k.Text)
	case m.wish.name != "":
		return m.keyLock(name)
	default:
		return m.keyTop(name, k.Text)
	}
	return nil
}

func (m *liveModel) typed(text string) {
	switch {
	case m.asking != nil && !m.asking.sent:
		m.asking.typed(text)
	case m.typing:
		m.filter(typedInto(m.wish.match, text, pglock.MaxNameBytes))
	}
}

func (m *liveModel) filter(text string) {
	w := m.wish
	if w.match = text; w != m.wish {
		m.wants(w)
	}
}

func (m *liveModel) keyFilter(name, text string) {
	switch name {
	case "enter":
		m.typing = false
	case "esc":
		m.typing = false
		m.filter("")
	case "backspace":
		m.filter(rubbedOut(m.wish.match))
	case "ctrl+u":
		m.filter("")
	default:
		m.typed(text)
	}
}

func (m *liveModel) keyBreak(name, text string) {
	b := m.asking
	switch {
	case b.sent: // the answer comes
	case name == "esc":
		m.asking = nil
	case name == "backspace":
		b.reason = rubbedOut(b.reason)
	case name == "ctrl+u":
		b.reason = ""
	case name == "enter" && blank(b.reason):
		b.hint = choose(m.width, "Write why: the history must say why the lease was ended.",
			"Write why: for the history.")
	case name == "enter":
		b.sent = true
		m.breakIt(*b)
	default:
		m.typed(text)
	}
}

func (m *liveModel) keyTop(name, text string) tea.Cmd {
	m.notice = ""
	w := m.wish
	switch name {
	case "q":
		return tea.Quit
	case "w":
		w.order = byWait
	case "a":
		w.order = byAge
	case "r":
		w.order = byRate
	case "esc":
		m.filter("")
		return nil
	case "enter":
		if m.row < len(m.shot.locks) && m.seen {
			w.name = m.shot.locks[m.row].Name
			m.token = m.shot.locks[m.row].Token
		}
	default:
		if text == "/" {
			m.typing = true
		} else {
			m.move(name)
		}
		return nil
	}
	if w != m.wish {
		m.wants(w)
		m.resort(w)
	}
	return nil
}

// resort sorts what is on the screen at once, although the server chooses anew.
func (m *liveModel) resort(w liveWish) {
	if w.name == "" {
		m.row, m.from = 0, 0
		m.sort()
		m.choose()
	}
}

func (m *liveModel) keyLock(name string) tea.Cmd {
	m.notice = ""
	switch name {
	case "q":
		return tea.Quit
	case "esc", "left":
		if !m.watching {
			w := m.wish
			w.name = ""
			m.wants(w)
		}
	case "tab":
		m.chooseHolder(1)
	case "shift+tab":
		m.chooseHolder(-1)
	case "b":
		m.askBreak()
	default:
		m.scroll(name)
	}
	return nil
}

// askBreak asks for the reason. The lease is the one that the screen shows now, whatever comes meanwhile.
func (m *liveModel) askBreak() {
	if h, held := m.holder(); held && m.seen {
		m.asking = &liveBreak{name: h.Name, holder: h.Holder, token: h.Token}
	} else if m.seen {
		m.notice = "Nobody holds this lock: there is nothing to break."
	}
}
