# inetd: programs that get the connection as their standard input and output, and one that accepts itself (`wait`)
. "$(dirname "$0")/../../apps/lib.sh"
PATH=$PATH:/usr/sbin
need inetd python3
echo "openbsd-inetd $(dpkg-query -W -f '${Version}' openbsd-inetd)" >>"$WORK/version"
digest=$(free_port)
echoing=$(free_port)
script=$(free_port)
waiting=$(free_port)
printf '#!/bin/sh\nread first\necho "you said: $first"\ncat\n' >"$WORK/script"
cat >"$WORK/service" <<'PY'
#!/usr/bin/env python3
import socket
listener = socket.socket(fileno=0)
with listener.accept()[0] as client:
    client.sendall(b"you said: " + client.recv(100))
PY
chmod 755 "$WORK/script" "$WORK/service"
cat >"$WORK/inetd.conf" <<CONF
127.0.0.1:$digest stream tcp nowait $(id -un) /usr/bin/sha256sum sha256sum
127.0.0.1:$echoing stream tcp nowait $(id -un) /bin/cat cat
127.0.0.1:$script stream tcp nowait $(id -un) $WORK/script script
127.0.0.1:$waiting stream tcp wait $(id -un) $WORK/service service
CONF
launch inetd -d -i "$WORK/inetd.conf"
await_listener "$script"
cat >"$WORK/client.py" <<'PY'
import hashlib, socket, sys, threading

def talk(port, data):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        def send():
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        sender = threading.Thread(target=send)
        sender.start()
        answer = b"".join(iter(lambda: connection.recv(100_000), b""))
        sender.join()
        return answer

data = bytes(range(256)) * 20_000
digest, echo, script, waiting = map(int, sys.argv[1:])
for n in range(5):
    print(talk(digest, data).decode().strip())
    print(talk(echo, data) == data)
    print(talk(script, b"hello\n" + data) == b"you said: hello\n" + data)
    print(talk(waiting, b"hello"))
PY
with_mode python3 "$WORK/client.py" "$digest" "$echoing" "$script" "$waiting"
