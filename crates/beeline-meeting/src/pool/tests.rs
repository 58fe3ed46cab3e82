mod named;

use super::*;
use beeline_lane::seat;

/// The lists are the process's, and tests run in threads.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn a_client_lane_comes_back_only_when_released_and_for_the_same_listener() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    let lane = client_lane(7).unwrap().sent();
    retire(lane, End::Client, true);
    let other = client_lane(7).unwrap().sent();
    assert!(!core::ptr::eq(lane, other), "not released yet");
    lane.memory().set_flags(End::Server, flags::RELEASED);
    let stranger = client_lane(8).unwrap().sent();
    assert!(!core::ptr::eq(lane, stranger), "another listener");
    let again = client_lane(7).unwrap();
    assert!(core::ptr::eq(lane, again.lane));
    assert_eq!(again.lane.memory().flags(End::Server), 0);
    for lane in [again.sent(), other, stranger] {
        lane.spoil();
        retire(lane, End::Client, true);
    }
}

#[test]
fn an_idle_lane_without_its_memfd_is_not_offered() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    let lane = client_lane(12).unwrap().sent();
    retire(lane, End::Client, true);
    lane.memory().set_flags(End::Server, flags::RELEASED);
    lane.close_memfd();
    let other = client_lane(12).unwrap();
    assert!(!core::ptr::eq(lane, other.lane) && other.memfd >= 0);
    let other = other.sent();
    other.spoil();
    retire(other, End::Client, true);
    purge();
}

/// The program is left seven of eight numbers, however many connections it has.
#[test]
fn lanes_hold_an_eighth_of_the_numbers_at_most() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    assert!(may_hold());
    let most = beeline_shm::sys::limit(libc::RLIMIT_NOFILE) as u32 / 8;
    HELD.fetch_add(most - 1, Relaxed);
    assert!(may_hold());
    let lane = client_lane(13).unwrap().sent();
    lane.hold(hidden::hide(kernel::epoll_create().unwrap()));
    assert!(!may_hold());
    lane.spoil();
    retire(lane, End::Client, true);
    assert!(may_hold());
    HELD.fetch_sub(most - 1, Relaxed);
    purge();
}

#[test]
fn descriptors_are_given_back_when_short() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    let lane = client_lane(9).unwrap().sent();
    assert!(lane.memfd().is_some());
    retire(lane, End::Client, true);
    assert!(release_descriptors());
    let lane = client_lane(9).unwrap().sent();
    assert!(lane.memfd().is_none(), "the program has its numbers for a while");
    retire(lane, End::Client, true);
    assert!(!release_descriptors(), "a lane without its memfd is not kept");
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    side().unwrap().retire(true);
    assert!(release_descriptors(), "the memfd of an idle side is a descriptor, too");
    assert!(!release_descriptors());
    std::thread::sleep(std::time::Duration::from_millis(1_100));
}

#[test]
fn a_side_that_was_made_before_a_fork_is_not_used_again() {
    let _turn = ONE_AT_A_TIME.lock();
    for forked in [false, true] {
        purge();
        let (born, side) = (crate::forks(), side().unwrap());
        if forked {
            beeline_guest::process::count_fork();
        }
        side.put_back(born);
        assert_eq!(sides::COUNT.load(Relaxed), u32::from(!forked));
    }
}

#[test]
fn a_lane_that_nobody_has_seen_keeps_no_descriptor_that_the_program_may_want() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    for (short, kept) in [(true, 0), (false, 1)] {
        if short {
            hidden::note_short();
        } else {
            std::thread::sleep(std::time::Duration::from_millis(1_100));
        }
        client_lane(10).unwrap().step_aside().withdraw();
        assert_eq!(SPARE.count.load(Relaxed), kept);
    }
    purge();
}

#[test]
fn sides_are_zeroed_for_their_next_use() {
    let _turn = ONE_AT_A_TIME.lock();
    let first = side().unwrap();
    first.state.mark(1);
    first.retire(true);
    let second = side().unwrap();
    assert!(core::ptr::eq(first.state, second.state));
    assert_eq!(first.memfd, second.memfd);
    assert_eq!(second.state.state.load(Relaxed), 0);
    second.retire(false);
}

/// A client's idle lane whose anchor is kept, for a connection from port 1 to port 2 of the loopback address.
fn kept(cookie: u64) -> (&'static PooledLane, std::os::unix::net::UnixStream) {
    use std::os::fd::IntoRawFd;
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let lane = client_lane(cookie).unwrap().sent();
    let end = |port| beeline_wire::Endpoint::new(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
    let name = beeline_wire::ConnName { client: end(1), server: end(2) };
    lane.stands.know(&name, crate::trust::Peer { pid: 7, uid: 8 }, 9, Some(10));
    lane.stands.keep_anchor(hidden::hide(ours.into_raw_fd()), 11, false);
    retire(lane, End::Client, true);
    (lane, theirs)
}

#[test]
fn an_end_stands_only_when_both_have_kept_theirs_and_for_the_same_address() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    let (lane, _peer) = kept(21);
    let to = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    for flags in [0, flags::STANDS, flags::RELEASED] {
        lane.memory().set_flags(End::Server, flags);
        assert!(standing(to(2), |_| true).is_none(), "{flags}");
    }
    lane.memory().set_flags(End::Server, flags::RELEASED | flags::STANDS);
    assert!(standing(to(3), |_| true).is_none(), "another server");
    assert!(standing(to(2), |_| false).is_none(), "whoever asks has his own conditions");
    let offer = standing(to(2), |stands| stands.user() == 9 && stands.namespace() == Some(10)).unwrap();
    assert!(core::ptr::eq(offer.lane, lane) && standing(to(2), |_| true).is_none(), "it is in use");
    offer.withdraw();
    let mut offer = standing(to(2), |_| true).unwrap();
    offer.begin_again();
    offer.withdraw();
    assert!(standing(to(2), |_| true).is_none(), "the server's word went with the rest");
    purge();
}

#[test]
fn a_new_hello_takes_a_lane_that_stands_last_and_closes_its_anchor() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    let (stands, mut peer) = kept(22);
    let plain = {
        let other = client_lane(22).unwrap().sent();
        retire(other, End::Client, true);
        other
    };
    for lane in [stands, plain] {
        lane.memory().set_flags(End::Server, flags::RELEASED | flags::STANDS);
    }
    let first = client_lane(22).unwrap();
    assert!(core::ptr::eq(first.lane, plain));
    let second = client_lane(22).unwrap();
    assert!(core::ptr::eq(second.lane, stands) && second.lane.stands.anchor().is_none());
    // A child that another test has just forked may have the socket, too, for a moment.
    assert_eq!(std::io::Read::read(&mut peer, &mut [0]).unwrap(), 0);
    for offer in [first, second] {
        let lane = offer.sent();
        lane.spoil();
        retire(lane, End::Client, true);
    }
    purge();
}

#[test]
fn an_end_with_a_seat_is_used_while_its_server_sits_there_and_left_alone_meanwhile() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    let (lane, _peer) = kept(24);
    let to_server = std::net::SocketAddr::from(([127, 0, 0, 1], 2));
    let empty = seat::empty(28);
    seat::place(lane.memory().seat(), empty);
    lane.memory().set_flags(End::Server, flags::STANDS);
    assert!(standing(to_server, |_| true).is_none());
    standing_soon(to_server, |_| true).expect("it is about to be closed").withdraw();
    lane.memory().set_flags(End::Server, flags::RELEASED | flags::STANDS);
    assert!(standing(to_server, |_| true).is_none(), "nobody sits there");
    let other = client_lane(24).unwrap();
    assert!(!core::ptr::eq(other.lane, lane), "a hello has a lane of its own");
    seat::sit(lane.memory().seat(), empty);
    let mut offer = standing(to_server, |_| true).unwrap();
    assert!(seat::claim(lane.memory().seat()));
    offer.begin_again();
    assert_eq!(seat::rise(lane.memory().seat(), empty), seat::Rise::Claimed, "the seat is the server's");
    offer.withdraw();
    other.withdraw();
    purge();
}

#[test]
fn what_a_server_gives_up_is_not_touched_in_memory() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    let (memory, memfd) = LaneMemory::create(beeline_lane::RING_BYTES_MIN).unwrap();
    let (id, _) = beeline_shm::memfd::identify(memfd.get()).unwrap();
    let lane = server_lane(memory, id).unwrap();
    lane.keep_memfd(memfd);
    // As the client, to whom it was released, has it for its next connection.
    memory.reset();
    drop_kept_anchor(lane);
    assert_eq!(memory.flags(End::Server), 0);
    assert!(server_known(id, memory.ring_bytes()).is_some_and(|known| core::ptr::eq(known, lane)));
    lane.spoil();
    retire(lane, End::Server, false);
}
