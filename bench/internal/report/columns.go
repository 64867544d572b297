package report

import "github.com/pglock-dev/pglock/bench/internal/peer"

// column is one metric in the table of a workload.
type column struct {
	metric Metric
	title  string
	ranged bool // with its spread; else the median alone
	worst  bool // the greatest instead
}

// title and columns of each workload.
var tables = map[peer.Workload]struct {
	title   string
	columns []column
}{
	peer.W1: {"W1: acquire and release, distinct names", []column{
		{metric: Rate, title: "pairs/s", ranged: true}, {metric: P50, title: "p50 ms"}, {metric: P99, title: "p99 ms"},
		{metric: ClientCPU, title: "client CPU µs/pair"}, {metric: ServerCPU, title: "server CPU µs/pair"},
		{metric: Flushes, title: "flushes/pair"}, {metric: WAL, title: "WAL bytes/pair"},
		{metric: Statements, title: "requests/pair"},
	}},
	peer.W2: {"W2: one lock, all wait for it", []column{
		{metric: Rate, title: "hand-overs/s", ranged: true}, {metric: P50, title: "wait p50 ms"},
		{metric: P99, title: "wait p99 ms"},
		{metric: Fair, title: "most/least served", ranged: true}, {metric: Statements, title: "requests/acquisition"},
		{metric: ClientCPU, title: "client CPU µs"}, {metric: ServerCPU, title: "server CPU µs"},
	}},
	peer.W3: {"W3: leases held for a TTL", []column{
		{metric: PerSecond, title: "requests/s", ranged: true},
		{metric: Beats, title: "requests per process and TTL/3"},
		{metric: ClientShare, title: "client CPU ms/s", ranged: true}, {metric: ServerShare, title: "server CPU ms/s",
			ranged: true},
		{metric: Connections, title: "connections"},
	}},
	peer.W4: {"W4: the holder dies; from the expiry to the next grant", []column{
		{metric: Late, title: "median ms (least–worst)", ranged: true}, {metric: Late, title: "worst ms", worst: true},
	}},
	peer.W5: {"W5: writes of a row each", []column{
		{metric: Rate, title: "writes/s", ranged: true}, {metric: P50, title: "p50 ms"}, {metric: P99, title: "p99 ms"},
		{metric: ClientCPU, title: "client CPU µs/write"}, {metric: ServerCPU, title: "server CPU µs/write"},
		{metric: Flushes, title: "flushes/write"}, {metric: WAL, title: "WAL bytes/write"},
		{metric: Statements, title: "statements/write"},
	}},
	peer.W6: {"W6: the first grant of a new connection", []column{
		{metric: FirstGrant, title: "connected to grant, ms", ranged: true}, {metric: P50, title: "with connecting, ms",
			ranged: true},
		{metric: P99, title: "p99 ms"}, {metric: ClientCPU, title: "client CPU µs"},
		{metric: ServerCPU, title: "server CPU µs"},
		{metric: Statements, title: "requests"},
	}},
	peer.W7: {"W7: W1 while others queue for other locks", []column{
		{metric: Rate, title: "pairs/s", ranged: true}, {metric: P50, title: "p50 ms", ranged: true},
		{metric: P99, title: "p99 ms"},
		{metric: ClientCPU, title: "client CPU µs/pair"}, {metric: ServerCPU, title: "server CPU µs/pair",
			ranged: true},
		{metric: Statements, title: "requests/pair"},
	}},
	peer.W8: {"W8: many that wait", []column{
		{metric: ServerShare, title: "server CPU ms/s", ranged: true}, {metric: PerSecond, title: "requests/s"},
		{metric: Rate, title: "hand-overs/s", ranged: true}, {metric: P50, title: "wait p50 ms"},
		{metric: ServerTime, title: "server CPU ms", ranged: true}, {metric: AllServed, title: "until all served, ms",
			ranged: true},
		{metric: Connections, title: "connections"},
	}},
}

// names of metrics in the table of ratios.
var names = map[Metric]string{
	Rate: "rate", P50: "median, ms", ServerCPU: "server CPU, µs", ServerShare: "server CPU, ms/s",
	ServerTime: "server CPU, ms", FirstGrant: "connected to grant, ms", Late: "grant after expiry, ms",
}
