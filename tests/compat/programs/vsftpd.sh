# vsftpd: for each client a process in an empty network that may open nothing; files up and down, listings, four at a time
. "$(dirname "$0")/../../apps/lib.sh"
PATH=$PATH:/usr/sbin
need vsftpd lftp
echo "vsftpd $(dpkg-query -W -f '${Version}' vsftpd)" >>"$WORK/version"
[ "$(id -u)" -eq 0 ] || skip "vsftpd must be root"
port=$(free_port)
mkdir -p "$WORK/ftp/pub" "$WORK/empty"
some_bytes 20000000 >"$WORK/ftp/pub/large"
for n in $(seq 1 40); do seq 1 "$n" >"$WORK/ftp/pub/$n"; done
mkdir "$WORK/ftp/pub/in"
chown -R ftp "$WORK/ftp/pub/in"
chmod 755 "$WORK/ftp" "$WORK/ftp/pub" "$WORK/empty"
cat >"$WORK/vsftpd.conf" <<CONF
listen=YES
background=NO
listen_address=127.0.0.1
listen_port=$port
anonymous_enable=YES
no_anon_password=YES
anon_root=$WORK/ftp
write_enable=YES
anon_upload_enable=YES
anon_mkdir_write_enable=YES
anon_umask=022
secure_chroot_dir=$WORK/empty
connect_from_port_20=YES
port_enable=YES
# Debian's vsftpd does not live through its own filter.
seccomp_sandbox=NO
CONF
launch vsftpd "$WORK/vsftpd.conf"
await_listener "$port"
ftp() { with_mode lftp -e "set net:timeout 20; set net:max-retries 1; set ftp:ssl-allow no; $1; bye" "ftp://127.0.0.1:$port"; }
echo "listing $(ftp 'cls -1 pub' | sort | sha256sum)"
ftp "get pub/large -o $WORK/passive"
echo "exit code $? $(sha256sum <"$WORK/passive")"
ftp "set ftp:passive-mode no; get pub/large -o $WORK/active"
echo "exit code $? $(sha256sum <"$WORK/active")"
ftp "mirror -P 4 pub $WORK/mirrored"
echo "exit code $? $(cd "$WORK/mirrored" && find . -type f | sort | xargs sha256sum | sha256sum)"
ftp "put -O pub/in $WORK/passive"
echo "exit code $? $(sha256sum <"$WORK/ftp/pub/in/passive")"
