//! The two ends of a TCP connection within this host, with the addresses that the app has seen on its lane.
//!
//! `app` is what programs will hold: its local address is the lane's local one, its peer the lane's remote one.
//! `ours` is the relay's. The addresses are made exact in this order of preference:
//!
//! 1. A handshake between two sockets bound to both addresses. One of them is mostly the address of a listener, whose
//!    port the kernel gives to nobody else, unless this process holds the listener: then, for the moment of the bind,
//!    both are marked `SO_REUSEPORT`.
//! 2. With the privilege for it (`CAP_NET_ADMIN`), both sockets are put into the established state by hand
//!    (`TCP_REPAIR`, as checkpoint and restore does), which no listener hinders.
//! 3. Both again with a port of the kernel's choice in place of one that cannot be had: preferably the app's own, so
//!    that it still sees who its peer is. The addresses are right then. Two relays of one connection, one at either
//!    end, come to this: the same two addresses and ports make one connection only.
//!
//! Both addresses must be this network namespace's, or nobody can bind to them: of a connection to another host, over a
//! bridge, or to another namespace no pair can be made.

use core::net::SocketAddr;
use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::Fd;
use beeline_stats::Reason;

use crate::desc::Kind;
use crate::kernel::{self, SockAddr};
use crate::linux::{TCP_RECV_QUEUE, TCP_SEND_QUEUE, TCPOPT_MSS, TCPOPT_SACK_PERM, TCPOPT_WINDOW};
use crate::{Errno, meet, table};

/// How long a handshake within this host may take: it is over before connect(2) returns unless a packet filter
/// forbids it.
const HANDSHAKE_NS: u64 = 1_000_000_000;
/// Strangers that may come to the gate before the one who is expected.
const STRANGERS_MAX: usize = 16;

/// How often a listener is marked before its port is given up.
const MARKS_MAX: usize = 8;

/// What two sockets agree on over the loopback device: its MTU less the largest headers, and windows of up to 8 MiB.
const LOOPBACK_MSS: u32 = 65_536 - 60;
const WINDOW_SCALE: u32 = 7;

/// See the module. Both sockets are close-on-exec.
pub(super) struct Pair {
    pub app: Fd,
    pub ours: Fd,
}

/// Makes a pair. `family` is the one in which the app sees its addresses.
pub(super) fn connect(local: SocketAddr, remote: SocketAddr, family: i32) -> Result<Pair, Reason> {
    let pair = find(local, remote, family)?;
    // The port of `ours` is the peer's. To the peer it must be as if nobody else were bound to it: whoever may bind to
    // it beside its own end of the connection, now or when that is at the end of its life, may beside `ours`.
    for option in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
        let _ = kernel::setsockopt(pair.ours.get(), libc::SOL_SOCKET, option, &1i32);
    }
    Ok(pair)
}

fn find(local: SocketAddr, remote: SocketAddr, family: i32) -> Result<Pair, Reason> {
    let any = |address: SocketAddr| SocketAddr::new(address.ip(), 0);
    shake_hands(local, remote, family)
        .or_else(|| repair(local, remote, family))
        .or_else(|| shake_hands(any(local), remote, family))
        .or_else(|| repair(any(local), remote, family))
        .or_else(|| shake_hands(local, any(remote), family))
        .or_else(|| shake_hands(any(local), any(remote), family))
        .ok_or(Reason::RelayFailed)
}

fn new_socket(family: i32) -> Option<Fd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let socket = Fd::own(kernel::socket(family, kind, libc::IPPROTO_TCP).ok()? as i32);
    if family == libc::AF_INET6 {
        let _ = kernel::setsockopt(socket.get(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &0i32);
    }
    Some(socket)
}

fn family_of(address: SocketAddr) -> i32 {
    if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

/// Connects by a handshake. Port 0 stands for any.
fn shake_hands(local: SocketAddr, remote: SocketAddr, family: i32) -> Option<Pair> {
    let app = new_socket(family)?;
    let gate = new_socket(family_of(remote))?;
    bind(&app, local, family)?;
    bind(&gate, remote, family_of(remote))?;
    kernel::listen(gate.get(), 4).ok()?;
    let at = kernel::getsockname(gate.get()).ok()?.to_internet()?;
    match kernel::connect(app.get(), &SockAddr::internet(at, family)) {
        Ok(_) => {}
        Err(Errno(libc::EINPROGRESS)) if wait(app.get(), libc::POLLOUT) => {}
        Err(_) => return None,
    }
    let expected = kernel::getsockname(app.get()).ok()?.to_internet()?;
    for _ in 0..STRANGERS_MAX {
        if !wait(gate.get(), libc::POLLIN) {
            break;
        }
        let Ok(ours) = kernel::accept4(gate.get(), None, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) else { break };
        let ours = Fd::own(ours as i32);
        let came_from = kernel::getpeername(ours.get()).ok().and_then(|address| address.to_internet());
        if came_from.is_some_and(|from| same(from, expected)) {
            return Some(Pair { app, ours });
        }
    }
    None
}

/// Whether two addresses are one, however the families write them.
fn same(a: SocketAddr, b: SocketAddr) -> bool {
    a.ip().to_canonical() == b.ip().to_canonical() && a.port() == b.port()
}

fn wait(fd: i32, events: i16) -> bool {
    crate::wait::for_events(fd, events, kernel::now_ns().saturating_add(HANDSHAKE_NS)) & events != 0
}

fn bind(socket: &Fd, address: SocketAddr, family: i32) -> Option<()> {
    if address.port() != 0 {
        // What is bound to the port, too, is connected, or at the end of its life.
        let _ = kernel::setsockopt(socket.get(), libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32);
    }
    let wanted = SockAddr::internet(address, family);
    (kernel::bind(socket.get(), &wanted).is_ok() || bind_beside_listener(socket, address, &wanted)).then_some(())
}

/// Binds to the port of a listener of this process, which is marked `SO_REUSEPORT` for that moment. The caller holds
/// `changing::changing`.
///
/// Other processes that have the listener may do the same just now. So what is put back is what the app has set in this
/// process, or in one that it shares the listener with over `fork`, never what the socket says; and whoever finds his
/// mark taken away sets it again. Of a process that is killed meanwhile the mark stays until the next one comes here.
fn bind_beside_listener(socket: &Fd, address: SocketAddr, wanted: &SockAddr) -> bool {
    let mut done = false;
    table::for_each(|fd, desc| {
        if done || desc.kind() != Kind::Listener || desc.fd.load(Relaxed) != fd {
            return;
        }
        let at = kernel::getsockname(fd).ok().and_then(|at| at.to_internet());
        if at.is_none_or(|at| at.port() != address.port()) {
            return;
        }
        let mark = |fd, value: i32| {
            let _ = kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, &value);
        };
        let is_marked = || kernel::getsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Ok(1i32);
        mark(socket.get(), 1);
        for _ in 0..MARKS_MAX {
            mark(fd, 1);
            done = kernel::bind(socket.get(), wanted).is_ok();
            if done || is_marked() {
                break;
            }
        }
        mark(socket.get(), 0);
        mark(fd, i32::from(meet::reuses_port(desc)));
    });
    done
}

/// Connects without a handshake. A local port of 0 stands for any.
fn repair(local: SocketAddr, remote: SocketAddr, family: i32) -> Option<Pair> {
    let app = new_socket(family)?;
    let ours = new_socket(family_of(remote))?;
    let begin = kernel::now_ns() as u32;
    let (one, other) = (begin, begin.rotate_left(16));
    prepare(&app, local, family, (one, other))?;
    // A socket of IPv6 tells an IPv4 address in its own way.
    let local = SocketAddr::new(local.ip(), kernel::getsockname(app.get()).ok()?.to_internet()?.port());
    prepare(&ours, remote, family_of(remote), (other, one))?;
    // Now nothing is sent: the sockets believe that they are connected.
    kernel::connect(app.get(), &SockAddr::internet(remote, family)).ok()?;
    kernel::connect(ours.get(), &SockAddr::internet(local, family_of(remote))).ok()?;
    for socket in [&app, &ours] {
        let options =
            [[TCPOPT_SACK_PERM, 0], [TCPOPT_MSS, LOOPBACK_MSS], [TCPOPT_WINDOW, WINDOW_SCALE | WINDOW_SCALE << 16]];
        set(socket, libc::TCP_REPAIR_OPTIONS, &options)?;
    }
    set(&app, libc::TCP_REPAIR, &0i32)?;
    set(&ours, libc::TCP_REPAIR, &0i32)?;
    Some(Pair { app, ours })
}

/// Binds a socket for [`repair`] and tells it where its stream and the other one begin.
fn prepare(socket: &Fd, address: SocketAddr, family: i32, (send, receive): (u32, u32)) -> Option<()> {
    set(socket, libc::TCP_REPAIR, &1i32)?;
    kernel::bind(socket.get(), &SockAddr::internet(address, family)).ok()?;
    for (queue, sequence) in [(TCP_SEND_QUEUE, send), (TCP_RECV_QUEUE, receive)] {
        set(socket, libc::TCP_REPAIR_QUEUE, &queue)?;
        set(socket, libc::TCP_QUEUE_SEQ, &sequence)?;
    }
    Some(())
}

fn set<T: Copy>(socket: &Fd, name: i32, value: &T) -> Option<()> {
    kernel::setsockopt(socket.get(), libc::IPPROTO_TCP, name, value).ok().map(|_| ())
}
