# Java: blocking sockets with threads, NIO with a selector, the HTTP client and server of the JDK
# seconds: 300
. "$(dirname "$0")/../../apps/lib.sh"
need java javac
version java -version
here=$(cd "$(dirname "$0")" && pwd)
javac -d "$WORK" "$here/Echo.java" >&2 || exit 1
for kind in blocking nio http; do
    port=$(free_port)
    launch java -cp "$WORK" Echo "$kind" "$port"
    main=$server
    await_listener "$port"
    with_mode java -cp "$WORK" Echo "$kind-client" "$port" | sed "s/^/$kind /"
    expect_lanes "$main" 5
done
