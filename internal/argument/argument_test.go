package argument

import (
	"strings"
	"testing"
)

func TestTextSaysWhatIsWrong(t *testing.T) {
	for value, rule := range map[string]string{
		"fine": "", strings.Repeat("x", 20): "", "": "have 1 to 20 bytes", strings.Repeat("x", 21): "have 1 to 20 bytes",
		"\xff": "be valid UTF-8", "a\x00b": "have no NUL byte",
	} {
		p := Text("name", value, 20)
		if (p == nil) != (rule == "") || p != nil && (p.Rule != rule || p.Field != "name" || p.Value == "") {
			t.Errorf("%q: %+v, want %q", value, p, rule)
		}
	}
	if got := Shorten(strings.Repeat("x", 41)); got != `"`+strings.Repeat("x", 40)+`"…` {
		t.Errorf("shortened to %s", got)
	}
}
