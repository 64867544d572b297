package argument

import (
	"strings"
	"testing"
)

func TestTextSaysWhatIsWrong(t *testing.T) {
	for value, rule := range map[string]string{
		"fine": "", strings.Repeat("x", 20): "", "": "have 1 to 20 bytes",
		strings.Repeat("x", 21): "have 1 to 20 bytes",
		"\xff":                  "be valid UTF-8", "a\x00b": "have no NUL byte",
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

func TestNameOfAnApplicationFitsTheServerAndKeepsTheProcessID(t *testing.T) {
	long := strings.Repeat
	for want, parts := range map[string][2]string{
		"pglock app-1/reporter[4711]":                              {"app-1", "reporter"},
		"pglock app-1/" + long("p", 44) + "[4711]":                 {"app-1", long("p", 200)},
		"pglock " + long("h", 37) + "/" + long("p", 12) + "[4711]": {long("h", 200), long("p", 200)},
		"pglock " + long("h", 41) + "/reporter[4711]":              {long("h", 200), "reporter"},
		"pglock ??/?[4711]":                                        {"\xff\n", "é"},
		"pglock " + long("?", 19) + "/" + long("?", 6) + "[4711]":  {long("é", 200), long("é", 200)},
		"pglock /[4711]":                                           {"", ""},
	} {
		got := application(parts[0], parts[1], "4711")
		if got != want || len(got) > applicationBytes {
			t.Errorf("%q: %q (%d bytes), want %q", parts, got, len(got), want)
		}
	}
	kept := map[string]string{"application_name": "shop"}
	if NameApplication(kept); kept["application_name"] != "shop" {
		t.Errorf("%v, want the application's own name", kept)
	}
	NameApplication(nil)
	made := map[string]string{}
	if NameApplication(made); !strings.HasPrefix(made["application_name"], "pglock ") {
		t.Errorf("%v", made)
	}
}
