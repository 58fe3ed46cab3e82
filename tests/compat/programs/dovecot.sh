# Dovecot: a master that watches the listeners and has others accept; its login processes with and without a limit of memory
# expects: listener_only_watched
. "$(dirname "$0")/../../apps/lib.sh"
need dovecot python3
[ "$(id -u)" -eq 0 ] || skip "dovecot must be root"
version dovecot --version
chmod 755 "$WORK"
cat >"$WORK/client.py" <<'PY'
import imaplib, sys

for n in range(3):
    with imaplib.IMAP4("127.0.0.1", int(sys.argv[1])) as session:
        print(session.login("somebody", "secret")[0])
        print(session.append("INBOX", "", None, b"Subject: %d\r\n\r\n" % n + b"line\r\n" * 20_000)[0])
        print(session.select("INBOX")[0])
        print(len(session.fetch("%d" % (n + 1), "(RFC822)")[1][0][1]))
PY
for limit in 256M 0; do
    port=$(free_port)
    home=$WORK/$limit
    mkdir -p "$home/mail"
    chown nobody "$home/mail"
    cat >"$home/conf" <<CONF
base_dir = $home/run
state_dir = $home/state
default_vsz_limit = $limit
protocols = imap
ssl = no
disable_plaintext_auth = no
log_path = $home/log
listen = 127.0.0.1
mail_location = maildir:$home/mail/%u
first_valid_uid = 1
service imap-login {
  inet_listener imap {
    port = $port
  }
  inet_listener imaps {
    port = 0
  }
}
passdb {
  driver = static
  args = password=secret
}
userdb {
  driver = static
  args = uid=nobody gid=nogroup home=$home/mail/%u
}
CONF
    launch dovecot -F -c "$home/conf"
    await_listener "$port"
    # A program of its own for each: none knows what the one before has found.
    for n in 1 2; do with_mode python3 "$WORK/client.py" "$port"; done
done
