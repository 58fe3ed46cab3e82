//! Lanes that both ends know by the name of their last connection: who says hello, and who need not.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use beeline_lane::offer;
use beeline_wire::Endpoint;

use super::*;
use crate::hello_io::{self, Waiting};
use crate::{greeting, taking};

const COOKIE: u64 = 41;
const PEER: Peer = Peer { pid: 7, uid: 8 };

fn name(client: u16) -> ConnName {
    let end = |port| Endpoint::new(SocketAddr::from(([127, 0, 0, 1], port)));
    ConnName { client: end(client), server: end(2) }
}

/// Idle lanes of a client, released, whose last connections were from these ports.
fn of_client<const N: usize>(ports: [u16; N]) -> [&'static PooledLane; N] {
    let lanes = ports.map(|port| (client_lane(COOKIE).unwrap().sent(), name(port)));
    lanes.map(|(lane, name)| {
        lane.stands.know(&name, PEER, 9, Some(10));
        lane.memory().set_flags(End::Server, flags::RELEASED);
        retire(lane, End::Client, true);
        lane
    })
}

/// A server's idle lane, whose last connection had this name.
fn of_server(name: &ConnName) -> &'static PooledLane {
    let (memory, memfd) = LaneMemory::create(beeline_lane::RING_BYTES_MIN).unwrap();
    let (id, _) = beeline_shm::memfd::identify(memfd.get()).unwrap();
    let lane = server_lane(memory, id).unwrap();
    lane.keep_memfd(memfd);
    lane.stands.know(name, PEER, 9, None);
    lane.cookie.store(COOKIE, Relaxed);
    retire(lane, End::Server, true);
    lane
}

fn spoil(lane: &'static PooledLane, end: End) {
    lane.spoil();
    retire(lane, end, false);
}

fn next_port() -> Option<u16> {
    let server = SocketAddr::from(([127, 0, 0, 1], 2));
    next_name(server, |_| true).map(|name| name.client.address().port())
}

#[test]
fn a_lane_comes_again_under_its_name_if_it_may() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    let lanes = of_client([1, 3]);
    assert_eq!(next_port(), Some(3), "that of the last one");
    assert!(next_name(SocketAddr::from(([127, 0, 0, 1], 4)), |_| true).is_none(), "another server");
    assert!(lane_of_name(COOKIE, &name(5)).is_none());
    let offer = lane_of_name(COOKIE, &name(1)).unwrap();
    assert!(core::ptr::eq(offer.lane, lanes[0]) && offer.known_to() == Some(PEER));
    offer.withdraw();
    assert_eq!(next_port(), Some(1));
    assert!(
        lane_of_name(COOKIE + 1, &name(1)).is_none() && next_port() == Some(3),
        "it is another's name from then on"
    );
    lanes[0].stands.know(&name(1), PEER, 9, Some(10));
    assert_eq!(next_port(), Some(1));
    lanes[0].memory().set_flags(End::Server, 0);
    assert_eq!(next_port(), Some(3), "its server has not released the other one");
    lanes[1].stands.set_borrows_port(true);
    assert_eq!(next_port(), None, "the program may bind it to something else");
    assert!(lane_of_name(COOKIE, &name(3)).is_none());
    let offer = client_lane(COOKIE).unwrap();
    assert!(offer.known_to().is_none(), "under another name nobody knows it");
    offer.withdraw();
    purge();
}

#[test]
fn a_hello_is_said_unless_the_server_has_heard_it() {
    let _turn = ONE_AT_A_TIME.lock();
    for heard in [false, true] {
        purge();
        let [lane] = of_client([1]);
        let (client, server) = UnixStream::pair().unwrap();
        let mut offer = lane_of_name(COOKIE, &name(1)).unwrap();
        offer.leave_unsaid(&name(1));
        let memory = lane.memory();
        let word = memory.offer();
        assert!(!offer::hear(word, offer::named(name(3).sum())), "another name");
        if heard {
            assert!(offer::hear(word, offer::named(name(1).sum())));
        }
        let lane = greeting::say_hello(client.as_raw_fd(), offer, None).ok().unwrap();
        let (silence, message) = (Waiting::Silence, Waiting::Message);
        assert_eq!(hello_io::look(server.as_raw_fd()), if heard { silence } else { message });
        assert!(offer::take(word), "either way it is offered");
        spoil(lane, End::Client);
    }
}

#[test]
fn a_lane_is_used_again_if_nobody_has_come_to_the_door_and_else_never() {
    let _turn = ONE_AT_A_TIME.lock();
    let named = offer::named(name(1).sum());
    let unsaid = || {
        purge();
        let [lane] = of_client([1]);
        let mut offer = lane_of_name(COOKIE, &name(1)).unwrap();
        offer.leave_unsaid(&name(1));
        (offer, lane.memory())
    };
    let (offer, memory) = unsaid();
    offer.withdraw();
    assert!(next_port() == Some(1) && !offer::hear(memory.offer(), named));
    // The client does not trust who has opened the door.
    for (heard, taken) in [(false, false), (true, false), (true, true)] {
        let (offer, memory) = unsaid();
        let ring_bytes = memory.ring_bytes();
        let memfd = beeline_shm::Fd::own(kernel::duplicate(offer.memfd, 0, true).unwrap());
        assert!(!heard || offer::hear(memory.offer(), named));
        assert!(!taken || offer::take(memory.offer()));
        offer.give_up();
        assert_eq!(next_port(), None);
        let (servers, _) = LaneMemory::adopt(memfd.get(), ring_bytes).unwrap();
        assert_eq!(servers.flags(End::Client) & flags::RESET != 0, taken, "the program that has it is told");
        assert!(taken != (servers.offer().load(Relaxed) == offer::WITHDRAWN));
        // SAFETY: not used afterwards.
        unsafe { servers.unmap() };
    }
    client_lane(COOKIE).unwrap().give_up();
    purge();
}

#[test]
fn a_server_takes_an_unsaid_lane_of_the_same_name_and_peer_whose_client_is_there() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    let lane = of_server(&name(1));
    let (client, anchor) = UnixStream::pair().unwrap();
    let named = offer::named(name(1).sum());
    let unsaid = |name: &ConnName, peer| taking::unsaid(anchor.as_raw_fd(), COOKIE, name, peer).is_some();
    for word in [offer::OFFERED, offer::TAKEN, offer::WITHDRAWN, offer::named(name(3).sum())] {
        lane.memory().offer().store(word, Relaxed);
        assert!(!unsaid(&name(1), PEER) && lane.memory().offer().load(Relaxed) == word, "{word}");
    }
    lane.memory().offer().store(named, Relaxed);
    assert!(!unsaid(&name(3), PEER), "another connection");
    assert!(taking::unsaid(anchor.as_raw_fd(), COOKIE + 1, &name(1), PEER).is_none(), "another listener");
    assert!(taking::unsaid(i32::MAX, COOKIE, &name(1), PEER).is_none(), "nobody can be seen there");
    lane.stands.know(&name(1), Peer { pid: 0, ..PEER }, 9, None);
    assert!(!unsaid(&name(1), Peer { pid: 0, ..PEER }), "all have that number that have none here");
    lane.stands.know(&name(1), PEER, 9, None);
    assert!(!unsaid(&name(1), Peer { pid: 6, ..PEER }) && !unsaid(&name(1), Peer { uid: 0, ..PEER }));
    lane.close_memfd();
    assert!(!unsaid(&name(1), PEER), "none comes with it");
    lane.keep_memfd(beeline_shm::memfd::create(c"another", 4096).unwrap());
    assert!(unsaid(&name(1), PEER));
    assert_eq!(lane.memory().offer().load(Relaxed), offer::OFFERED);
    assert!(!unsaid(&name(1), PEER), "it is in use");
    spoil(lane, End::Server);

    // Another anchor of this name has come and gone, and lies before that of the one who offers.
    let lane = of_server(&name(1));
    lane.memory().offer().store(named, Relaxed);
    drop(client);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
    // A child that another test has just forked may have the socket, too, for a moment.
    while kernel::poll_now(anchor.as_raw_fd(), 0) & libc::POLLHUP == 0 {
        assert!(std::time::Instant::now() < until);
    }
    assert!(taking::unsaid(anchor.as_raw_fd(), COOKIE, &name(1), PEER).is_none());
    assert_eq!(lane.memory().offer().load(Relaxed), named, "it is the next one's");
    purge();
}
