//! poll, select and epoll with traces. Events are listed by name, in the order in which the case named the descriptors.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Fd;
use crate::trace;
use beeline_testkit::sys::{self, EpollCall, FdSet, Ret, Sets, epoll_name, poll_name};

/// `poll` over named descriptors; returns the events that came back.
pub fn poll(fds: &[(Fd, i16)], timeout_ms: i32) -> Vec<i16> {
    let mut entries: Vec<libc::pollfd> =
        fds.iter().map(|(fd, events)| libc::pollfd { fd: fd.raw, events: *events, revents: 0 }).collect();
    let ret = sys::poll(&mut entries, timeout_ms);
    trace!("poll({}, {timeout_ms}) = {ret} {}", asked(fds), answered(fds, &entries));
    entries.iter().map(|entry| entry.revents).collect()
}

pub fn ppoll(fds: &[(Fd, i16)], timeout_ms: i64, mask: Option<&libc::sigset_t>) -> Ret {
    let mut entries: Vec<libc::pollfd> =
        fds.iter().map(|(fd, events)| libc::pollfd { fd: fd.raw, events: *events, revents: 0 }).collect();
    let ret = sys::ppoll(&mut entries, timeout_ms, mask);
    trace!("ppoll({}, {timeout_ms}) = {ret} {}", asked(fds), answered(fds, &entries));
    ret
}

/// All events of one descriptor, now.
pub fn poll_now(fd: Fd) -> i16 {
    let all = libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP;
    poll(&[(fd, all)], 0)[0]
}

fn asked(fds: &[(Fd, i16)]) -> String {
    fds.iter().map(|(fd, events)| format!("{}:{}", fd.name, poll_name(*events))).collect::<Vec<_>>().join(" ")
}

fn answered(fds: &[(Fd, i16)], entries: &[libc::pollfd]) -> String {
    let events: Vec<String> = fds
        .iter()
        .zip(entries)
        .filter(|(_, entry)| entry.revents != 0)
        .map(|((fd, _), entry)| format!("{}:{}", fd.name, poll_name(entry.revents)))
        .collect();
    format!("[{}]", events.join(" "))
}

fn sets_of(read: &[Fd], write: &[Fd], except: &[Fd]) -> Sets {
    let of = |fds: &[Fd]| FdSet::of(&fds.iter().map(|fd| fd.raw).collect::<Vec<_>>());
    Sets { read: of(read), write: of(write), except: of(except) }
}

fn names_of(fds: &[Fd]) -> String {
    fds.iter().map(|fd| fd.name).collect::<Vec<_>>().join(" ")
}

fn names_in(set: &FdSet, fds: &[Fd]) -> String {
    fds.iter().filter(|fd| set.has(fd.raw)).map(|fd| fd.name).collect::<Vec<_>>().join(" ")
}

fn highest(groups: [&[Fd]; 3]) -> i32 {
    groups.iter().flat_map(|fds| fds.iter()).map(|fd| fd.raw + 1).max().unwrap_or(0)
}

/// `select` over named descriptors.
pub fn select(read: &[Fd], write: &[Fd], except: &[Fd], timeout_ms: i64) -> Ret {
    let mut sets = sets_of(read, write, except);
    let (ret, _) = sys::select(highest([read, write, except]), &mut sets, timeout_ms);
    trace_sets("select", ret, &sets, [read, write, except], timeout_ms);
    ret
}

pub fn pselect(read: &[Fd], write: &[Fd], except: &[Fd], timeout_ms: i64, mask: Option<&libc::sigset_t>) -> Ret {
    let mut sets = sets_of(read, write, except);
    let ret = sys::pselect(highest([read, write, except]), &mut sets, timeout_ms, mask);
    trace_sets("pselect", ret, &sets, [read, write, except], timeout_ms);
    ret
}

fn trace_sets(call: &str, ret: Ret, sets: &Sets, fds: [&[Fd]; 3], timeout_ms: i64) {
    let [read, write, except] = fds;
    trace!(
        "{call}(r: {} w: {} e: {}, {timeout_ms}) = {ret} [r: {} w: {} e: {}]",
        names_of(read),
        names_of(write),
        names_of(except),
        names_in(&sets.read, read),
        names_in(&sets.write, write),
        names_in(&sets.except, except),
    );
}

pub fn epoll_create(name: &'static str) -> Fd {
    let ret = sys::epoll_create1(libc::EPOLL_CLOEXEC);
    assert!(ret.is_ok(), "epoll_create1: {ret}");
    Fd::new(ret.value as i32, name)
}

/// The data of an entry is a short name, packed into its 64 bits.
fn pack(name: &str) -> u64 {
    let mut bytes = [0; 8];
    for (byte, letter) in bytes.iter_mut().zip(name.bytes()) {
        *byte = letter;
    }
    u64::from_le_bytes(bytes)
}

fn unpack(data: u64) -> String {
    data.to_le_bytes().iter().filter(|byte| **byte != 0).map(|byte| char::from(*byte)).collect()
}

fn control(set: Fd, operation: i32, verb: &str, fd: Fd, events: i32) -> Ret {
    let ret = sys::epoll_ctl(set.raw, operation, fd.raw, events as u32, pack(fd.name));
    trace!("epoll_ctl({}, {verb}, {}, {}) = {ret}", set.name, fd.name, epoll_name(events as u32));
    ret
}

pub fn epoll_add(set: Fd, fd: Fd, events: i32) -> Ret {
    control(set, libc::EPOLL_CTL_ADD, "ADD", fd, events)
}

pub fn epoll_mod(set: Fd, fd: Fd, events: i32) -> Ret {
    control(set, libc::EPOLL_CTL_MOD, "MOD", fd, events)
}

pub fn epoll_del(set: Fd, fd: Fd) -> Ret {
    control(set, libc::EPOLL_CTL_DEL, "DEL", fd, 0)
}

/// `epoll_wait`; events are sorted by name, because their order is the kernel's own affair.
pub fn epoll_wait(set: Fd, room: i32, timeout_ms: i32) -> Ret {
    epoll_wait_by(EpollCall::Wait, set, room, timeout_ms, None)
}

/// Whether the order of events does not count: where room and arrivals on many connections come together by chance, it
/// depends on what the kernel's own buffers did.
pub static ANY_ORDER: AtomicBool = AtomicBool::new(false);

/// `epoll_wait`; the events are told in the order in which they come.
pub fn epoll_wait_by(which: EpollCall, set: Fd, room: i32, timeout_ms: i32, mask: Option<&libc::sigset_t>) -> Ret {
    let (ret, events) = sys::epoll_wait(which, set.raw, room, timeout_ms, mask);
    let mut names: Vec<String> = events
        .iter()
        .map(|event| {
            let (data, mask) = (event.u64, event.events);
            format!("{}:{}", unpack(data), epoll_name(mask))
        })
        .collect();
    if ANY_ORDER.load(Ordering::Relaxed) {
        names.sort();
    }
    let call = match which {
        EpollCall::Wait => "epoll_wait",
        EpollCall::Pwait => "epoll_pwait",
        EpollCall::Pwait2 => "epoll_pwait2",
    };
    trace!("{call}({}, {room}, {timeout_ms}) = {ret} [{}]", set.name, names.join(" "));
    ret
}
