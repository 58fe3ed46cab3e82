# nuttcp: a server that binds its data port anew for each session, in both directions, with one stream and with four
. "$(dirname "$0")/../../apps/lib.sh"
need nuttcp
version nuttcp -V
port=$(free_port)
data=$(free_port)
launch nuttcp -S --nofork "-P$port"
await_listener "$port"
for session in -t -r -t "-t -N4" -r; do
    # Its words are options.
    # shellcheck disable=SC2086
    with_mode nuttcp $session "-P$port" "-p$data" -n256 -l65536 -fparse 127.0.0.1 >"$WORK/results"
    echo "$session: exit code $?"
    grep -oE 'megabytes=[0-9.]+' "$WORK/results"
done
