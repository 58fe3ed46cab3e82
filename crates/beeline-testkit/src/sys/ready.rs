//! Readiness: poll, select, epoll.

use super::unseen::unseen;
use super::{Ret, call};

#[must_use]
pub fn timespec_of_ms(ms: i64) -> libc::timespec {
    libc::timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 }
}

pub fn poll(fds: &mut [libc::pollfd], timeout_ms: i32) -> Ret {
    // SAFETY: the slice is valid for its length.
    call(|| i64::from(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) }))
}

pub fn poll_at(pointer: usize, count: u64, timeout_ms: i32) -> Ret {
    // SAFETY: the kernel checks the pointer and answers EFAULT.
    call(|| i64::from(unsafe { libc::poll(pointer as *mut _, count, timeout_ms) }))
}

/// `ppoll`; no timeout when negative.
pub fn ppoll(fds: &mut [libc::pollfd], timeout_ms: i64, mask: Option<&libc::sigset_t>) -> Ret {
    let limit = timespec_of_ms(timeout_ms.max(0));
    let limit_pointer = if timeout_ms < 0 { std::ptr::null() } else { &raw const limit };
    let mask_pointer = mask.map_or(std::ptr::null(), |mask| mask);
    let (pointer, count) = (fds.as_mut_ptr(), fds.len() as libc::nfds_t);
    // SAFETY: all pointers are NULL or valid.
    call(|| i64::from(unsafe { libc::ppoll(pointer, count, limit_pointer, mask_pointer) }))
}

/// Descriptor sets for `select`.
#[derive(Clone, Copy)]
pub struct FdSet(pub libc::fd_set);

impl FdSet {
    #[must_use]
    pub fn of(fds: &[i32]) -> Self {
        // SAFETY: fd_set is plain data for which zeroes are the empty set.
        let mut set = Self(unsafe { std::mem::zeroed() });
        for fd in fds {
            // SAFETY: the tests use descriptors below FD_SETSIZE.
            unsafe { libc::FD_SET(*fd, &raw mut set.0) };
        }
        set
    }

    #[must_use]
    pub fn has(&self, fd: i32) -> bool {
        // SAFETY: as above.
        unsafe { libc::FD_ISSET(fd, &raw const self.0) }
    }
}

/// The three sets of one `select`.
#[derive(Clone, Copy)]
pub struct Sets {
    pub read: FdSet,
    pub write: FdSet,
    pub except: FdSet,
}

/// `select`; no timeout when negative. The second value is what was left of the timeout, in milliseconds.
pub fn select(count: i32, sets: &mut Sets, timeout_ms: i64) -> (Ret, i64) {
    let mut limit = libc::timeval { tv_sec: timeout_ms.max(0) / 1000, tv_usec: timeout_ms.max(0) % 1000 * 1000 };
    let limit_pointer = if timeout_ms < 0 { std::ptr::null_mut() } else { &raw mut limit };
    let (read, write, except) = (&raw mut sets.read.0, &raw mut sets.write.0, &raw mut sets.except.0);
    // SAFETY: all pointers are NULL or valid.
    let ret = call(|| i64::from(unsafe { libc::select(count, read, write, except, limit_pointer) }));
    (ret, limit.tv_sec * 1000 + limit.tv_usec / 1000)
}

/// `pselect`; no timeout when negative.
pub fn pselect(count: i32, sets: &mut Sets, timeout_ms: i64, mask: Option<&libc::sigset_t>) -> Ret {
    let limit = timespec_of_ms(timeout_ms.max(0));
    let limit_pointer = if timeout_ms < 0 { std::ptr::null() } else { &raw const limit };
    let mask_pointer = mask.map_or(std::ptr::null(), |mask| mask);
    let (read, write, except) = (&raw mut sets.read.0, &raw mut sets.write.0, &raw mut sets.except.0);
    // SAFETY: all pointers are NULL or valid.
    call(|| i64::from(unsafe { libc::pselect(count, read, write, except, limit_pointer, mask_pointer) }))
}

/// `select` of sets that are somewhere, or null.
pub fn select_at(count: i32, sets: [usize; 3], timeout_ms: i64) -> Ret {
    let [read, write, except] = sets.map(|set| set as *mut libc::fd_set);
    let mut limit = libc::timeval { tv_sec: timeout_ms / 1000, tv_usec: timeout_ms % 1000 * 1000 };
    // SAFETY: the kernel checks the sets and answers EFAULT.
    call(|| i64::from(unsafe { libc::select(count, read, write, except, &raw mut limit) }))
}

/// `pselect` of such sets, without a wait.
pub fn pselect_at(count: i32, sets: [usize; 3]) -> Ret {
    let [read, write, except] = sets.map(|set| set as *mut libc::fd_set);
    let limit = timespec_of_ms(0);
    // SAFETY: the kernel checks the sets and answers EFAULT.
    call(|| i64::from(unsafe { libc::pselect(count, read, write, except, &raw const limit, std::ptr::null()) }))
}

pub fn epoll_create1(flags: i32) -> Ret {
    // SAFETY: integers only.
    call(|| i64::from(unsafe { libc::epoll_create1(flags) }))
}

pub fn epoll_ctl(set: i32, operation: i32, fd: i32, events: u32, data: u64) -> Ret {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: the event is valid.
    call(|| i64::from(unsafe { libc::epoll_ctl(set, operation, fd, &raw mut event) }))
}

/// `epoll_ctl` with a NULL event.
pub fn epoll_ctl_null(set: i32, operation: i32, fd: i32) -> Ret {
    // SAFETY: NULL is allowed for DEL and answered with EFAULT otherwise.
    call(|| i64::from(unsafe { libc::epoll_ctl(set, operation, fd, std::ptr::null_mut()) }))
}

/// Which of the three calls waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpollCall {
    Wait,
    Pwait,
    Pwait2,
}

/// Waits for at most `room` events; a negative timeout waits for ever.
pub fn epoll_wait(
    which: EpollCall,
    set: i32,
    room: i32,
    timeout_ms: i32,
    mask: Option<&libc::sigset_t>,
) -> (Ret, Vec<libc::epoll_event>) {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; usize::try_from(room).unwrap_or(0)];
    let pointer = events.as_mut_ptr();
    let mask_pointer = mask.map_or(std::ptr::null(), |mask| mask);
    let limit = timespec_of_ms(i64::from(timeout_ms.max(0)));
    let limit_pointer = if timeout_ms < 0 { std::ptr::null() } else { &raw const limit };
    let ret = call(|| {
        // SAFETY: `pointer` has room for `room` events (a room of zero or less is answered with EINVAL); the other
        // pointers are NULL or valid.
        let count = unsafe {
            match which {
                EpollCall::Wait => libc::epoll_wait(set, pointer, room, timeout_ms),
                EpollCall::Pwait => libc::epoll_pwait(set, pointer, room, timeout_ms, mask_pointer),
                EpollCall::Pwait2 => epoll_pwait2(set, pointer, room, limit_pointer, mask_pointer),
            }
        };
        i64::from(count)
    });
    events.truncate(ret.size());
    (ret, events)
}

unsafe extern "C" {
    // The libc crate declares it for some targets only; glibc has it since 2.35.
    fn epoll_pwait2(
        set: i32,
        events: *mut libc::epoll_event,
        room: i32,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> i32;
}

pub fn epoll_wait_at(set: i32, pointer: usize, room: i32, timeout_ms: i32) -> Ret {
    // SAFETY: the kernel checks the pointer and answers EFAULT.
    call(|| i64::from(unsafe { libc::epoll_wait(set, pointer as *mut _, room, timeout_ms) }))
}

/// How many of at most `room` events the kernel has to report of a set now, as a program without the library would ask.
pub fn epoll_wait_unseen(set: i32, room: usize) -> i64 {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; room];
    // SAFETY: room for that many events, no wait and no mask.
    unsafe { unseen(libc::SYS_epoll_pwait, [set as usize, events.as_mut_ptr() as usize, room, 0, 0, 8]) }
}

/// `EPOLL_CTL_MOD` of a member, as a program without the library would ask for it.
pub fn epoll_mod_unseen(set: i32, fd: i32, events: i32) -> i64 {
    let mut event = libc::epoll_event { events: events as u32, u64: 0 };
    let pointer = (&raw mut event) as usize;
    // SAFETY: a live event, which the kernel reads.
    unsafe { unseen(libc::SYS_epoll_ctl, [set as usize, libc::EPOLL_CTL_MOD as usize, fd as usize, pointer, 0, 0]) }
}
