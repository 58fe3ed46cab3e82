# rsync daemon: a tree pushed, pulled, changed and pulled again
. "$(dirname "$0")/../../apps/lib.sh"
need rsync
version rsync --version
port=$(free_port)
mkdir -p "$WORK/source/a/b" "$WORK/module"
some_bytes 30000000 >"$WORK/source/large"
for n in $(seq 1 300); do seq 1 "$n" >"$WORK/source/a/b/$n"; done
cat >"$WORK/rsyncd.conf" <<CONF
use chroot = no
uid = $(id -u)
gid = $(id -g)
[m]
path = $WORK/module
read only = no
CONF
launch rsync --daemon --no-detach --config="$WORK/rsyncd.conf" --port="$port" --address=127.0.0.1 --log-file=/dev/stderr
await_listener "$port"
digest() { (cd "$1" && find . -type f | sort | xargs sha256sum | sha256sum); }
sync() { with_mode rsync -a --port="$port" "$@"; echo "exit code $?"; }
digest "$WORK/source"
sync "$WORK/source/" 127.0.0.1::m/
digest "$WORK/module"
sync 127.0.0.1::m/ "$WORK/pulled/"
digest "$WORK/pulled"
printf 'changed' | dd of="$WORK/module/large" bs=1 seek=10000000 conv=notrunc status=none
rm "$WORK/module/a/b/7"
sync --delete --checksum 127.0.0.1::m/ "$WORK/pulled/"
digest "$WORK/pulled"
sync -z --checksum 127.0.0.1::m/large "$WORK/compressed"
sha256sum <"$WORK/compressed"
