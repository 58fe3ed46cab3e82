//! Which members are hot, where both ends of a lane are in one process and met nobody.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{End, LaneMemory, flags};
use beeline_shm::SideMemory;

use super::readiness::reported;
use super::set::{Marks, Set, set_of};
use super::{begin, ctl, wait};
use crate::desc::{DESCS, Kind};
use crate::side::SideState;
use crate::{Outcome, forks, io, kernel, process, table};

/// The numbers of both ends of a fresh lane.
fn lane() -> [i32; 2] {
    let mut fds = [-1; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr()) }, 0);
    let (lane, _) = LaneMemory::create(1 << 20).unwrap();
    lane.set_flags(End::Server, flags::TAKEN);
    for (fd, end) in fds.into_iter().zip([End::Client, End::Server]) {
        // SAFETY: a side is valid when zeroed and lives as long as the process.
        let side: &'static SideState = unsafe { SideMemory::create().unwrap().0.as_ref() };
        side.holders.store(1, Relaxed);
        side.rx.begin_armed();
        lane.read_wake(end).store(1, Relaxed);
        let desc = DESCS.take().unwrap();
        desc.begin(Kind::Tcp, fd, libc::AF_INET as u32, forks());
        desc.become_lane(lane, side, end);
        let _ = table::set(fd, Some(desc)).unwrap();
    }
    fds
}

fn new_set() -> (i32, &'static Set) {
    let made = kernel::epoll_create().unwrap();
    let before = (process::forks(), process::copies());
    let Outcome::Done(fd) = begin(made, libc::EPOLL_CLOEXEC, before) else { panic!("no set") };
    (fd as i32, table::get(fd as i32).and_then(set_of).unwrap())
}

fn control(set: i32, operation: i32, fd: i32, events: i32) {
    let mut event = libc::epoll_event { events: events as u32, u64: fd as u64 };
    // SAFETY: a live event.
    assert_eq!(unsafe { ctl(set, operation, fd, &raw mut event, |_| false) }, Outcome::OK);
}

/// The events of a wait that takes no time.
fn told(set: i32) -> Vec<u32> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: room for eight events.
    let Outcome::Done(count) = (unsafe { wait(set, events.as_mut_ptr(), 8, 0) }) else { panic!("no wait") };
    events[..count as usize].iter().map(|event| event.events).collect()
}

fn send(fd: i32) {
    // SAFETY: a live slice.
    assert_eq!(unsafe { io::send(fd, b"x".as_ptr(), 1, libc::MSG_NOSIGNAL) }, Outcome::Done(1));
}

/// A send finds the ring full between the look at a member and the report of it: the room that comes is told.
#[test]
fn room_is_told_to_a_send_that_found_none_while_the_member_was_reported() {
    let (number, set) = new_set();
    let [asking, _] = lane();
    control(number, libc::EPOLL_CTL_ADD, asking, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET);
    assert_eq!(told(number), [libc::EPOLLOUT as u32]);
    let (desc, entry) = (table::get(asking).unwrap(), set.find(asking).unwrap());
    let marks = Marks::of(desc);
    desc.pace.count_full();
    reported(set, entry, desc, Some(&marks), libc::EPOLLOUT as u32);
    set.make_hot(asking, entry);
    assert_eq!(told(number), [libc::EPOLLOUT as u32]);
    assert_eq!(told(number), [0; 0]);
}

#[test]
fn a_member_that_has_fired_is_not_hot_until_the_next_shot_is_asked_for() {
    let (number, set) = new_set();
    let asked = libc::EPOLLIN | libc::EPOLLONESHOT;
    let lanes = [lane(), lane()];
    for [asking, asked_of] in lanes {
        control(number, libc::EPOLL_CTL_ADD, asked_of, asked);
        send(asking);
    }
    assert_eq!(told(number), [libc::EPOLLIN as u32; 2]);
    assert_eq!(set.hot_lanes.load(Relaxed), 0);
    assert_eq!(told(number), [0; 0]);
    control(number, libc::EPOLL_CTL_MOD, lanes[0][1], asked);
    assert_eq!(set.hot_lanes.load(Relaxed), 1);
    // It was not read.
    assert_eq!(told(number), [libc::EPOLLIN as u32]);
    assert_eq!(set.hot_lanes.load(Relaxed), 0);
    // What comes meanwhile is told with the next shot.
    send(lanes[1][0]);
    assert_eq!(told(number), [0; 0]);
    control(number, libc::EPOLL_CTL_MOD, lanes[1][1], asked);
    assert_eq!(told(number), [libc::EPOLLIN as u32]);
}
