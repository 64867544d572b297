package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// Many readers follow YAML 1.1, where more words mean something.
func TestYAMLQuotesWhatAReaderCouldTakeForSomethingElse(t *testing.T) {
	for _, text := range []string{"yes", "NO", "on", "Off", "y", "n", "<<", "=", "1:30", "190:20:30", "-1:30.5", "null",
		"~", "true", "017", "0x1F", "1e3",
		".inf", "2026-11-22", "", "a: b", "# a", "a\u3164", "x\x1b[2J\nx"} {
		var b bytes.Buffer
		must.Do(t, writeYAML(&b, map[string]string{"name": text}))
		value := strings.TrimPrefix(strings.TrimSpace(b.String()), "name: ")
		if value[0] != '"' && value[0] != '\'' {
			t.Errorf("%q is written as %s", text, value)
		}
		var back struct{ Name string }
		if err := yaml.Unmarshal(b.Bytes(), &back); err != nil || back.Name != text {
			t.Errorf("%q comes back as %q, %v", text, back.Name, err)
		}
	}
}

// The metadata of a lock are anybody's JSON: keys longer than YAML allows without a sign, and numbers beyond all types.
func TestYAMLHasWhateverJSONHas(t *testing.T) {
	key := strings.Repeat("k", 1100)
	for raw, want := range map[string]string{
		`{"` + key + `":1}`:              "? " + key + "\n: 1\n",
		`{"x":1e400}`:                    "x: !!float 1e400\n",
		`{"x":123456789012345678901234}`: "x: !!int 123456789012345678901234\n",
		`{"a":[],"o":{},"s":"\/"}`:       "a: []\no: {}\ns: /\n",
	} {
		var b bytes.Buffer
		if err := writeYAML(&b, json.RawMessage(raw)); err != nil || b.String() != want {
			t.Errorf("%.40s is written as %.60q, %v", raw, b.String(), err)
		}
	}
}
