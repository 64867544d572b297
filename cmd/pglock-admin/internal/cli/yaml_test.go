package cli

import (
	"bytes"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// Many readers follow YAML 1.1, where more words mean something.
func TestYAMLQuotesWhatAReaderCouldTakeForSomethingElse(t *testing.T) {
	for _, text := range []string{"yes", "NO", "on", "Off", "y", "n", "<<", "=", "1:30", "190:20:30", "-1:30.5", "null",
		"~", "true", "017", "0x1F", "1e3",
		".inf", "2026-11-22", "", "a: b", "# a", "a\u3164", "x\x1b[2J\nx"} {
		var b bytes.Buffer
		if err := writeYAML(&b, map[string]string{"name": text}); err != nil {
			t.Fatal(err)
		}
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
