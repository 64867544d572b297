package procfs

import (
	"fmt"
	"os"
	"strings"
)

// established is the state of a TCP connection that is open at both ends.
const established = "01"

// Connections counts the connections on this machine's loopback that are open to the port.
func Connections(port int) (int, error) {
	n := 0
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		content, err := os.ReadFile(table)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return 0, err
		}
		n += countTo(string(content), port)
	}
	return n, nil
}

// countTo reads the table's lines: number, local address, remote address, state.
func countTo(table string, port int) (n int) {
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 3 && strings.HasSuffix(f[2], suffix) && f[3] == established {
			n++
		}
	}
	return n
}
