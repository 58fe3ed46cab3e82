//! What a TCP connection over the loopback device says about itself, measured on Linux: for options that nobody has
//! set, and for `TCP_INFO`. A lane between network namespaces has its TCP connection below it, over whatever device:
//! that is asked instead what this one is asked about its path.

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::End;

use super::template_info;
use crate::desc::Desc;
use crate::linux::{IP_PROTOCOL, TCP_CLOSE, TCP_CLOSE_WAIT, TCP_ESTABLISHED, TCP_FIN_WAIT2};
use crate::side::{SideState, state};
use crate::{Errno, Outcome, kernel, proc};
use beeline_meeting::pool::PooledLane;

/// The device's MTU, and what IPv4 makes of it.
const MTU: i32 = 65536;
const MTU_V4: i32 = 65535;
/// Maximum segment size: the MTU less headers.
const SEGMENT: i32 = 65483;
/// Half of the window that the other end opens with, which bounds segments until it has grown.
const SEGMENT_FIRST: [i32; 3] = [32741, 32732, 32768];
/// Bytes of the time-stamp option in each segment.
const TIMESTAMP_BYTES: i32 = 12;
/// `TCP_WINDOW_CLAMP` of a connection.
const WINDOW: i32 = 65536;
/// `IP_TTL` of the segments that a client sends.
const TTL: i32 = 64;
/// `SO_SNDBUF` of a connection, as tcp_sndbuf_expand() makes it (Linux net/ipv4/tcp_input.c): so many segments of the
/// initial window, twice for a usual congestion control, each with what the kernel needs for it, in powers of two.
const SEGMENTS_FIRST: u32 = 10;
const SEGMENT_TRUESIZE: u32 = 131_072 + 256;
/// The default of `net.ipv4.tcp_wmem`: the least, the first and the greatest `SO_SNDBUF`.
const SEND_BUFFERS: [u32; 3] = [4096, 16_384, 4 << 20];
/// Index of the loopback device.
const LOOPBACK_INDEX: i32 = 1;

/// Whether the bytes would go over IPv4.
fn over_v4(side: &SideState) -> bool {
    match side.remote.get() {
        SocketAddr::V4(_) => true,
        SocketAddr::V6(address) => matches!(IpAddr::from(*address.ip()).to_canonical(), IpAddr::V4(_)),
    }
}

/// The TCP connection below a lane between network namespaces.
pub(super) fn socket_below(desc: &Desc, side: &SideState) -> Option<i32> {
    desc.pooled().filter(|_| side.is(state::MET)).and_then(PooledLane::holder)
}

/// What it says of itself, if there is one.
fn below<T: kernel::Plain>(desc: &Desc, side: &SideState, level: i32, name: i32) -> Option<T> {
    kernel::getsockopt(socket_below(desc, side)?, level, name).ok()
}

/// `IP_MTU` and `IPV6_MTU`.
pub(super) fn mtu(desc: &Desc, side: &SideState) -> i32 {
    let (level, name, usual) = match over_v4(side) {
        true => (libc::IPPROTO_IP, libc::IP_MTU, MTU_V4),
        false => (libc::IPPROTO_IPV6, libc::IPV6_MTU, MTU),
    };
    below(desc, side, level, name).unwrap_or(usual)
}

/// `TCP_MAXSEG`, after an app has bounded it to `wanted` or not.
pub(super) fn segment(desc: &Desc, side: &SideState, wanted: Option<i32>) -> i32 {
    if let Some(segment) = below(desc, side, libc::IPPROTO_TCP, libc::TCP_MAXSEG) {
        return segment;
    }
    let [client_v4, client_v6, server] = SEGMENT_FIRST;
    let first = match desc.end() {
        End::Server => server,
        End::Client if over_v4(side) => client_v4,
        End::Client => client_v6,
    };
    wanted.map_or(first, |wanted| first.min(wanted.saturating_sub(TIMESTAMP_BYTES)))
}

/// An option that nobody has set, where a connection differs from a fresh socket.
pub(super) fn default(desc: &Desc, side: &SideState, level: i32, name: i32) -> Option<i32> {
    let v6 = side.family.load(Relaxed) as i32 == libc::AF_INET6;
    let server = desc.end() == End::Server;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
            Some(below(desc, side, level, name).unwrap_or_else(|| send_buffer(side)))
        }
        (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => Some(below(desc, side, level, name).unwrap_or(WINDOW)),
        (libc::IPPROTO_IP, libc::IP_MTU) => Some(mtu(desc, side)),
        (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL) if server && over_v4(side) => Some(TTL),
        (libc::IPPROTO_IP, IP_PROTOCOL) => Some(i32::from(side.local.get().port())),
        (libc::IPPROTO_IPV6, libc::IPV6_ADDRFORM) if v6 => Some(libc::AF_INET6),
        (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF) if v6 && server => {
            Some(below(desc, side, level, name).unwrap_or(LOOPBACK_INDEX))
        }
        (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS) if v6 && server => Some(TTL),
        (libc::IPPROTO_IPV6, libc::IPV6_MTU) if v6 => Some(mtu(desc, side)),
        _ => None,
    }
}

/// `SO_SNDBUF` of a connection right after connect(2).
fn send_buffer(side: &SideState) -> i32 {
    let mut text = [0; 64];
    let sizes = proc::read(c"/proc/sys/net/ipv4/tcp_wmem", &mut text)
        .map(proc::numbers)
        .and_then(|mut numbers| Some([numbers.next()?, numbers.next()?, numbers.next()?]));
    let mut usual = [0; 16];
    let control = side.name_option(libc::IPPROTO_TCP, libc::TCP_CONGESTION).unwrap_or_else(|| {
        let _ = proc::read(c"/proc/sys/net/ipv4/tcp_congestion_control", &mut usual);
        usual
    });
    send_buffer_of(sizes.unwrap_or(SEND_BUFFERS), control.starts_with(b"bbr"))
}

/// The same with `net.ipv4.tcp_wmem` and what the congestion control asks for: BBR wants room for three windows.
fn send_buffer_of([_, first, greatest]: [u32; 3], is_bbr: bool) -> i32 {
    let windows = if is_bbr { 3 } else { 2 };
    first.max(greatest.min(SEGMENTS_FIRST * windows * SEGMENT_TRUESIZE)) as i32
}

/// `SO_INCOMING_CPU`: where the last segment was taken in, which is where the peer has sent it. What the peer shows may
/// be a lie: it is told only if the host has such a CPU.
pub(super) fn incoming_cpu(desc: &Desc) -> i32 {
    let here = kernel::cpu();
    let shown = desc.lane().cpu(desc.end().peer()).load(Relaxed).checked_sub(1);
    shown.filter(|&cpu| cpu == here || is_there(cpu)).unwrap_or(here) as i32
}

/// Whether the host has a CPU of this number.
fn is_there(cpu: u32) -> bool {
    let mut text = [0; 128];
    proc::read(c"/sys/devices/system/cpu/possible", &mut text).and_then(last_number).is_some_and(|last| cpu <= last)
}

/// The last number in a list of CPUs: `0-3`, `0,2-5`.
fn last_number(list: &[u8]) -> Option<u32> {
    let last = list.trim_ascii_end().rsplit(|byte| !byte.is_ascii_digit()).next()?;
    core::str::from_utf8(last).ok()?.parse().ok()
}

/// Bytes of `struct tcp_info` in the kernels to come.
pub(super) const INFO_BYTES: usize = 512;

// Offsets in `struct tcp_info` (linux/tcp.h).
const INFO_OPTIONS: usize = 5;
const INFO_SCALES: usize = 6;
const INFO_SND_MSS: usize = 16;
const INFO_RCV_MSS: usize = 20;
const INFO_PMTU: usize = 60;
const INFO_RTT: usize = 68;
const INFO_ADVMSS: usize = 84;
const INFO_BYTES_ACKED: usize = 120;
const INFO_BYTES_RECEIVED: usize = 128;
const INFO_BYTES_SENT: usize = 200;

/// `TCPI_OPT_TIMESTAMPS | TCPI_OPT_SACK | TCPI_OPT_WSCALE`.
const OPTIONS: u8 = 7;
/// Window scales of both ends.
const SCALES: u8 = 0xAA;

/// `TCP_INFO`: a fresh socket's, with what is known of the lane. Bytes count as received when they are in the ring
/// and as acknowledged likewise, as TCP acknowledges before the app reads. Returns the kernel's length.
pub(super) fn info(desc: &Desc, side: &SideState, info: &mut [u8; INFO_BYTES]) -> Result<usize, Errno> {
    let mut length = 0;
    match template_info(side, info, &mut length) {
        Outcome::Fail(errno) => return Err(errno),
        Outcome::Done(_) | Outcome::Kernel => {}
    }
    let unread = u64::from(crate::io::unread_hint(desc, side));
    let words = |number: i32| i64::from(number).to_ne_bytes();
    let bytes = |number: u64| number.to_ne_bytes();
    let (sent, received) = (
        side.tx.bytes().wrapping_add(side.lent.load(Relaxed)),
        side.rx.bytes().wrapping_add(side.fetched.load(Relaxed)).wrapping_add(unread),
    );
    let segment = segment(desc, side, None);
    // Up to the last field of the path.
    let path: Option<[u8; INFO_ADVMSS + 4]> = below(desc, side, libc::IPPROTO_TCP, libc::TCP_INFO);
    let advertised = path.and_then(|path| path.last_chunk::<4>().copied()).map_or(SEGMENT, i32::from_ne_bytes);
    let fields = [
        (INFO_SND_MSS, 4, words(segment)),
        (INFO_RCV_MSS, 4, words(segment)),
        (INFO_PMTU, 4, words(mtu(desc, side))),
        (INFO_RTT, 4, words(1)),
        (INFO_ADVMSS, 4, words(advertised)),
        (INFO_BYTES_ACKED, 8, bytes(sent)),
        (INFO_BYTES_RECEIVED, 8, bytes(received)),
        (INFO_BYTES_SENT, 8, bytes(sent)),
    ];
    for (offset, size, value) in fields {
        if let (Some(place), Some(value)) = (info.get_mut(offset..offset + size), value.get(..size)) {
            place.copy_from_slice(value);
        }
    }
    info[0] = match (side.is(state::RESET), side.is(state::SHUT_WR), side.is(state::PEER_FIN)) {
        (true, ..) | (_, true, true) => TCP_CLOSE,
        (_, false, false) => TCP_ESTABLISHED,
        (_, true, false) => TCP_FIN_WAIT2,
        (_, false, true) => TCP_CLOSE_WAIT,
    };
    info[INFO_OPTIONS] = OPTIONS;
    info[INFO_SCALES] = SCALES;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_send_buffer_has_the_size_that_the_kernel_gives_it() {
        // Measured on Linux 6.18 in a network namespace of its own: with cubic, with BBR, and with other limits.
        assert_eq!(send_buffer_of(SEND_BUFFERS, false), 2_626_560);
        assert_eq!(send_buffer_of(SEND_BUFFERS, true), 3_939_840);
        assert_eq!(send_buffer_of([4096, 16_384, 1 << 20], true), 1 << 20);
        assert_eq!(send_buffer_of([4096, 8 << 20, 16 << 20], false), 8 << 20);
        // What the kernel remembers of earlier connections may let a buffer begin larger.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let kernels = kernel::getsockopt::<i32>(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap();
        // SAFETY: all fields are atomics, for which zero is valid.
        let side: Box<SideState> = Box::new(unsafe { core::mem::zeroed() });
        let ours = send_buffer(&side);
        assert!(ours <= kernels && ours > SEND_BUFFERS[1] as i32, "{ours}, the kernel says {kernels}");
    }

    #[test]
    fn a_cpu_is_one_of_the_hosts() {
        assert!(is_there(0) && is_there(kernel::cpu()));
        assert!(!is_there(u32::MAX - 1) && !is_there(1 << 20));
        assert_eq!(last_number(b"0\n"), Some(0));
        assert_eq!(last_number(b"0-3\n"), Some(3));
        assert_eq!(last_number(b"0,2-5,7\n"), Some(7));
        assert_eq!(last_number(b"\n"), None);
    }
}
