package shown

import "testing"

func TestUnseenCharactersAreEscaped(t *testing.T) {
	for text, want := range map[string]string{
		"plain":      "plain",
		"a\u3164":    `"a\u3164"`, // a filler, which counts as a letter
		"a\ufe0f":    `"a\ufe0f"`, // a selector of a variant
		"a\u200b":    `"a\u200b"`,
		"a\x1b[2J":   `"a\x1b[2J"`,
		"\U000e0101": `"\U000e0101"`,
		"é界":         "é界",
	} {
		if got := Text(text); got != want {
			t.Errorf("%q is shown as %s, want %s", text, got, want)
		}
	}
	if got := Name("a\u3164"); got != `'"a\u3164"'` {
		t.Errorf("the name is shown as %s", got)
	}
}

func TestASentenceStaysOneLine(t *testing.T) {
	for text, want := range map[string]string{
		`"my lock" is held`:        `"my lock" is held`,
		"\"a\x1b[2J\" is held\nOK": `"a\x1b[2J" is held\nOK`,
	} {
		if got := Line(text); got != want {
			t.Errorf("%q is shown as %s, want %s", text, got, want)
		}
	}
}
