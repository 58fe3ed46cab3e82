//! What the agent rests on, asked of the kernel: `docs/design/0008-namespaces.md`, "Checked on the kernel". The proof
//! itself is tested where it is (`crates/beeline-meeting/src/agent/host/proof.rs`).

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use beeline_meeting::agent::host as agent;

/// The client keeps none of the server's end, so it cannot turn on what is off there; and it takes no descriptors
/// itself.
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

/// A socket is taken from the process that has connected the carrier, by the number that it has there, and from no
/// other.
#[test]
fn what_a_process_holds_is_taken_from_it_and_is_the_same() {
    let path = std::env::temp_dir().join(format!("beeline-taken-{}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let _client = UnixStream::connect(&path).unwrap();
    let carrier = listener.accept().unwrap().0;
    std::fs::remove_file(&path).unwrap();
    let (mut one, two) = UnixStream::pair().unwrap();
    let number = two.as_raw_fd();
    let taken = match agent::taken_from(carrier.as_raw_fd(), number.cast_unsigned()) {
        Ok(taken) => agent::own(taken),
        Err(agent::Errno(errno)) => {
            eprintln!("skipped: descriptors cannot be taken here: {}", std::io::Error::from_raw_os_error(errno));
            return;
        }
    };
    drop(two);
    let mut taken = UnixStream::from(taken);
    taken.write_all(b"x").unwrap();
    assert_eq!(one.read(&mut [0]).unwrap(), 1);
    // Beyond all numbers that are given out here.
    for number in [1_000_000, u32::MAX] {
        assert_eq!(agent::taken_from(carrier.as_raw_fd(), number), Err(agent::Errno(libc::EBADF)));
    }
}
