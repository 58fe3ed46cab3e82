# PostgreSQL: pgbench over TCP and over TLS, a large result, COPY in and out, LISTEN and NOTIFY
. "$(dirname "$0")/../../apps/lib.sh"
PATH=$PATH:$(echo /usr/lib/postgresql/*/bin | tr ' ' '\n' | tail -n1)
need initdb pgbench psql openssl runuser
version postgres --version
# PostgreSQL does not run as root.
as=()
if [ "$(id -u)" -eq 0 ]; then
    chown postgres "$WORK"
    as=(runuser -u postgres --)
fi
client() {
    if [ "$MODE" = beeline ]; then "${as[@]}" "$BEELINE" run --quiet -- "$@"; else "${as[@]}" "$@"; fi
}
port=$(free_port)
"${as[@]}" initdb -D "$WORK/data" -A trust -U postgres --no-sync >&2 || exit 1
"${as[@]}" openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 10 -keyout "$WORK/data/server.key" \
    -out "$WORK/data/server.crt" 2>/dev/null
chmod 600 "$WORK/data/server.key"
client postgres -D "$WORK/data" -p "$port" -h 127.0.0.1 -k "$WORK" -c ssl=on -c fsync=off -c max_wal_senders=0 \
    -c wal_level=minimal >&2 &
started+=($!)
await pg_isready -q -h 127.0.0.1 -p "$port" -U postgres
main=$(head -n1 "$WORK/data/postmaster.pid")
started+=("$main")
for tls in disable require; do
    url="host=127.0.0.1 port=$port user=postgres dbname=postgres sslmode=$tls"
    export PGSSLMODE=$tls
    client pgbench -h 127.0.0.1 -p "$port" -U postgres -i -s 2 -q postgres >&2
    echo "$tls pgbench $(client pgbench -h 127.0.0.1 -p "$port" -U postgres -c 4 -j 2 -t 500 postgres 2>&1 \
        | grep -E 'actually processed|failed transactions' | tr '\n' ' ')"
    echo "$tls select $(client pgbench -h 127.0.0.1 -p "$port" -U postgres -S -M prepared -c 4 -t 1000 postgres 2>&1 \
        | grep 'actually processed')"
    echo "$tls history $(client psql "$url" -Atc 'select count(*) from pgbench_history')"
    echo "$tls large $(client psql "$url" -Atc "select repeat(md5(n::text), 1000) from generate_series(1, 500) n" | sha256sum)"
    client psql "$url" -qc 'drop table if exists t; create table t (n int, text text)'
    some_bytes 2000000 | base64 -w 100 | awk '{ print NR "\t" $0 }' >"$WORK/rows"
    echo "$tls in $(client psql "$url" -c 'copy t from stdin' <"$WORK/rows")"
    echo "$tls out $(client psql "$url" -c 'copy t to stdout' | sha256sum)"
    echo "$tls encrypted $(client psql "$url" -Atc 'select ssl from pg_stat_ssl where pid = pg_backend_pid()')"
    echo "$tls told $(client psql "$url" -c 'listen l' -c "notify l, 'hello'" | sed 's/PID [0-9]*/PID/' | tr '\n' ' ')"
done
kill -INT "$main"
await sh -c "! kill -0 $main"
