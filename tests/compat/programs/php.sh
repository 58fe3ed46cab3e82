# PHP: streams and the extensions sockets and curl, which PHP binds to the C library itself, on each other's connections
. "$(dirname "$0")/../../apps/lib.sh"
need php
version php -v
php -r 'exit(extension_loaded("sockets") && extension_loaded("curl") ? 0 : 1);' || skip "PHP without sockets or curl"
port=$(free_port)
web=$(free_port)
cat >"$WORK/server.php" <<'PHP'
<?php
// Taken by streams, served by the extension: a number asks for so many bytes, anything else comes back.
$listener = stream_socket_server("tcp://127.0.0.1:$argv[1]", $number, $text) or die($text);
for (;;) {
    $stream = @stream_socket_accept($listener, 3600);
    if (!$stream) continue;
    $socket = socket_import_stream($stream);
    while (($line = @socket_read($socket, 100000, PHP_NORMAL_READ)) !== false && $line !== "") {
        $answer = is_numeric(trim($line)) ? str_repeat("z", (int)$line) : strrev(trim($line)) . "\n";
        for ($sent = 0; $sent < strlen($answer); $sent += $count)
            if (($count = socket_write($socket, substr($answer, $sent, 70000))) === false) break 2;
    }
    fclose($stream);
}
PHP
cat >"$WORK/client.php" <<'PHP'
<?php
for ($n = 1; $n <= 20; $n++) {
    if ($n % 2) {
        $stream = stream_socket_client("tcp://127.0.0.1:$argv[1]");
        $socket = socket_import_stream($stream);
    } else {
        $socket = socket_create(AF_INET, SOCK_STREAM, SOL_TCP);
        socket_connect($socket, "127.0.0.1", $argv[1]) or die("no connection");
        $stream = socket_export_stream($socket);
    }
    for ($k = 1; $k <= 20; $k++) {
        $k % 3 ? fwrite($stream, "line $n $k\n") : socket_write($socket, "line $n $k\n");
        $set = [$socket]; $none = null;
        $ready = socket_select($set, $none, $none, 20);
        echo $ready, " ", $k % 4 ? socket_read($socket, 100, PHP_NORMAL_READ) : fgets($stream);
    }
    fwrite($stream, "3000000\n");
    for ($all = ""; strlen($all) < 3000000; $all .= $part)
        $part = strlen($all) % 2 ? fread($stream, 65536) : socket_read($socket, 65535);
    echo strlen($all), " ", md5($all), "\n";
    fclose($stream);
}
$curl = curl_init();
for ($n = 0; $n < 20; $n++) {
    curl_setopt_array($curl, [CURLOPT_URL => "http://127.0.0.1:$argv[2]/?n=$n", CURLOPT_RETURNTRANSFER => true,
        CURLOPT_POSTFIELDS => str_repeat("q$n", 200000), CURLOPT_HTTPHEADER => ["Expect:"]]);
    echo md5(curl_exec($curl)), " ", curl_getinfo($curl, CURLINFO_RESPONSE_CODE), "\n";
}
PHP
cat >"$WORK/index.php" <<'PHP'
<?php echo $_GET['n'], " ", md5(file_get_contents('php://input')), str_repeat(".", 500000);
PHP
launch php "$WORK/server.php" "$port"
main=$server
await_listener "$port"
launch php -S "127.0.0.1:$web" -t "$WORK" "$WORK/index.php"
website=$server
await_listener "$web"
with_mode timeout 120 php "$WORK/client.php" "$port" "$web"
expect_lanes "$main" 20
expect_lanes "$website" 20
