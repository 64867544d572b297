# Runs beside one server: $1 is the server's folder. Standard input is a pipe
# whose only writer is the process that owns the server; it writes the id of
# each postmaster that it starts in the folder, on a line of its own. The pipe ends
# when that process ends, however it ends. Then the program and the folder go.
trap '' HUP INT TERM
PATH=$PATH:/usr/bin:/bin:/usr/sbin:/sbin
folder=$1
pid=
while read -r line; do pid=$line; done

# Whether the program still runs. The id may have been given to a stranger in
# the meantime, so its command line must name the folder; a zombie has none.
runs() {
	[ -n "$pid" ] || return 1
	if [ -r /proc/self/cmdline ]; then
		args=$(tr '\0' ' ' 2>/dev/null </proc/"$pid"/cmdline) || return 1
	else
		args=$(ps -ww -o args= -p "$pid" 2>/dev/null) || return 1
	fi
	case $args in *" $folder/data "* | *" $folder/data") return 0 ;; esac
	return 1
}

# Fast, then immediate, then by force; five seconds each.
for signal in INT QUIT KILL; do
	tries=0
	while [ "$tries" -lt 100 ] && runs; do
		if [ "$tries" -eq 0 ]; then
			kill -"$signal" "$pid"
			kill -CONT "$pid"
		fi 2>/dev/null
		sleep 0.05
		tries=$((tries + 1))
	done
done

# A server that was killed leaves its lock file, and in it the id of a segment
# of shared memory that outlives every process.
segment=$(sed -n '7s/^ *[0-9][0-9]* *\([0-9][0-9]*\) *$/\1/p' "$folder/data/postmaster.pid" 2>/dev/null)
[ -z "$segment" ] || ipcrm -m "$segment" 2>/dev/null

# A program that is just ending may still write.
tries=0
while [ "$tries" -lt 100 ] && ! rm -rf "$folder" 2>/dev/null; do
	sleep 0.05
	tries=$((tries + 1))
done
