//! What the agent rests on, asked of the kernel: `docs/design/0008-namespaces.md`, "Checked on the kernel".
//!
//! These need power over the network namespace (root); without, they say so and pass.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use beeline_meeting::agent::host::{self as agent, tcp};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt::ReuseAddr,
};

const TCP_SAVE_SYN: i32 = 27;
const NUMBER: u32 = 0x1234_5678;

fn keep_syns(listener: &TcpListener) {
    beeline_guest::kernel::setsockopt(listener.as_raw_fd(), libc::IPPROTO_TCP, TCP_SAVE_SYN, &1i32).unwrap();
}

/// A TCP socket that is not connected, with the number; `None` without the power to give it one.
fn numbered(address: SocketAddr) -> Option<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let client = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&client, ReuseAddr, &true).unwrap();
    match agent::give_number(client.as_raw_fd(), NUMBER) {
        Ok(()) => Some(client),
        Err(agent::Errno(libc::EPERM)) => {
            eprintln!("skipped: no power over the network namespace");
            None
        }
        Err(errno) => panic!("{errno:?}"),
    }
}

fn connected(client: &OwnedFd, listener: &TcpListener, address: SocketAddr) -> TcpStream {
    connect(client.as_raw_fd(), &SockaddrStorage::from(address)).unwrap();
    listener.accept().unwrap().0
}

#[test]
fn a_number_is_the_initial_sequence_number_and_stands_in_the_saved_syn() {
    for (listens, address) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")] {
        let listener = TcpListener::bind(listens).unwrap();
        keep_syns(&listener);
        let address = SocketAddr::new(address.parse().unwrap(), listener.local_addr().unwrap().port());
        let Some(client) = numbered(address) else { return };
        assert_eq!(agent::facts(client.as_raw_fd()).unwrap().state, tcp::CLOSE);
        assert!(nix::sys::socket::getsockopt(&client, ReuseAddr).unwrap(), "SO_REUSEADDR is restored");
        let server = connected(&client, &listener, address);
        assert_eq!(agent::next_number(client.as_raw_fd()), Some(NUMBER + 1), "{listens}");
        assert_eq!(agent::saved_number(server.as_raw_fd()), Some(NUMBER), "{listens}");
        assert_eq!(agent::saved_number(server.as_raw_fd()), None, "it can be read once");
        let (ours, theirs) = (agent::facts(client.as_raw_fd()).unwrap(), agent::facts(server.as_raw_fd()).unwrap());
        assert_eq!((ours.state, theirs.state), (tcp::ESTABLISHED, tcp::ESTABLISHED));
        assert_eq!((Some(ours.local), ours.remote), (theirs.remote, Some(theirs.local)), "{listens}");
    }
}

#[test]
fn only_a_closed_socket_is_given_a_number() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let Some(client) = numbered(address) else { return };
    let _server = connected(&client, &listener, address);
    assert!(agent::give_number(client.as_raw_fd(), 7).is_err());
    assert!(agent::give_number(listener.as_raw_fd(), 7).is_err());
    // And the connection goes on.
    assert_eq!(agent::next_number(client.as_raw_fd()), Some(NUMBER + 1));
}

#[test]
fn what_is_no_tcp_socket_has_no_facts() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (parcel, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    for fd in [file.as_raw_fd(), datagrams.as_raw_fd(), parcel.as_raw_fd(), -1] {
        assert_eq!(agent::facts(fd), None);
    }
}

/// The client keeps none of the server's end, so it cannot turn on what is off there; and it takes no descriptors itself.
#[test]
fn the_pair_of_a_lane_is_the_agents_and_its_clients_end_takes_no_descriptors() {
    let (client, server) = agent::pair().unwrap();
    // Both ends know it by a name of ours, or other programs would take it for a socket like any other.
    let is_ours = |name: beeline_guest::kernel::SockAddr| {
        name.abstract_name().is_some_and(|name| beeline_wire::DoorName::parse(name).is_some())
    };
    assert!(beeline_guest::kernel::getpeername(client.as_raw_fd()).is_ok_and(is_ours));
    assert!(beeline_guest::kernel::getsockname(server.as_raw_fd()).is_ok_and(is_ours));
    let send = |from: &OwnedFd| agent::send(from.as_raw_fd(), b"x", Some(client.as_raw_fd()));
    assert_eq!(send(&client), Ok(()), "the hello brings one");
    match send(&server) {
        Err(_) => {}
        Ok(_) => eprintln!("skipped: this kernel cannot refuse descriptors"),
    }
}
