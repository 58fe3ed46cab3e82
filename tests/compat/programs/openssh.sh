# OpenSSH: scp of 1 GiB and back, a forwarded port, many short sessions
# seconds: 300
. "$(dirname "$0")/../../apps/lib.sh"
PATH=$PATH:/usr/sbin
need sshd scp ssh-keygen curl python3
version ssh -V
[ "$(id -u)" -eq 0 ] || skip "sshd must be root to let anybody in"
port=$(free_port)
web=$(free_port)
forwarded=$(free_port)
mkdir -p /run/sshd "$WORK/www"
ssh-keygen -q -t ed25519 -N '' -f "$WORK/host"
ssh-keygen -q -t ed25519 -N '' -f "$WORK/user"
cat >"$WORK/sshd_config" <<CONF
ListenAddress 127.0.0.1:$port
HostKey $WORK/host
PidFile $WORK/pid
AuthorizedKeysFile $WORK/user.pub
PermitRootLogin yes
UsePAM no
StrictModes no
Subsystem sftp internal-sftp
MaxStartups 100
CONF
options=(-F /dev/null -i "$WORK/user" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR
    -o Ciphers=aes128-gcm@openssh.com -o IdentitiesOnly=yes)
launch /usr/sbin/sshd -D -e -f "$WORK/sshd_config"
await_listener "$port"
head -c 1G /dev/zero | openssl enc -aes-128-ctr -K 00112233445566778899aabbccddeeff -iv 0 >"$WORK/file" 2>/dev/null
sha256sum <"$WORK/file" | sed 's/^/file /'
with_mode scp "${options[@]}" -P "$port" "$WORK/file" "root@127.0.0.1:$WORK/there"
echo "scp exit code $? $(sha256sum <"$WORK/there")"
rm -f "$WORK/file"
with_mode scp "${options[@]}" -P "$port" "root@127.0.0.1:$WORK/there" "$WORK/back"
echo "scp back exit code $? $(sha256sum <"$WORK/back")"
rm -f "$WORK/back" "$WORK/there"
for n in $(seq 1 10); do with_mode ssh "${options[@]}" -p "$port" root@127.0.0.1 echo "session $n"; done
some_bytes 5000000 | with_mode ssh "${options[@]}" -p "$port" root@127.0.0.1 sha256sum
some_bytes 5000000 >"$WORK/www/file"
launch python3 -m http.server --bind 127.0.0.1 --directory "$WORK/www" "$web"
await_listener "$web"
launch ssh "${options[@]}" -p "$port" -N -L "$forwarded:127.0.0.1:$web" root@127.0.0.1
await_listener "$forwarded"
echo "forwarded $(with_mode curl -sS --max-time 30 "http://127.0.0.1:$forwarded/file" | sha256sum)"
