package pgserver

import "syscall"

// memory is a folder in memory with room for some servers; "" if there is none. Containers often have a small one.
func memory() string {
	const dir, room = "/dev/shm", 4 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < room {
		return ""
	}
	return dir
}
