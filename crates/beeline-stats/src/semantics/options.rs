//! Socket options.

use super::Handling::{self, Accelerated, FallsBack, Passed};
use super::{OptionRow, Row};
use crate::Reason;

const SOCKET: i32 = 1;
const TCP: i32 = 6;
const IP: i32 = 0;
const IPV6: i32 = 41;

const UNSUPPORTED: Handling = FallsBack(Reason::OptionUnsupported);
const FAST_OPEN: Handling = FallsBack(Reason::FastOpen);

const ALL_OF_THE_PORT: &str = "All listeners of that address go by TCP that the process has then or later.";
const EVERY: &[&str] = &["every_option/"];
const SET: &[&str] = &["every_option/set_on_a_connection", "every_option/set_before_connect"];
const ASKED: &[&str] = &["every_option/socket_level", "options/identity"];
const REFUSED: &[&str] = &["every_option/socket_level", "every_option/tcp_level", "every_option/ip_level"];

const fn option(
    level: i32,
    number: i32,
    name: &'static [&'static str],
    handling: Handling,
    note: &'static str,
    tests: &'static [&'static str],
) -> OptionRow {
    OptionRow { number: (level, number), row: Row { names: name, handling, note, tests } }
}

/// Options that are treated in a way of their own. All others are passed to the kernel, which says what it thinks of a
/// value; the connection keeps it.
pub const OPTIONS: &[OptionRow] = &[
    option(SOCKET, 2, &["SO_REUSEADDR"], Accelerated, "", SET),
    option(SOCKET, 3, &["SO_TYPE"], Accelerated, "", ASKED),
    option(SOCKET, 4, &["SO_ERROR"], Accelerated, "", &["states/", "options/identity"]),
    option(SOCKET, 9, &["SO_KEEPALIVE"], Accelerated, "Kept and told; a peer on the same host needs no probes.", SET),
    option(
        SOCKET,
        10,
        &["SO_OOBINLINE"],
        Accelerated,
        "",
        &["urgent/inline", "urgent/inline_before_connect", "urgent/inline_by_the_listener"],
    ),
    option(SOCKET, 13, &["SO_LINGER"], Accelerated, "", &["options/linger", "states/"]),
    option(
        SOCKET,
        18,
        &["SO_RCVLOWAT"],
        Accelerated,
        "",
        &["options/low_water_mark", "options/low_water_mark_for_readiness", "low_water/"],
    ),
    option(
        SOCKET,
        46,
        &["SO_BUSY_POLL"],
        Accelerated,
        "So many microseconds a call spins for this connection before it sleeps (`spin_ns_max`), whatever its process or a \
         rule says; 0 is `wait=wait`. Where nobody sets it the options hold.",
        &["options/busy_polling", "every_option/set_on_a_connection"],
    ),
    option(
        SOCKET,
        7,
        &["SO_SNDBUF"],
        Accelerated,
        "Kept and told. Up to 4096 bytes, asked for before the connection or of its listener, keep it on TCP. Where nobody \
         sets it: what TCP over the loopback device has right after `connect`.",
        &["options/buffer_sizes", "options/small_buffers", "every_option/of_the_path"],
    ),
    option(
        SOCKET,
        8,
        &["SO_RCVBUF"],
        Accelerated,
        "Kept and told. Up to 4096 bytes, asked for before the connection or of its listener, keep it on TCP.",
        &["options/buffer_sizes", "options/small_buffers"],
    ),
    option(SOCKET, 20, &["SO_RCVTIMEO"], Accelerated, "", &["timeouts/", "options/timeouts_read_back"]),
    option(SOCKET, 21, &["SO_SNDTIMEO"], Accelerated, "", &["timeouts/", "options/timeouts_read_back"]),
    option(SOCKET, 66, &["SO_RCVTIMEO_NEW"], Accelerated, "", EVERY),
    option(SOCKET, 67, &["SO_SNDTIMEO_NEW"], Accelerated, "", EVERY),
    option(SOCKET, 28, &["SO_PEERNAME"], Accelerated, "", &["every_option/peer_name"]),
    option(SOCKET, 30, &["SO_ACCEPTCONN"], Accelerated, "", ASKED),
    option(SOCKET, 38, &["SO_PROTOCOL"], Accelerated, "", ASKED),
    option(SOCKET, 39, &["SO_DOMAIN"], Accelerated, "", ASKED),
    option(SOCKET, 47, &["SO_MAX_PACING_RATE"], Accelerated, "Kept and told; nothing is paced.", SET),
    option(
        SOCKET,
        57,
        &["SO_COOKIE"],
        Passed,
        "The cookie of the socket that stands under the descriptor.",
        &["every_option/cookie"],
    ),
    option(SOCKET, 25, &["SO_BINDTODEVICE"], UNSUPPORTED, "", REFUSED),
    option(SOCKET, 62, &["SO_BINDTOIFINDEX"], UNSUPPORTED, "", REFUSED),
    option(SOCKET, 36, &["SO_MARK"], UNSUPPORTED, "", REFUSED),
    option(SOCKET, 26, &["SO_ATTACH_FILTER"], UNSUPPORTED, "", REFUSED),
    option(SOCKET, 50, &["SO_ATTACH_BPF"], UNSUPPORTED, "", REFUSED),
    option(
        SOCKET,
        49,
        &["SO_INCOMING_CPU"],
        Accelerated,
        "The CPU that the peer has shown last; else the caller's own.",
        &["every_option/of_the_path", "every_option/set_on_a_listener"],
    ),
    option(SOCKET, 51, &["SO_ATTACH_REUSEPORT_CBPF"], UNSUPPORTED, ALL_OF_THE_PORT, &["groups/program_that_chooses"]),
    option(SOCKET, 52, &["SO_ATTACH_REUSEPORT_EBPF"], UNSUPPORTED, ALL_OF_THE_PORT, REFUSED),
    option(
        SOCKET,
        60,
        &["SO_ZEROCOPY"],
        Accelerated,
        "Completions are told; as on the loopback device, the bytes are copied all the same.",
        &["zerocopy/"],
    ),
    option(SOCKET, 29, &["SO_TIMESTAMP"], UNSUPPORTED, "", REFUSED),
    option(SOCKET, 35, &["SO_TIMESTAMPNS"], UNSUPPORTED, "", REFUSED),
    option(SOCKET, 37, &["SO_TIMESTAMPING"], UNSUPPORTED, "", REFUSED),
    option(SOCKET, 63, &["SO_TIMESTAMP_NEW"], UNSUPPORTED, "", REFUSED),
    option(SOCKET, 64, &["SO_TIMESTAMPNS_NEW"], UNSUPPORTED, "", REFUSED),
    option(SOCKET, 65, &["SO_TIMESTAMPING_NEW"], UNSUPPORTED, "", REFUSED),
    option(SOCKET, 61, &["SO_TXTIME"], UNSUPPORTED, "", REFUSED),
    option(SOCKET, 42, &["SO_PEEK_OFF"], UNSUPPORTED, "", &["options/peek_offset", "options/peek_offset_set_late"]),
    option(TCP, 1, &["TCP_NODELAY"], Accelerated, "Nothing is ever delayed.", &["options/nodelay_and_cork"]),
    option(
        TCP,
        2,
        &["TCP_MAXSEG"],
        Accelerated,
        "What TCP over the loopback device shows at first.",
        &["every_option/segment_size"],
    ),
    option(
        TCP,
        3,
        &["TCP_CORK"],
        Accelerated,
        "Kept and told; data goes at once, which TCP allows itself after 200 ms.",
        &["options/nodelay_and_cork", "options/cork_holds_back"],
    ),
    option(TCP, 4, &["TCP_KEEPIDLE"], Accelerated, "", SET),
    option(TCP, 5, &["TCP_KEEPINTVL"], Accelerated, "", SET),
    option(TCP, 6, &["TCP_KEEPCNT"], Accelerated, "", SET),
    option(
        TCP,
        11,
        &["TCP_INFO"],
        Accelerated,
        "State, options, segment sizes and byte counts; estimates are those of an idle connection.",
        &["every_option/info_states", "every_option/info_of_traffic", "every_option/info_length"],
    ),
    option(TCP, 13, &["TCP_CONGESTION"], Accelerated, "", &["every_option/names_of_algorithms"]),
    option(TCP, 18, &["TCP_USER_TIMEOUT"], Accelerated, "", SET),
    option(TCP, 14, &["TCP_MD5SIG"], UNSUPPORTED, "", REFUSED),
    option(TCP, 32, &["TCP_MD5SIG_EXT"], UNSUPPORTED, "", REFUSED),
    option(TCP, 19, &["TCP_REPAIR"], UNSUPPORTED, "", REFUSED),
    option(TCP, 31, &["TCP_ULP"], UNSUPPORTED, "", &["every_option/names_of_algorithms"]),
    option(TCP, 36, &["TCP_INQ"], Accelerated, "", &["zerocopy/bytes_left", "zerocopy/bytes_left_at_the_end"]),
    option(
        TCP,
        27,
        &["TCP_SAVE_SYN"],
        UNSUPPORTED,
        "A connection in shared memory keeps it and tells it: only a listener makes use of it.",
        &["every_option/saved_syn", "every_option/saved_syn_set_late"],
    ),
    option(TCP, 37, &["TCP_TX_DELAY"], UNSUPPORTED, "", REFUSED),
    option(TCP, 30, &["TCP_FASTOPEN_CONNECT"], FAST_OPEN, "", &["every_option/tcp_level", "flags/fast_open"]),
    option(TCP, 34, &["TCP_FASTOPEN_NO_COOKIE"], FAST_OPEN, "", &["every_option/tcp_level", "flags/fast_open"]),
    option(IP, 19, &["IP_TRANSPARENT"], UNSUPPORTED, "", REFUSED),
    option(IP, 4, &["IP_OPTIONS"], UNSUPPORTED, "", REFUSED),
    option(IP, 50, &["IP_UNICAST_IF"], UNSUPPORTED, "", REFUSED),
    option(IP, 16, &["IP_IPSEC_POLICY"], UNSUPPORTED, "", REFUSED),
    option(IP, 17, &["IP_XFRM_POLICY"], UNSUPPORTED, "", REFUSED),
    option(
        IPV6,
        26,
        &["IPV6_V6ONLY"],
        Accelerated,
        "Cannot be changed on a connection, as in TCP.",
        &["every_option/ipv6_level", "every_option/set_on_a_connection"],
    ),
    option(IPV6, 61, &["IPV6_PATHMTU"], Accelerated, "", &["every_option/ipv6_level"]),
    option(IPV6, 75, &["IPV6_TRANSPARENT"], UNSUPPORTED, "", &["every_option/ipv6_level"]),
    option(IPV6, 76, &["IPV6_UNICAST_IF"], UNSUPPORTED, "", &["every_option/ipv6_level"]),
    option(IPV6, 54, &["IPV6_HOPOPTS"], UNSUPPORTED, "", &["every_option/ipv6_level"]),
    option(IPV6, 59, &["IPV6_DSTOPTS"], UNSUPPORTED, "", &["every_option/ipv6_level"]),
    option(IPV6, 57, &["IPV6_RTHDR"], UNSUPPORTED, "", &["every_option/ipv6_level"]),
    option(IPV6, 34, &["IPV6_IPSEC_POLICY"], UNSUPPORTED, "", &["every_option/ipv6_level"]),
    option(IPV6, 35, &["IPV6_XFRM_POLICY"], UNSUPPORTED, "", &["every_option/ipv6_level"]),
];
