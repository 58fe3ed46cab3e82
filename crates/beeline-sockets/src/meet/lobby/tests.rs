//! How long the lobby waits, and for whom, and what it hears.

use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;

use beeline_lane::End;
use beeline_testkit::hostile::Client;
use beeline_wire::Endpoint;
use beeline_wire::hello::BELL;

use super::*;
use crate::meet::listener::LISTENERS;
use crate::meet::pool;

const SECOND_NS: u64 = 1_000_000_000;

fn lobby() -> Box<Lobby> {
    // SAFETY: atomics only, valid when zeroed.
    unsafe { Box::<Lobby>::new_zeroed().assume_init() }
}

/// For how long in a second the server waits for clients of one user, each of which speaks after so long, with the
/// next there at once.
fn waited_ns(speaks_ns: u64, in_crowd: bool) -> u64 {
    let (lobby, begin_ns) = (lobby(), 10 * SECOND_NS);
    let (mut now_ns, mut waited_ns) = (begin_ns, 0);
    while now_ns < begin_ns + SECOND_NS {
        if let Some((wait, await_ns)) = lobby.wait_for(7, in_crowd, now_ns) {
            let await_ns = await_ns as u64;
            let took_ns = speaks_ns.min(await_ns);
            (now_ns, waited_ns) = (now_ns + took_ns, waited_ns + took_ns);
            lobby.note(7, wait, speaks_ns < await_ns, took_ns, now_ns);
        }
        // What a connection costs beside.
        now_ns += 20_000;
    }
    waited_ns
}

#[test]
fn nobody_has_more_of_the_servers_time_than_his_part_whenever_he_speaks() {
    for speaks_ns in [95_000, 290_000, 310_000, 500_000, 1_900_000, 2_100_000, 21_000_000, u64::MAX] {
        for in_crowd in [false, true] {
            let waited_ns = waited_ns(speaks_ns, in_crowd);
            // What is free, for each of them, and both accounts.
            assert!(waited_ns < SECOND_NS / 5, "{speaks_ns} in a crowd or not, {in_crowd}: {waited_ns}");
        }
    }
}

#[test]
fn moments_in_vain_cost_their_user_others_for_a_while_and_nobody_else() {
    const FEW: u64 = CREDIT_NS / MOMENT_CHARGE_NS + 1;
    let (lobby, begin_ns) = (lobby(), SECOND_NS);
    let moment = |user, now_ns| matches!(lobby.wait_for(user, true, now_ns), Some((Wait::Moment, MOMENT_NS)));
    let in_vain = |user, now_ns| {
        assert!(moment(user, now_ns));
        lobby.note(user, Wait::Moment, false, MOMENT_NS as u64, now_ns);
    };
    for user in [7, 8] {
        lobby.note(user, Wait::Whole, false, AWAIT_IN_CROWD_NS as u64, begin_ns);
    }
    (0..FEW).for_each(|_| in_vain(7, begin_ns));
    let again_ns = begin_ns + FEW * MOMENT_CHARGE_NS - CREDIT_NS;
    assert!(!moment(7, again_ns - 1));
    in_vain(7, again_ns);
    assert!(!moment(7, again_ns + MOMENT_CHARGE_NS - 1));
    in_vain(7, again_ns + MOMENT_CHARGE_NS);
    // Who speaks at once goes on having them, and those whom nobody remembers have one account.
    for turn in 0..10_000 {
        lobby.note(8, Wait::Moment, true, SOON_NS, begin_ns + turn);
        assert!(moment(8, begin_ns + turn));
    }
    (0..FEW).for_each(|_| in_vain(9, begin_ns));
    assert!(!moment(10, begin_ns) && !moment(9, begin_ns) && moment(8, begin_ns));
}

#[test]
fn who_speaks_soon_is_waited_for_each_time() {
    let lobby = lobby();
    for turn in 0..10_000 {
        let now_ns = SECOND_NS + turn * 40_000;
        assert!(lobby.may_await(7, now_ns));
        lobby.note_wait(7, SOON_NS, now_ns);
    }
}

#[test]
fn one_long_wait_is_free_and_others_pay_for_none() {
    let lobby = lobby();
    let now_ns = SECOND_NS;
    lobby.note_wait(7, AWAIT_NS as u64, now_ns);
    assert!(lobby.may_await(7, now_ns));
    lobby.note_wait(7, AWAIT_NS as u64, now_ns);
    assert!(!lobby.may_await(7, now_ns) && lobby.may_await(8, now_ns));
    assert!(lobby.may_await(7, now_ns + CREDIT_NS));
    lobby.note_in_vain(7, now_ns);
    assert!(!lobby.may_await(7, now_ns + RESPITE_NS - 1) && lobby.may_await(7, now_ns + RESPITE_NS));
}

#[test]
fn a_listener_begins_without_the_debts_of_the_one_before() {
    let (lobby, now_ns) = (lobby(), SECOND_NS);
    for user in 1..=USERS as u32 {
        lobby.note(user, Wait::Whole, false, AWAIT_NS as u64, now_ns);
        (0..2).for_each(|_| lobby.note_moment(user, true, AWAIT_NS as u64, now_ns));
    }
    lobby.begin();
    let nobody = as_pending(None);
    for user in [nobody, 1, 2] {
        assert!(lobby.may_await(user, now_ns) && lobby.may_have_moment(user, now_ns), "{user}");
    }
}

/// A client that has come and says nothing, and the server's end.
fn silent_client() -> (Client, i32) {
    let (client, server) = UnixStream::pair().unwrap();
    (Client::of(client.into()), server.into_raw_fd())
}

#[test]
fn an_urgent_byte_is_heard_of_a_client_that_was_silent() {
    let listener = LISTENERS.take().unwrap();
    listener.begin(1, "127.0.0.1:1".parse().unwrap());
    listener.lobby.open();
    let (client, anchor) = silent_client();
    {
        let _guard = listener.lock.lock();
        assert!(park(listener, anchor, trust::peer_uid(anchor)).is_some());
    }
    assert!(any_spoken(listener) == Who::Nobody);
    client.send_urgent(b'x', &[]).unwrap();
    assert!(any_spoken(listener) == Who::New, "the kernel calls it readable");
    dismiss(listener);
    assert!(client.is_sent_away());
    listener.lobby.close();
    LISTENERS.give(listener);
}

#[test]
fn an_urgent_byte_ends_an_end_that_is_kept() {
    let lobby = lobby();
    lobby.open();
    let lane = pool::client_lane(31).unwrap().sent();
    let (client, anchor) = silent_client();
    let anchor = hidden::hide(anchor);
    lane.stands.keep_anchor(anchor, 31, false);
    assert!(keep(&lobby, lane));
    let look = || lobby.kept.of(anchor).map(kept::End::look);
    assert_eq!(look(), Some(Waiting::Silence));
    client.send_urgent(b'x', &[]).unwrap();
    assert_eq!(look(), Some(Waiting::Gone), "the kernel calls it readable");
    lane.stands.close_anchor();
    lane.spoil();
    pool::retire(lane, End::Client, true);
    lobby.close_set();
}

/// The kernel tells of a bell of the connection before as of a hello.
#[test]
fn a_bell_that_comes_late_leaves_the_anchor_that_is_kept_its_mode() {
    let listener = LISTENERS.take().unwrap();
    listener.begin(1, "127.0.0.1:1".parse().unwrap());
    listener.lobby.open();
    let lane = pool::client_lane(32).unwrap().sent();
    let (mut client, anchor) = UnixStream::pair().map(|(client, server)| (client, server.into_raw_fd())).unwrap();
    let anchor = hidden::hide(anchor);
    lane.stands.keep_anchor(anchor, 32, false);
    assert!(keep(&listener.lobby, lane));
    let is_nonblocking = |fd| kernel::status_flags(fd).unwrap() & libc::O_NONBLOCK != 0;
    client.write_all(&[BELL]).unwrap();
    assert!(spoken(listener, libc::SOCK_NONBLOCK).unwrap().is_none());
    assert!(!is_nonblocking(anchor) && listener.lobby.kept.of(anchor).is_some());
    let address = Endpoint::new("127.0.0.1:5000".parse().unwrap());
    hello_io::say_again(client.as_raw_fd(), address).unwrap();
    let taken = spoken(listener, libc::SOCK_NONBLOCK).unwrap().unwrap();
    assert!(is_nonblocking(taken.anchor) && taken.again.unwrap().client == address);
    beeline_shm::sys::close(taken.anchor).unwrap();
    lane.spoil();
    pool::retire(lane, End::Client, true);
    listener.lobby.close();
    LISTENERS.give(listener);
}
