package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pglock-dev/pglock/internal/shown"
)

// writeYAML writes v as JSON has it: the same fields, in the same order.
func writeYAML(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.UseNumber()
	node, err := yamlOf(decoder)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := errors.Join(encoder.Encode(node), encoder.Close()); err != nil {
		return err
	}
	_, err = io.WriteString(w, escaped(text.String(), outputYAML)) // all of that stands in double quotes
	return err
}

// yamlOf reads the next value.
func yamlOf(decoder *json.Decoder) (*yaml.Node, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Delim:
		node := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		if token == '{' {
			node = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		}
		for decoder.More() {
			one, err := yamlOf(decoder) // of an object its names and values, in turn
			if err != nil {
				return nil, err
			}
			node.Content = append(node.Content, one)
		}
		_, err := decoder.Token() // the end
		return node, err
	case string:
		return yamlText(token), nil
	case json.Number:
		tag := shown.Either(strings.ContainsAny(token.String(), ".eE"), "!!float", "!!int")
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: token.String()}, nil
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(token)}, nil
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
}

// taken are plain texts to which YAML 1.1, which many readers follow, gives another meaning: words for true and false,
// numbers to the base of 60, and two signs. What YAML 1.2 takes for something else the encoder quotes by itself.
var taken = regexp.MustCompile(`^(?i:y|yes|n|no|on|off|true|false|~|null|=|<<|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)$`)

// yamlText puts a text in double quotes if an escape changes it, or if a reader could take it for something else.
func yamlText(s string) *yaml.Node {
	node := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	if !shown.AllPrint(s) || taken.MatchString(s) {
		node.Style = yaml.DoubleQuotedStyle
	}
	return node
}
