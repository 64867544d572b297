package report

import "fmt"

// The forms of workloads, as tables name them.
const (
	OneCaller  = "1 caller"
	InOne      = "in one process"
	Spread8    = "in 8 processes"
	HolderDies = "holder killed"

	NewConnection = "new connection"

	AtRest = "clients at rest"
	Start  = "clients start"
	Ask    = "goroutines ask"
)

// Callers names how many callers there are.
func Callers(n int) string {
	if n == 1 {
		return OneCaller
	}
	return fmt.Sprint(n, " callers")
}

// Processes names how many processes of one caller each there are.
func Processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprint(n, " processes")
}

// Waiters names how many wait, and where.
func Waiters(n int, where string) string { return fmt.Sprint(n, " waiters ", where) }

// Beside names how many processes there are, and how many tickets of others.
func Beside(n, tickets int) string {
	return Processes(n) + ", " + Number(float64(tickets)) + " tickets"
}

// BesideLater is the same with tickets that came when the processes had connected.
func BesideLater(n, tickets int) string { return Beside(n, tickets) + " later" }

// Many names how many there are of a crowd.
func Many(n int, crowd string) string { return Number(float64(n)) + " " + crowd }

// BesideClients names how many processes there are, and how many clients that wait for other locks.
func BesideClients(n, clients int) string { return Processes(n) + ", " + Many(clients, AtRest) }

// Leases names how many are held.
func Leases(n int) string { return Number(float64(n)) + " leases" }
