# Perl: IO::Socket with a forking server, line by line through stdio, and large blocks
. "$(dirname "$0")/../../apps/lib.sh"
need perl
version perl -v
port=$(free_port)
cat >"$WORK/server.pl" <<'PL'
use strict; use IO::Socket::INET; use Digest::MD5;
$SIG{CHLD} = 'IGNORE';
my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $ARGV[0], Listen => 64, ReuseAddr => 1) or die $!;
while (1) {
    my $client = $listener->accept() or next;
    if (!fork) {
        while (my $line = <$client>) {
            if ($line =~ /^bytes (\d+)/) { print $client 'z' x $1; $client->flush; last }
            if ($line =~ /^digest (\d+)/) { read($client, my $data, $1); print $client Digest::MD5::md5_hex($data), "\n"; next }
            print $client scalar reverse($line), "\n";
        }
        exit 0;
    }
    close $client;
}
PL
cat >"$WORK/client.pl" <<'PL'
use strict; use IO::Socket::INET; use Digest::MD5;
for my $n (1 .. 30) {
    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $ARGV[0]) or die $!;
    for my $k (1 .. 20) { print $socket "line $n $k\n"; $socket->flush; my $empty = <$socket>; print $empty . <$socket>; }
    my $data = "a$n" x 400000;
    print $socket "digest ", length $data, "\n", $data; $socket->flush;
    print scalar <$socket>;
    print $socket "bytes 1234567\n"; $socket->flush;
    local $/; my $rest = <$socket>; print length $rest, " ", Digest::MD5::md5_hex($rest), "\n";
}
PL
launch perl "$WORK/server.pl" "$port"
main=$server
await_listener "$port"
with_mode perl "$WORK/client.pl" "$port" | sha256sum
expect_lanes "$main" 0
