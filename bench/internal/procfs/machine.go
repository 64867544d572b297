package procfs

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is where the figures were measured.
type Machine struct {
	Processors  int           `json:"processors"`
	Model       string        `json:"model"`
	MemoryBytes uint64        `json:"memory_bytes"`
	Kernel      string        `json:"kernel"`
	Go          string        `json:"go"`
	Flush       time.Duration `json:"fdatasync_ns"`     // median
	FlushWorst  time.Duration `json:"fdatasync_p99_ns"` // 99th percentile
	Load        string        `json:"load_before"`      // of the last minute, before the run
}

// BusyCPU is the processor time that all processes together, and the system, have used since the start.
func BusyCPU() (time.Duration, error) {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseBusy(string(content))
}

// parseBusy reads the first line: user, nice, system, idle, waiting for disks, interrupts, soft interrupts, stolen.
func parseBusy(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	var user, nice, system, idle, disk, hard, soft, stolen int64
	_, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &disk, &hard, &soft,
		&stolen)
	if err != nil {
		return 0, fmt.Errorf("/proc/stat: %q: %w", line, err)
	}
	return time.Duration(user+nice+system+hard+soft+stolen) * tick, nil
}

// flushes is how many are timed.
const flushes = 200

// Look measures the machine. The flushes are of a file in dir, which must be on the disk that the servers use.
func Look(dir string) (Machine, error) {
	m := Machine{Processors: runtime.NumCPU(), Go: runtime.Version()}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		m.MemoryBytes = info.Totalram * uint64(info.Unit)
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(load), " ")
	}
	if cpu, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(cpu)) {
			if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
				m.Model = strings.TrimSpace(value)
				break
			}
		}
	}
	took, err := timeFlushes(dir)
	if err != nil {
		return m, fmt.Errorf("measure fdatasync: %w", err)
	}
	slices.Sort(took)
	m.Flush, m.FlushWorst = took[len(took)/2], took[len(took)*99/100]
	return m, nil
}

// timeFlushes writes 8 KiB and flushes them, again and again, over an existing file, as a log is written.
func timeFlushes(dir string) ([]time.Duration, error) {
	f, err := os.CreateTemp(dir, "flush-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	page := make([]byte, 8192)
	for range flushes {
		if _, err := f.Write(page); err != nil {
			return nil, err
		}
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	took := make([]time.Duration, flushes)
	for i := range took {
		began := time.Now()
		if _, err := f.WriteAt(page, int64(i)*int64(len(page))); err != nil {
			return nil, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return nil, err
		}
		took[i] = time.Since(began)
	}
	return took, nil
}
