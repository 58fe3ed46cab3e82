# NetPIPE: ping-pong of every size up to 1 MiB, its data checked by NetPIPE
. "$(dirname "$0")/../../apps/lib.sh"
need NPtcp
echo "NetPIPE $(dpkg-query -W -f '${Version}' netpipe-tcp)" >>"$WORK/version"
# NetPIPE has a port of its own that no option changes.
cd "$WORK" || exit 1
# A fixed number of round trips: else it takes a fixed time for each size.
launch NPtcp -n 200 -u 1048576
first=$server
await_listener 5002
with_mode NPtcp -h 127.0.0.1 -n 200 -u 1048576 -o "$WORK/out" >&2
echo "exit code $?"
wait "$first"
echo "server exit code $?"
awk '{ print $1 }' "$WORK/out" | sort -n | uniq | wc -l
with_mode true
launch NPtcp -I -u 65536
await_listener 5002
with_mode NPtcp -I -i -h 127.0.0.1 -u 65536 -o "$WORK/out.integrity" >&2
echo "integrity exit code $?"
