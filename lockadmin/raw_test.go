package lockadmin

import (
	"strings"
	"testing"
	"time"
)

func TestTextsAreAsTheyAreAndCommandsAreQuoted(t *testing.T) {
	l := lookAt(holderOf(19 * time.Second))
	l.Lock, l.Holders[0].Holder = "a\x1b[2J", "b\n\u202e"
	l.conclude()
	v := l.Verdicts[0]
	if v.Who != "b\n\u202e" || !strings.Contains(v.Text, "a\x1b[2J") || !strings.Contains(v.Text, "b\n\u202e") {
		t.Errorf("%+v, want raw texts", v)
	}
	for _, s := range v.Steps {
		if strings.ContainsAny(s.Command, "\x1b\n") {
			t.Errorf("%q is not for a shell", s.Command)
		}
	}
}
