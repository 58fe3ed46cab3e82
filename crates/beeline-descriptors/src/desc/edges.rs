//! A lane's *edge set*: a hidden epoll set that watches the lane's anchor by edges, for a thread that sleeps on that
//! lane alone.
//!
//! poll(2) tells of a bell for as long as it lies there, so whoever sleeps in it takes the old ones out first, which is
//! a system call for each message that wakes somebody. Who is told of each bell once leaves them where they lie (rule 9
//! of waking a reader, [`beeline_lane`]).
//!
//! # Rules
//!
//! 1. A set is made for a lane on which a thread has slept alone [`SLEEPS_MIN`] times, in a receive or in poll(2), if
//!    there are descriptors to spare and few such sets. What is soon gone costs no call more.
//! 2. It has one user at a time, who has found that no other call uses the lane, and has said that it uses the set
//!    before it arms, with the lane's rx lock in its hand. Whoever comes meanwhile is not alone: it sleeps in poll(2),
//!    and takes out no bell before it has armed.
//! 3. Bells are left lying by who has slept by the set the last time and heard of it: it has told of them. Of what came
//!    since then, while the thread was awake or slept otherwise, it has yet to tell, and that would end a sleep at
//!    once.
//! 4. What the kernel tells once is heard, or the set is given up: it stays in use until what was said of the anchor
//!    has been noted of the connection ([`ByEdges::note_heard`]). Who finds it in use although it is alone knows that
//!    the one before will not come back: a handler jumped out of the call, the thread was cancelled or has ended.
//! 5. A set does not keep the file that it watches, as poll(2) does. It is empty if the anchor is closed meanwhile and
//!    there is no number to keep it open under ([`crate::linger`]), if something else gets its number because the
//!    connection leaves its lane, or if the program closes it by a system call of its own. So nobody sleeps on it for
//!    longer than [`SLEEP_NS_MAX`]: a sleep that lasts goes on in poll(2).
//! 6. It is closed when the connection leaves the lane, when descriptors are short, and in the child of a `fork`. What
//!    a child of `vfork` opens or closes is no business of the process whose memory this is: it makes none and closes
//!    none.

use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use beeline_shm::sys::Errno;
use libc::{EPOLL_CTL_ADD, EPOLLET, EPOLLIN, EPOLLRDHUP, epoll_event, pollfd};

use crate::fd_cell::FdCell;
use crate::wait::{Patience, Woken};
use crate::{hidden, kernel, process};

/// Sleeps upon a lane before it has a set.
const SLEEPS_MIN: u32 = 8;
/// Sets in a process at most: a server with a thread for each connection shall not need twice as many descriptors.
const SETS_MAX: u32 = 32;
/// So seldom that what a sleep in two parts costs does not count.
const SLEEP_NS_MAX: u64 = 50_000_000;

/// How many there are.
static SETS: AtomicU32 = AtomicU32::new(0);
/// Whether the kernel has refused to watch an anchor.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// See the module. Valid when zeroed. A use begins, and a set is released, with the lane's rx lock held.
#[repr(C)]
#[derive(Default)]
pub struct EdgeSet {
    set: FdCell,
    /// Sleeps without one.
    sleeps: AtomicU32,
    is_used: AtomicBool,
    /// Whether the last sleep upon the lane was by the set, and what ended it was heard.
    is_heard: AtomicBool,
    /// Whether the last sleep lasted, and goes on in poll(2).
    has_lasted: AtomicBool,
    /// Whether the connection is on its lane no more.
    is_over: AtomicBool,
}

/// The use of a lane's edge set for one sleep. Its events carry a name, by which they are told from those of another
/// set that has the number by now.
#[must_use]
pub struct ByEdges {
    edges: &'static EdgeSet,
    set: i32,
    name: u64,
    knows_bells: bool,
    /// Whether the kernel has told something that has not been heard.
    is_told: bool,
}

impl EdgeSet {
    /// The set, for a sleep of which the caller knows that it is the only one upon the lane. `begun` tells which use of
    /// its description that is.
    pub fn by_edges(&'static self, anchor: i32, begun: u32) -> Option<ByEdges> {
        if process::is_sealed() || !kernel::sleeps_on_sets_in_one_call() {
            return None;
        }
        if self.is_used.load(Acquire) {
            self.end();
            return None;
        }
        let knows_bells = self.is_heard.load(Relaxed);
        self.sleeps_otherwise();
        if self.has_lasted.load(Relaxed) {
            self.has_lasted.store(false, Relaxed);
            return None;
        }
        let name = core::ptr::from_ref(self) as u64 ^ u64::from(begun) << 48;
        let set = self.set.get().or_else(|| self.make_if_due(anchor, name))?;
        self.is_used.store(true, Relaxed);
        Some(ByEdges { edges: self, set, name, knows_bells, is_told: false })
    }

    /// A thread arms the lane and does not sleep by the set.
    pub fn sleeps_otherwise(&self) {
        if self.is_heard.load(Relaxed) {
            self.is_heard.store(false, Relaxed);
        }
    }

    fn make_if_due(&self, anchor: i32, name: u64) -> Option<i32> {
        let sleeps = self.sleeps.load(Relaxed).wrapping_add(1);
        self.sleeps.store(sleeps, Relaxed);
        let is_due = sleeps.is_multiple_of(SLEEPS_MIN) && !IS_REFUSED.load(Relaxed);
        if !is_due || process::is_guest_of_parent() || !hidden::has_room() {
            return None;
        }
        let more = |sets| if sets < SETS_MAX { Some(sets + 1) } else { None };
        SETS.fetch_update(Relaxed, Relaxed, more).ok()?;
        let made = make(anchor, name);
        match made {
            Some(_) => self.set.set(made),
            None => forget_one(),
        }
        made
    }

    /// Closes the set, unless a thread may use it. Whether there was one. For one who holds the rx lock; `is_unused`
    /// tells that no call uses the description.
    pub fn release(&self, is_unused: bool) -> bool {
        (is_unused || !self.is_used.load(Acquire)) && self.end()
    }

    /// The connection leaves the lane: closes the set, or has its user close it. As for [`EdgeSet::release`].
    pub(super) fn be_over(&self, is_unused: bool) {
        self.is_over.store(true, SeqCst);
        if is_unused || !self.is_used.load(SeqCst) {
            self.end();
        }
    }

    /// Closes the set, which nobody uses or will use any more. Whether there was one.
    pub(super) fn end(&self) -> bool {
        let set = self.take();
        if let Some(set) = set {
            hidden::close_hidden(set);
        }
        self.forget_use();
        set.is_some()
    }

    fn take(&self) -> Option<i32> {
        self.set.get()?;
        let set = if process::is_guest_of_parent() { None } else { self.set.take() };
        if set.is_some() {
            forget_one();
        }
        set
    }

    /// What is not so is not written: the child of a fork would get a copy of the page.
    #[inline]
    fn forget_use(&self) {
        for flag in [&self.is_used, &self.is_heard, &self.has_lasted, &self.is_over] {
            if flag.load(Relaxed) {
                flag.store(false, Release);
            }
        }
    }

    /// In the child of a `fork`, where nobody sleeps.
    #[unsafe(link_section = ".text.fork")]
    pub(super) fn end_in_child(&self) {
        if let Some(set) = self.set.take() {
            hidden::close_hidden(set);
            forget_one();
        }
        self.forget_use();
    }

    /// For the next use of the description. What the child of a `vfork` could not close is closed now.
    pub(super) fn begin(&self) {
        self.end();
        self.sleeps.store(0, Relaxed);
    }
}

fn make(anchor: i32, name: u64) -> Option<i32> {
    let set = hidden::keep(kernel::epoll_create().ok()?)?;
    let event = epoll_event { events: (EPOLLIN | EPOLLRDHUP | EPOLLET) as u32, u64: name };
    if kernel::epoll_ctl(set, EPOLL_CTL_ADD, anchor, Some(event)).is_ok() {
        return Some(set);
    }
    IS_REFUSED.store(true, Relaxed);
    hidden::close_hidden(set);
    None
}

fn forget_one() {
    let _ = SETS.fetch_update(Relaxed, Relaxed, |sets| sets.checked_sub(1));
}

impl ByEdges {
    /// Whether bells that lie there may be left: the set has told of them.
    #[must_use]
    pub fn knows_bells(&self) -> bool {
        self.knows_bells
    }

    /// Sleeps, instead of in poll(2), which `place` was to ask for bytes and the peer's end. What the kernel says is
    /// noted there; nothing, as if the sleep had ended in vain, where it is to go on in poll(2).
    pub fn sleep(&mut self, patience: &mut Patience, place: &mut pollfd) -> Woken {
        let mut event = epoll_event { events: 0, u64: 0 };
        let (set, told) = (self.set, &raw mut event);
        self.is_told = true;
        let woken = patience.sleep_within(SLEEP_NS_MAX, |timeout| {
            // SAFETY: room for one event; `timeout` is this thread's own.
            unsafe { kernel::epoll_sleep(set, told, 1, timeout, core::ptr::null()) }
        });
        place.revents = 0;
        match woken {
            Woken::Ready(1..) if event.u64 == self.name => place.revents = event.events as i16,
            // The program has closed the number by a system call of its own.
            Woken::Ready(1..) | Woken::Failed(Errno(libc::EBADF | libc::EINVAL)) => {
                if let Some(set) = self.edges.take() {
                    hidden::hidden_remove(set);
                }
                return Woken::Ready(0);
            }
            Woken::Ready(0) => {
                self.edges.has_lasted.store(true, Relaxed);
                self.is_told = false;
            }
            _ => self.is_told = false,
        }
        woken
    }

    /// What the kernel has said of the anchor has been noted of the connection.
    pub fn note_heard(mut self) {
        self.is_told = false;
        self.edges.is_heard.store(true, Relaxed);
    }
}

impl Drop for ByEdges {
    fn drop(&mut self) {
        if self.is_told {
            // The kernel will not say it again.
            self.edges.end();
            return;
        }
        // Either this sees that the lane is over, or who says so that the set is in use no more.
        self.edges.is_used.store(false, SeqCst);
        if self.edges.is_over.load(SeqCst) {
            self.edges.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    const BEGUN: u32 = 7;

    /// The use of a set that was just made for an anchor.
    fn made(edges: &'static EdgeSet, anchor: i32) -> ByEdges {
        for _ in 1..SLEEPS_MIN {
            assert!(edges.by_edges(anchor, BEGUN).is_none());
        }
        edges.by_edges(anchor, BEGUN).expect("there is one now")
    }

    /// What a sleep of a call with this timeout is told.
    fn sleep(by_edges: &mut ByEdges, timeout_ns: u64) -> (Woken, i16) {
        let mut place = pollfd { fd: -1, events: 0, revents: -1 };
        let woken = by_edges.sleep(&mut Patience::timeout(timeout_ns), &mut place);
        (woken, place.revents)
    }

    #[test]
    fn a_set_tells_once_and_is_given_up_where_nobody_heard() {
        const LONG_NS: u64 = 10_000_000_000;
        let edges: &'static EdgeSet = Box::leak(Box::default());
        let (anchor, mut peer) = UnixStream::pair().unwrap();
        let fd = anchor.as_raw_fd();

        let mut by_edges = made(edges, fd);
        assert!(!by_edges.knows_bells(), "it has told of none");
        peer.write_all(b"b").unwrap();
        assert_eq!(sleep(&mut by_edges, LONG_NS), (Woken::Ready(1), libc::POLLIN));
        by_edges.note_heard();

        let mut by_edges = edges.by_edges(fd, BEGUN).unwrap();
        assert!(by_edges.knows_bells());
        assert_eq!(sleep(&mut by_edges, 1_000_000), (Woken::TimedOut, 0), "the old bell ends no sleep");
        drop(by_edges);
        assert_eq!(sleep(&mut edges.by_edges(fd, BEGUN).unwrap(), LONG_NS), (Woken::Ready(0), 0), "a part of it");
        assert!(edges.by_edges(fd, BEGUN).is_none(), "it goes on in poll(2)");

        let mut by_edges = edges.by_edges(fd, BEGUN).unwrap();
        assert!(!by_edges.knows_bells(), "that may have come meanwhile");
        drop(peer);
        assert_eq!(sleep(&mut by_edges, LONG_NS).0, Woken::Ready(1));
        // As by a thread that jumps out.
        core::mem::forget(by_edges);
        assert!(!edges.release(false), "it may be in use");
        assert!(edges.by_edges(fd, BEGUN).is_none() && edges.set.get().is_none());

        let mut by_edges = made(edges, fd);
        assert_eq!(sleep(&mut by_edges, LONG_NS).0, Woken::Ready(1), "a new one tells again");
        drop(by_edges);
        assert!(edges.set.get().is_none(), "nobody noted that");
    }

    #[test]
    fn a_set_is_closed_where_the_connection_leaves_its_lane() {
        let edges: &'static EdgeSet = Box::leak(Box::default());
        let (anchor, _peer) = UnixStream::pair().unwrap();
        let by_edges = made(edges, anchor.as_raw_fd());
        edges.be_over(false);
        assert!(edges.set.get().is_some());
        drop(by_edges);
        assert!(edges.set.get().is_none());
        drop(made(edges, anchor.as_raw_fd()));
        edges.be_over(false);
        assert!(edges.set.get().is_none());
    }

    #[test]
    fn events_of_another_set_with_the_number_are_not_heard() {
        let edges: &'static EdgeSet = Box::leak(Box::default());
        let (anchor, mut peer) = UnixStream::pair().unwrap();
        drop(made(edges, anchor.as_raw_fd()));
        peer.write_all(b"b").unwrap();
        // Another use of the description.
        let mut by_edges = edges.by_edges(anchor.as_raw_fd(), BEGUN + 1).unwrap();
        assert_eq!(sleep(&mut by_edges, 0), (Woken::Ready(0), 0));
        assert!(edges.set.get().is_none());
    }
}
