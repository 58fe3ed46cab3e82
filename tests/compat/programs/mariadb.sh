# MariaDB: sysbench's mixed transactions, mariadb-slap, a large value, a dump, everything over TCP
. "$(dirname "$0")/../../apps/lib.sh"
PATH=$PATH:/usr/sbin
need mariadbd mariadb-install-db mariadb-slap sysbench
version mariadbd --version
port=$(free_port)
mariadb-install-db --no-defaults --datadir="$WORK/data" --auth-root-authentication-method=normal --user="$(id -un)" \
    --skip-test-db >&2 || exit 1
launch mariadbd --no-defaults --datadir="$WORK/data" --port="$port" --bind-address=127.0.0.1 --socket="$WORK/socket" \
    --user="$(id -un)" --innodb-flush-log-at-trx-commit=0 --max-allowed-packet=64M --pid-file="$WORK/pid"
main=$server
await mariadb-admin --no-defaults -h 127.0.0.1 -P "$port" -u root ping
sql() { with_mode mariadb --no-defaults -h 127.0.0.1 -P "$port" -u root --max-allowed-packet=64M "$@"; }
sql -e 'create database sbtest; create database slap'
bench() {
    with_mode sysbench --db-driver=mysql --mysql-host=127.0.0.1 --mysql-port="$port" --mysql-user=root --tables=2 \
        --table-size=2000 --threads=4 --rand-seed=7 --time=60 "$@"
}
bench oltp_read_write prepare >&2
echo "sysbench $(bench --events=400 oltp_read_write run | grep -E '^ *(transactions|reconnects):' | sed 's/(.*//' | tr -s ' \n' ' ')"
echo "points $(bench --events=4000 --skip-trx=on oltp_point_select run | grep -E '^ *transactions:' | sed 's/(.*//' | tr -s ' ')"
with_mode mariadb-slap --no-defaults -h 127.0.0.1 -P "$port" -u root --auto-generate-sql --concurrency=8 --iterations=2 \
    --number-of-queries=800 --create-schema=slap >"$WORK/slap"
echo "slap exit code $? $(grep -c 'Number of clients' "$WORK/slap")"
sql sbtest -e 'create table big (b longblob)'
{ printf "insert into big values (x'"; some_bytes 8000000 | od -An -v -tx1 | tr -d ' \n'; printf "');"; } | sql sbtest
echo "large $(sql sbtest -N -r -e 'select md5(b), length(b) from big')"
echo "large back $(sql sbtest -N -e 'select hex(b) from big' | sha256sum)"
with_mode mariadb-dump --no-defaults -h 127.0.0.1 -P "$port" -u root --max-allowed-packet=64M --skip-dump-date \
    --skip-comments sbtest big | sha256sum | sed 's/^/dump /'
expect_lanes "$main" 15
stop "$main"
