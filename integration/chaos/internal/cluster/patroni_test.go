//go:build unix

package cluster

import "testing"

// Of what a member's log says, the judge gets what the library's sessions and the server itself have said.
func TestTheJudgeReadsNothingOfPatroni(t *testing.T) {
	const at = "2026-01-02 03:04:05.678 UTC [77] "
	for line, kept := range map[string]bool{
		at + "w0.0 40P01 ERROR:  deadlock detected\n":                                                          true,
		at + " 00000 LOG:  startup process exited\n":                                                           true,
		at + " XX000 PANIC:  could not write to file\n":                                                        true,
		at + "node1 XX000 FATAL:  could not receive data\n":                                                    false,
		at + "Patroni 57P01 FATAL:  terminating connection\n":                                                  false,
		at + "chaos order 55006 ERROR:  the slot is active\n":                                                  false,
		at + " XX000 FATAL:  requested timeline 8 does not contain minimum recovery point 0/3 on timeline 7\n": false,
	} {
		if got := ofPatroni.ReplaceAllString(line, "") != ""; got != kept {
			t.Errorf("%q: kept %v, want %v", line, got, kept)
		}
	}
}
