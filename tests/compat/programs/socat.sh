# socat: listening with forks, programs behind a connection, a chain of relays, half-close
. "$(dirname "$0")/../../apps/lib.sh"
need socat
version socat -V
some_bytes 20000000 >"$WORK/file"
echoing=$(free_port)
launch socat "TCP-LISTEN:$echoing,bind=127.0.0.1,reuseaddr,fork" EXEC:cat
await_listener "$echoing"
chain=$(free_port)
launch socat "TCP-LISTEN:$chain,bind=127.0.0.1,reuseaddr,fork" "TCP:127.0.0.1:$echoing"
await_listener "$chain"
program=$(free_port)
launch socat "TCP-LISTEN:$program,bind=127.0.0.1,reuseaddr,fork" EXEC:sha256sum
await_listener "$program"
through() { with_mode socat -t 30 - "TCP:127.0.0.1:$1" <"$WORK/file"; }
echo "echo $(through "$echoing" | sha256sum)"
echo "chain $(through "$chain" | sha256sum)"
echo "program $(through "$program")"
for n in 1 2 3 4; do
    through "$chain" | sha256sum >"$WORK/parallel.$n" &
    one[n]=$!
done
for n in 1 2 3 4; do wait "${one[n]}"; done
sort "$WORK"/parallel.* | uniq -c | sed 's/^ *//'
nofork=$(free_port)
launch socat "TCP-LISTEN:$nofork,bind=127.0.0.1,reuseaddr,fork" "EXEC:sha256sum,nofork"
await_listener "$nofork"
echo "descriptors 0 and 1 $(through "$nofork")"
