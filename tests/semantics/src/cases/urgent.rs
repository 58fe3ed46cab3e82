//! Urgent data: MSG_OOB, SO_OOBINLINE, SIOCATMARK, POLLPRI, SIGURG.

mod bytes;
mod inline;
mod signals;
mod waits;

use crate::case::axes::{FAMILY, MODE, ONCE, TRIGGER};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use beeline_testkit::sys;
use waits::{edge_alone, epoll_alone, poll_alone, select_alone, sleeps_beside_data, uses_no_cpu_beside_data};
use waits::{wait_by_epoll, wait_by_poll, wait_by_select, waits_for_it};

pub const GROUP: Group = Group {
    name: "urgent",
    cases: &[
        Case::new("one_byte", FAMILY | MODE, bytes::one_byte),
        Case::new("last_of_many", FAMILY | MODE, bytes::last_of_many),
        Case::new("in_the_middle", FAMILY | MODE, bytes::in_the_middle),
        Case::new("waitall_stops_at_the_mark", FAMILY, bytes::waitall_stops_at_the_mark),
        Case::new("read_past_unread", FAMILY | MODE, bytes::read_past_unread),
        Case::new("none_there", FAMILY | MODE, bytes::none_there),
        Case::new("taken_once", FAMILY | MODE, bytes::taken_once),
        Case::new("peeked", FAMILY | MODE, bytes::peeked),
        Case::new("peeked_before_another", FAMILY | MODE, bytes::peeked_before_another),
        Case::new("peek_of_data_at_the_mark", FAMILY | MODE, bytes::peek_of_data_at_the_mark),
        Case::new("two_in_a_row", FAMILY | MODE, bytes::two_in_a_row),
        Case::new("three_in_a_row", FAMILY | MODE, bytes::three_in_a_row),
        Case::new("two_with_data_between", FAMILY | MODE, bytes::two_with_data_between),
        Case::new("a_second_after_the_first_was_taken", FAMILY, bytes::a_second_after_the_first_was_taken),
        Case::new("inline", FAMILY | MODE, inline::inline),
        Case::new("inline_before_connect", FAMILY, inline::inline_before_connect),
        Case::new("inline_by_the_listener", FAMILY, inline::inline_by_the_listener),
        Case::new("inline_after_a_second", FAMILY | MODE, inline::inline_after_a_second),
        Case::new("inline_no_more_after_a_second", FAMILY | MODE, inline::inline_no_more_after_a_second),
        Case::new("inline_between_two", FAMILY | MODE, inline::inline_between_two),
        Case::new("readiness", FAMILY | MODE, waits::readiness),
        Case::new("readiness_by_epoll", FAMILY | TRIGGER, waits::readiness_by_epoll),
        Case::new("inline_at_the_mark", FAMILY, inline::inline_at_the_mark),
        Case::new("inline_at_the_mark_by_epoll", FAMILY, inline::inline_at_the_mark_by_epoll).deviates(
            "SO_OOBINLINE set where the urgent byte is the next one: a level-triggered set tells at once that it can be read",
        ),
        Case::new("priority_alone_by_epoll", FAMILY | TRIGGER, waits::priority_alone_by_epoll),
        Case::new("poll_waits_for_it", FAMILY, |v| waits_for_it(v, wait_by_poll)),
        Case::new("select_waits_for_it", FAMILY, |v| waits_for_it(v, wait_by_select)),
        Case::new("epoll_waits_for_it", FAMILY, |v| waits_for_it(v, wait_by_epoll)),
        Case::new("poll_sleeps_beside_data", FAMILY, |v| sleeps_beside_data(v, |fd| poll_alone(fd, 10_000))),
        Case::new("select_sleeps_beside_data", FAMILY, |v| sleeps_beside_data(v, |fd| select_alone(fd, 10_000))),
        Case::new("epoll_sleeps_beside_data", FAMILY, |v| sleeps_beside_data(v, |fd| epoll_alone(fd, 10_000))),
        Case::new("edge_epoll_sleeps_beside_data", FAMILY, |v| sleeps_beside_data(v, |fd| edge_alone(fd, 10_000))),
        Case::new("poll_uses_no_cpu_beside_data", ONCE, |v| uses_no_cpu_beside_data(v, |fd| poll_alone(fd, 300))),
        Case::new("select_uses_no_cpu_beside_data", ONCE, |v| uses_no_cpu_beside_data(v, |fd| select_alone(fd, 300))),
        Case::new("epoll_uses_no_cpu_beside_data", ONCE, |v| uses_no_cpu_beside_data(v, |fd| epoll_alone(fd, 300))),
        Case::new("edge_epoll_uses_no_cpu_beside_data", ONCE, |v| uses_no_cpu_beside_data(v, |fd| edge_alone(fd, 300))),
        Case::new("epoll_for_data_sleeps_beside_it", FAMILY | TRIGGER, waits::epoll_for_data_sleeps_beside_it),
        Case::new("poll_beside_data_hears_the_end", FAMILY, waits::poll_beside_data_hears_the_end),
        Case::new("blocked_recv_throws_it_away", FAMILY, waits::blocked_recv_throws_it_away),
        Case::new("by_messages", FAMILY, bytes::by_messages),
        Case::new("skipped_by_trunc", FAMILY, bytes::skipped_by_trunc),
        Case::new("after_the_end", FAMILY | MODE, bytes::after_the_end),
        Case::new("to_a_peer_that_left", FAMILY, bytes::to_a_peer_that_left),
        Case::new("of_no_bytes", FAMILY, bytes::of_no_bytes),
        Case::new("close_with_it_unread", FAMILY, bytes::close_with_it_unread),
        Case::new("spliced", ONCE, bytes::spliced),
        Case::new("spliced_in_line", FAMILY | MODE, inline::spliced),
        Case::new("spliced_after_a_second", FAMILY, bytes::spliced_after_a_second),
        Case::new("sigurg", FAMILY, signals::sigurg),
        Case::new("sigurg_owner_by_ioctl", ONCE, signals::sigurg_owner_by_ioctl),
        Case::new("sigurg_owner_before_connect", ONCE, signals::sigurg_owner_before_connect),
        Case::new("sigurg_interrupts", ONCE, signals::sigurg_interrupts),
        Case::new("many_rounds", ONCE, bytes::many_rounds),
    ],
};

const OOB: i32 = libc::MSG_OOB;

unsafe extern "C" {
    fn sockatmark(fd: i32) -> i32;
}

/// Whether the next byte to read is the urgent one, by both names.
fn at_mark(fd: Fd) {
    let mut value = -1;
    let ret = sys::ioctl(fd.raw, 0x8905, &mut value);
    // SAFETY: a number.
    trace!("at mark ({}) = {ret} {value} {}", fd.name, unsafe { sockatmark(fd.raw) });
}

/// Everything that can be asked without changing anything.
fn look(fd: Fd) {
    at_mark(fd);
    fionread(fd);
    poll_now(fd);
}

/// Waits until the urgent byte is there.
fn await_urgent(fd: Fd) {
    await_events(fd, libc::POLLPRI);
}

/// Lets what is on its way arrive: FIONREAD stops at the mark and cannot tell.
fn settle(fd: Fd) {
    sys::poll(&mut [libc::pollfd { fd: fd.raw, events: 0, revents: 0 }], 30);
}
