use super::*;
use crate::paths::Port;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::Mutex;

/// What is remembered is the process's, and tests run in threads.
pub(super) static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn a_listener_is_found_by_its_cookie_and_forgotten_when_it_is_gone() {
    let _turn = ONE_AT_A_TIME.lock();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let destination = tcp.local_addr().unwrap();
    let source = SocketAddr::new(local(destination).unwrap().source, 2000);
    let cookie: u64 = kernel::getsockopt(tcp.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE).unwrap();
    let found = listener_now(destination, source).unwrap();
    assert_eq!((found.cookie, found.uid), (cookie, crate::trust::euid()));
    assert_eq!(listener(destination, source).unwrap().cookie, cookie);
    assert!(!is_known_doorless(destination));
    // It counts for milliseconds, in which a busy machine may do nothing.
    let known = (0..100).any(|_| {
        listener_now(destination, source).unwrap();
        note_doorless(destination);
        is_known_doorless(destination)
    });
    assert!(known);
    drop(tcp);
    forget();
    assert!(!is_known_doorless(destination));
    assert_eq!(listener(destination, source), Err(Reason::NoListener));
}

#[test]
fn of_many_clients_one_asks_anew_whether_there_is_a_door() {
    const KNOWN_NS: u64 = 1_000 * REMEMBERED_NS;
    const STEP_NS: u64 = REMEMBERED_NS / 10;
    let _turn = ONE_AT_A_TIME.lock();
    change("127.0.0.79:7".parse().unwrap(), |entry| {
        entry.target = Some(Target { cookie: 1, uid: 1, known_ns: KNOWN_NS });
        entry.doorless_until_ns = KNOWN_NS + REMEMBERED_NS;
        let mut asks = |now_ns| !entry.is_known_doorless(now_ns);
        let asked: Vec<u64> = (0..20).filter(|step| asks(KNOWN_NS + step * STEP_NS)).collect();
        assert_eq!(asked, [10], "who asks says nothing here");
        assert!(asks(KNOWN_NS + 20 * STEP_NS), "nobody has answered in time");
        entry.doorless_until_ns = 0;
        assert!(!entry.is_known_doorless(KNOWN_NS), "the next client looks for a door");
    });
}

#[test]
fn a_destination_that_is_in_use_is_not_forgotten_for_others() {
    let _turn = ONE_AT_A_TIME.lock();
    let used = "127.0.0.77:7".parse().unwrap();
    note_in_vain(used);
    for port in 1..=3 * ENTRIES as u16 {
        assert!(was_in_vain(used), "after {port}");
        note_in_vain(SocketAddr::new([127, 0, 0, 78].into(), port));
    }
}

#[test]
fn other_hosts_are_not_local() {
    let _turn = ONE_AT_A_TIME.lock();
    assert_eq!(local("127.9.8.7:1".parse().unwrap()), Ok(Local { source: "127.0.0.1".parse().unwrap() }));
    assert_eq!(is_local("::1".parse().unwrap()), Ok(true));
    assert_eq!(is_local("192.0.2.1".parse().unwrap()), Ok(false));
    assert_eq!(is_local("255.255.255.255".parse().unwrap()), Ok(false));
}

#[test]
fn short_lives_at_a_loopback_address_are_counted_however_it_is_written() {
    let _turn = ONE_AT_A_TIME.lock();
    // Java's sockets are all IPv6: they connect to an IPv4 address that is mapped.
    for there in ["127.0.0.1:4711", "[::ffff:127.0.0.1]:4712", "[::1]:4713"] {
        let there = Endpoint::new(there.parse().unwrap());
        // As a route of it is looked for.
        assert!(local(there.address()).is_ok());
        let ticket = tickets::begin(there, || Port::Kernels);
        assert!(!ticket.is_void(), "{there:?}");
        tickets::abandoned(ticket);
    }
}
