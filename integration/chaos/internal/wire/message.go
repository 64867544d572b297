package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// reader reads whole messages of PostgreSQL's protocol, version 3. The first of a client has no type.
type reader struct {
	*bufio.Reader
	untyped bool
	buffer  []byte
}

// Requests that may come before the first message with a type, in place of a protocol's version.
const (
	sslRequest = 80877103
	gssRequest = 80877104
)

const longest = 64 << 20

// next gives the next message, with its type and length. It is overwritten by the one after.
func (r *reader) next() ([]byte, error) {
	typed := 1
	if r.untyped {
		typed = 0
	}
	head, err := r.Peek(typed + 4)
	if err != nil {
		return nil, err
	}
	length := int(binary.BigEndian.Uint32(head[typed:])) + typed
	if length < typed+4 || length > longest {
		return nil, fmt.Errorf("wire: a message of %d bytes", length)
	}
	if cap(r.buffer) < length {
		r.buffer = make([]byte, length)
	}
	m := r.buffer[:length]
	if _, err := io.ReadFull(r.Reader, m); err != nil {
		return nil, err
	}
	if r.untyped && length >= 8 {
		switch binary.BigEndian.Uint32(m[4:]) {
		case sslRequest, gssRequest:
			return nil, fmt.Errorf("wire: the client asks for encryption: connect with sslmode=disable")
		}
		r.untyped = false
	}
	return m, nil
}

// spoken is what has to be remembered of a client's requests to know which of them is a COMMIT.
type spoken struct {
	statements, portals map[string]bool // that commit
}

func newSpoken() spoken { return spoken{make(map[string]bool), make(map[string]bool)} }

// request says whether the message makes the server commit.
func (s spoken) request(m []byte) (commits bool) {
	switch body := m[min(5, len(m)):]; m[0] {
	case 'Q':
		return isCommit(text(&body))
	case 'P':
		name := text(&body)
		s.statements[name] = isCommit(text(&body))
	case 'B':
		portal := text(&body)
		s.portals[portal] = s.statements[text(&body)]
	case 'E':
		return s.portals[text(&body)]
	}
	return false
}

// text takes a string that ends with a NUL.
func text(body *[]byte) string {
	s, rest, _ := bytes.Cut(*body, []byte{0})
	*body = rest
	return string(s)
}

func isCommit(sql string) bool {
	sql = strings.TrimRight(sql, " \t\n;")
	return len(sql) >= 6 && strings.EqualFold(sql[len(sql)-6:], "commit")
}

// isCommitted says whether the server's message is the answer to a COMMIT.
func isCommitted(m []byte) bool { return m[0] == 'C' && bytes.Equal(m[5:], []byte("COMMIT\x00")) }
