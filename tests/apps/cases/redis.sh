# Redis: strings and large values, a pipeline, publishing, blocking pops, a fork for a snapshot, a replica, a crowd.
. "$(dirname "$0")/../lib.sh"
need redis-server redis-cli redis-benchmark python3
version redis-server --version
port=$(free_port)
launch redis-server --port "$port" --save '' --appendonly no --dir "$WORK"
main=$server
await_port "$port"
cli() { with_mode redis-cli -p "$port" "$@"; }

echo "set $(cli set greeting hello)"
echo "get $(cli get greeting)"
some_bytes 5000000 >"$WORK/big"
echo "large $(cli -x set big <"$WORK/big")"
echo "large back $(cli --raw get big | head -c 5000000 | sha256sum)"
for n in $(seq 1 5000); do printf 'SET key:%d value:%d\r\n' "$n" "$n"; done | cli --pipe | tail -n1
echo "keys $(cli dbsize)"
echo "one of them $(cli get key:4321)"
printf 'MULTI\nINCR counter\nINCR counter\nEXEC\n' | cli | tail -n2

with_mode redis-cli -p "$port" subscribe news >"$WORK/news" &
subscriber=$!
started+=("$subscriber")
await grep -q subscribe "$WORK/news"
echo "heard by $(cli publish news extra)"
await grep -q extra "$WORK/news"

with_mode redis-cli -p "$port" blpop queue 0 >"$WORK/popped" &
popper=$!
await sh -c "redis-cli -p $port client list | grep -q blpop"
echo "pushed $(cli rpush queue job)"
wait "$popper"
echo "popped $(tail -n1 "$WORK/popped")"

echo "snapshot $(cli bgsave | head -c 10)"
await sh -c "redis-cli -p $port info persistence | grep -q rdb_bgsave_in_progress:0"
cli info persistence | grep rdb_last_bgsave_status | tr -d '\r'

second=$(free_port)
launch redis-server --port "$second" --save '' --dir "$WORK" --dbfilename replica.rdb --replicaof 127.0.0.1 "$port"
await_port "$second"
await sh -c "redis-cli -p $second info replication | grep -q master_link_status:up"
echo "replica has $(with_mode redis-cli -p "$second" dbsize)"
echo "after a write $(cli set late arrival)"
await sh -c "redis-cli -p $second get late | grep -q arrival"

with_mode redis-benchmark -p "$port" -q -n 20000 -c 50 -P 16 -t set,get,lpush,lrange_100 --csv | cut -d, -f1
with_mode redis-benchmark -p "$port" -q -n 5000 -c 1 -t ping --csv | cut -d, -f1
cli config set maxclients 1000
echo "still answers $(cli ping)"
expect_lanes "$main" 60
