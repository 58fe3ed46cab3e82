# Redis, cluster and Lua: three masters with a bus between them, keys that move, scripts, transactions, a blocked client
. "$(dirname "$0")/../../apps/lib.sh"
need redis-server redis-cli
version redis-server --version
# A node's bus has the port plus 10000.
for n in 1 2 3; do
    until port[n]=$(free_port) && [ "${port[n]}" -lt 55000 ]; do :; done
    mkdir -p "$WORK/$n"
    launch redis-server --port "${port[n]}" --cluster-enabled yes --cluster-node-timeout 15000 --save '' --dir "$WORK/$n"
    node[n]=$server
    await_port "${port[n]}"
done
with_mode redis-cli --cluster create "127.0.0.1:${port[1]}" "127.0.0.1:${port[2]}" "127.0.0.1:${port[3]}" --cluster-yes >&2
await sh -c "redis-cli -p ${port[1]} cluster info | grep -q cluster_state:ok"
await sh -c "redis-cli -p ${port[3]} cluster info | grep -q cluster_state:ok"
cli() { with_mode redis-cli -c -p "${port[1]}" "$@"; }
for n in $(seq 1 300); do echo "set key:$n value:$n"; done | cli | sed 's/Redirected.*/Redirected/' | sort | uniq -c | sed 's/^ *//'
for n in $(seq 1 300); do echo "get key:$n"; done | cli | grep -v Redirected | sha256sum
for n in 1 2 3; do echo "node $n has $(with_mode redis-cli -p "${port[n]}" dbsize)"; done
echo "script $(cli eval 'local n = 0; for i = 1, 1000 do n = n + redis.call("incrby", KEYS[1], i) end; return tostring(n)' 1 '{a}counter')"
echo "counter $(cli get '{a}counter')"
echo "long $(cli --raw eval 'return string.rep(ARGV[1], 100000)' 1 x abc | sha256sum)"
with_mode redis-cli --cluster reshard "127.0.0.1:${port[1]}" --cluster-from "$(redis-cli -p "${port[1]}" cluster myid)" \
    --cluster-to "$(redis-cli -p "${port[2]}" cluster myid)" --cluster-slots 1000 --cluster-yes >"$WORK/reshard"
echo "moved, exit code $?"
for n in $(seq 1 300); do echo "get key:$n"; done | cli | grep -v Redirected | sha256sum
for n in 1 2 3; do echo "node $n has $(with_mode redis-cli -p "${port[n]}" dbsize)"; done
expect_lanes "${node[1]}" 4
