//! getsockname and getpeername.

use crate::case::axes::{ALL_FAMILIES, FAMILY, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::{Variant, port_of};
use beeline_testkit::sys::{self, RawAddress};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;

pub const GROUP: Group = Group {
    name: "names",
    cases: &[
        Case::new("both_sides_agree", ALL_FAMILIES, both_sides_agree),
        Case::new("cut_to_room", FAMILY, cut_to_room),
        Case::new("bad_pointers", ONCE, bad_pointers),
        Case::new("bad_arguments_of_bind", ONCE, bad_arguments_of_bind),
        Case::new("unconnected", ALL_FAMILIES, unconnected),
        Case::new("after_the_peer_closed", FAMILY, after_the_peer_closed),
        Case::new("after_shutdown", FAMILY, after_shutdown),
        Case::new("many_clients_differ", FAMILY, many_clients_differ),
        Case::new("in_duplicates_and_children", FAMILY, in_duplicates_and_children),
        Case::new("client_port_is_not_free", FAMILY, client_port_is_not_free)
            .deviates("the client's port is reserved among lanes, not against an explicit bind in TCP"),
        Case::new("socket_of_another_namespace", ONCE, socket_of_another_namespace).on_any_path(),
    ],
};

fn own(fd: Fd) -> Option<SocketAddr> {
    sys::getsockname(fd.raw, 128).1.decode()
}

fn peer(fd: Fd) -> Option<SocketAddr> {
    sys::getpeername(fd.raw, 128).1.decode()
}

fn both_sides_agree(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let ip = |address: Option<SocketAddr>| address.map(|a| a.ip());
    let port = |address: Option<SocketAddr>| address.map(|a| a.port());
    trace!("client {:?} -> {:?}", ip(own(client)), ip(peer(client)));
    trace!("server {:?} -> {:?}", ip(own(server)), ip(peer(server)));
    trace!("client's port is the server's peer: {}", port(own(client)) == port(peer(server)));
    trace!("server's port is the client's peer: {}", port(own(server)) == port(peer(client)));
    trace!("server's port is the listener's: {}", port(own(server)) == Some(port_of(listener)));
    trace!("client's port is set: {}", port(own(client)).is_some_and(|port| port >= 1024));
    trace!("own name stays: {}", own(client) == own(client) && peer(server) == peer(server));
}

fn cut_to_room(v: Variant) {
    let (client, server) = v.pair();
    for room in [0, 1, 2, 8, 15, 16, 17, 27, 28, 29, 128] {
        for fd in [client, server] {
            let (ret, name) = sys::getsockname(fd.raw, room);
            trace!("getsockname({}, {room}) = {ret} length {} family {}", fd.name, name.length, name.storage.ss_family);
            let (ret, name) = sys::getpeername(fd.raw, room);
            trace!("getpeername({}, {room}) = {ret} length {} family {}", fd.name, name.length, name.storage.ss_family);
        }
    }
}

fn bad_pointers(v: Variant) {
    let (client, _server) = v.pair();
    let mut length: u32 = 128;
    let mut room = RawAddress::default();
    let (length_at, room_at) = (&raw mut length as usize, &raw mut room.storage as usize);
    trace!("null address {}", sys::getsockname_at(client.raw, 0, length_at));
    trace!("null length {}", sys::getsockname_at(client.raw, room_at, 0));
    trace!("null address {}", sys::getpeername_at(client.raw, 0, length_at));
    trace!("null length {}", sys::getpeername_at(client.raw, room_at, 0));
    let mut negative: i32 = -1;
    let negative_at = &raw mut negative as usize;
    trace!("negative length {}", sys::getsockname_at(client.raw, room_at, negative_at));
    trace!("negative length {}", sys::getpeername_at(client.raw, room_at, negative_at));
    trace!("bad fd {}", sys::getsockname(199, 128).0);
    trace!("bad fd {}", sys::getpeername(199, 128).0);
    let (_, ends) = sys::pipe2(0);
    trace!("pipe {}", sys::getsockname(ends[0], 128).0);
}

/// What the kernel refuses is its business, and leaves a socket as it was; an address of no family it takes.
fn bad_arguments_of_bind(v: Variant) {
    /// In the middle of a page that nobody has.
    const NOWHERE: usize = 0x1234_5678_9010;
    let client = v.client();
    let mut own = RawAddress::new(v.target(0));
    let own_at = &raw const own.storage as usize;
    for (what, address, length) in [
        ("null", 0, 16),
        ("nowhere", NOWHERE, 16),
        ("beyond everything", usize::MAX, 16),
        ("short", own_at, 8),
        ("empty", own_at, 0),
        ("huge", own_at, 4096),
        ("negative length", own_at, u32::MAX),
    ] {
        trace!("{what}: {}", sys::bind_at(client.raw, address, length));
    }
    own.storage.ss_family = libc::AF_UNIX as libc::sa_family_t;
    trace!("of another family: {}", sys::bind(client.raw, &own));
    own = RawAddress::new(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
    own.storage.ss_family = libc::AF_UNSPEC as libc::sa_family_t;
    trace!("of no family: {}", sys::bind(client.raw, &own));
    trace!("again: {}", sys::bind(client.raw, &own));
    let listener = v.listener();
    connect(client, &v.address_of(listener));
    let server = accept(listener, "server");
    send(client, b"x", 0);
    recv(server, 8, 0);
}

fn unconnected(v: Variant) {
    let fresh = v.client();
    trace!("fresh {:?}", own(fresh));
    trace!("fresh peer {}", sys::getpeername(fresh.raw, 128).0);
    let bound = v.bound();
    trace!("bound {:?}", own(bound).map(|a| a.ip()));
    trace!("bound peer {}", sys::getpeername(bound.raw, 128).0);
    let listener = v.listener();
    trace!("listener {:?}", own(listener).map(|a| a.ip()));
    trace!("listener peer {}", sys::getpeername(listener.raw, 128).0);
}

fn after_the_peer_closed(v: Variant) {
    let (client, server) = v.pair();
    let (before, before_peer) = (own(client), peer(client));
    close(server);
    await_hangup(client);
    trace!("same own name: {}", own(client) == before);
    trace!("same peer name: {}", peer(client) == before_peer);
    trace!("getpeername {}", sys::getpeername(client.raw, 128).0);
}

fn after_shutdown(v: Variant) {
    let (client, server) = v.pair();
    let before = peer(client);
    shutdown(client, libc::SHUT_RDWR);
    await_hangup(server);
    trace!("getpeername {} same {}", sys::getpeername(client.raw, 128).0, peer(client) == before);
    shutdown(server, libc::SHUT_RDWR);
    await_events(client, libc::POLLHUP);
    trace!("getpeername {}", sys::getpeername(server.raw, 128).0);
    trace!("getsockname {}", sys::getsockname(server.raw, 128).0);
}

fn many_clients_differ(v: Variant) {
    let listener = v.listener();
    let pairs: Vec<(Fd, Fd)> = (0..20).map(|_| v.pair_on(listener)).collect();
    let ports: std::collections::BTreeSet<u16> =
        pairs.iter().filter_map(|(client, _)| own(*client)).map(|a| a.port()).collect();
    trace!("different ports: {}", ports.len());
    let agree = pairs.iter().all(|(client, server)| own(*client).map(|a| a.port()) == peer(*server).map(|a| a.port()));
    trace!("all agree: {agree}");
}

fn in_duplicates_and_children(v: Variant) {
    let (client, server) = v.pair();
    let twin = dup(server, "twin");
    trace!("twin: {}", own(twin) == own(server) && peer(twin) == peer(server));
    let (before, before_peer) = (own(client), peer(client));
    let child = sys::fork(|| {
        trace::set_actor("child");
        trace!("child: {}", own(client) == before && peer(client) == before_peer);
        0
    });
    trace!("child: {}", sys::wait_for(child));
}

fn client_port_is_not_free(v: Variant) {
    // While the connection stands nobody else can bind the client's address.
    let (client, _server) = v.pair();
    let Some(address) = own(client) else { return };
    let rival = v.named_client("rival");
    bind(rival, &RawAddress::new(address));
}

/// Moves this process to a new network namespace, in which loopback works.
fn enter_new_namespace() -> bool {
    let control = || sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).value as i32;
    // SAFETY: the request reads one `ifreq`, of which zeroes are a valid value.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (place, byte) in request.ifr_name.iter_mut().zip(b"lo") {
            *place = *byte as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = libc::IFF_UP as i16;
        libc::unshare(libc::CLONE_NEWNET) == 0 && libc::ioctl(control(), libc::SIOCSIFFLAGS, &raw const request) == 0
    }
}

fn socket_of_another_namespace(v: Variant) {
    // A socket stays in the network namespace it was made in; that of its thread does not matter.
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let listener = v.listener();
    let address = v.address_of(listener);
    let (_, [told, tell]) = sys::pipe2(0);
    let (_, [ended, _end]) = sys::pipe2(0);
    let rival = sys::fork(|| {
        let inside = enter_new_namespace();
        let rival = sys::socket(v.listener_domain(), libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0).value as i32;
        let serves = sys::bind(rival, &address).is_ok() && sys::listen(rival, 8).is_ok();
        // Whoever has begun to accept is found by clients.
        let begun = crate::across::accept(rival).is(libc::EAGAIN);
        sys::write(tell, &[u8::from(inside && serves && begun)]);
        let mut waiting = [libc::pollfd { fd: ended, events: libc::POLLIN, revents: 0 }];
        sys::poll(&mut waiting, 20_000);
        0
    });
    let mut ready = [0];
    sys::read(told, &mut ready);
    trace!("a server in another namespace: {ready:?}");
    sys::set_nonblocking(listener.raw, true);
    trace!("nobody yet: {}", crate::across::accept(listener.raw).is(libc::EAGAIN));
    let client = v.client();
    let there = std::fs::File::open(format!("/proc/{}/ns/net", rival.value)).expect("its namespace");
    // SAFETY: integers only.
    trace!("moved: {}", unsafe { libc::setns(there.as_raw_fd(), libc::CLONE_NEWNET) });
    connect(client, &address);
    let mut waiting = [libc::pollfd { fd: listener.raw, events: libc::POLLIN, revents: 0 }];
    trace!("arrived where the socket was made: {}", sys::poll(&mut waiting, 5_000).value);
    sys::kill(rival.value as i32, libc::SIGKILL);
    trace!("{}", sys::wait_for(rival));
}
