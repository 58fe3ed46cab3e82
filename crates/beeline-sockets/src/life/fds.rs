//! `close` and `dup` in all their forms.
//!
//! A number that leads to a description is settled before the kernel closes it: afterwards another thread
//! may have it again. `SO_LINGER` with a time does not make `close` wait on a lane: what was sent is in the
//! peer's memory already, which is all that TCP waits for (the acknowledgement, not the reading).

use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::sys;

use super::stranger;
use crate::changing::{Changing, changing};
use crate::close::{Next, changing_of, settle_with};
use crate::desc::{Desc, Kind};
use crate::hidden::{close_hidden, is_hidden, next_hidden, twin_to_keep};
use crate::linger;
use crate::process::{is_guest_of_parent, is_sealed, raw};
use crate::{Errno, Outcome, epoll, kernel, meet, orphan, proc, table};

/// `close(2)`.
#[unsafe(link_section = ".text.served")]
pub fn close(fd: i32) -> Outcome {
    match table::get(fd) {
        _ if is_ours_here(fd) => Outcome::fail(libc::EBADF),
        None => Outcome::Kernel,
        Some(_) => close_ours(fd),
    }
}

/// Whether `fd` is hidden in this process. The child of a `vfork` has copies of its parent's descriptors, which are
/// close-on-exec, and may have put something of its own in the place of one.
fn is_ours_here(fd: i32) -> bool {
    is_hidden(fd) && (!is_guest_of_parent() || kernel::is_close_on_exec(fd) == Ok(true))
}

#[unsafe(link_section = ".text.served")]
fn close_ours(fd: i32) -> Outcome {
    if is_guest_of_parent() {
        return sys::close(fd).into();
    }
    if let Some(desc) = table::get(fd).filter(|desc| desc.is_lane()) {
        meet::before_close(fd, desc);
    }
    let (settled, result) = {
        let Some((desc, _changing)) = changing_for_close(fd) else { return Outcome::Kernel };
        let anchored = matches!(desc.kind(), Kind::Lane | Kind::Orphan | Kind::Epoll);
        linger::keep(fd, desc);
        // An anchor is closed with the change, so that no other thread mistakes its number for a plain
        // socket. A TCP socket may linger in its close and goes last.
        let mut result = None;
        let settled = settle_with(fd, desc, Next::NOTHING, &mut || result = anchored.then(|| sys::close(fd)));
        (settled, result)
    };
    let result = result.unwrap_or_else(|| sys::close(fd));
    settled.finish();
    result.into()
}

/// What `fd` leads to, to be closed. Connections and what may become one change alone.
fn changing_for_close(fd: i32) -> Option<(&'static Desc, Changing)> {
    let desc = table::get(fd)?;
    if matches!(desc.kind(), Kind::Tcp | Kind::Lane) {
        let changing = changing_of(fd, desc);
        // Another thread may have closed it meanwhile, or made something else of it.
        if table::leads_to(fd, desc) && matches!(desc.kind(), Kind::Tcp | Kind::Lane) {
            return Some((desc, changing));
        }
    }
    let changing = changing();
    table::get(fd).map(|desc| (desc, changing))
}

/// `dup(2)`.
pub fn dup(fd: i32) -> Outcome {
    duplicate(fd, true, || {
        // SAFETY: a plain number.
        unsafe { sys::call(libc::SYS_dup, [fd as usize, 0, 0, 0, 0, 0]) }
    })
}

/// `fcntl(2)` with `F_DUPFD` or `F_DUPFD_CLOEXEC`.
pub(super) fn dup_from(fd: i32, command: i32, lowest: usize) -> Outcome {
    let closes = command == libc::F_DUPFD_CLOEXEC;
    duplicate(fd, !closes, || kernel::duplicate(fd, lowest, closes).map(|fd| fd as usize))
}

/// `inheritable` tells whether the number that `make` makes stays open in programs that are started.
fn duplicate(fd: i32, inheritable: bool, make: impl Fn() -> sys::SysResult) -> Outcome {
    if is_guest_of_parent() {
        hand_on(fd);
        return Outcome::Kernel;
    }
    if table::get(fd).is_none() {
        return match is_hidden(fd) {
            true => Outcome::fail(libc::EBADF),
            false if is_sealed() => Outcome::Kernel,
            false => meet::with_room(make).into(),
        };
    }
    match meet::with_room(|| duplicate_known(fd, inheritable, &make)) {
        Ok(new) => {
            stranger::demote_if_stream(new as i32);
            Outcome::Done(new as isize)
        }
        Err(BEYOND) => Outcome::fail(libc::EMFILE),
        Err(errno) => Outcome::Fail(errno),
    }
}

/// The child of a `vfork` duplicates a number: a set may stay open by that in the program that it becomes. Whether it
/// does, the child may say later of a number that nobody here knows.
fn hand_on(fd: i32) {
    if let Some(desc) = table::get(fd) {
        epoll::hand_on(desc);
    }
}

/// The kernel refuses no duplicate with this: the number would be beyond those that we know, and would be so again.
const BEYOND: Errno = Errno(libc::EOVERFLOW);

/// Duplicates what has had a description.
fn duplicate_known(fd: i32, inheritable: bool, make: &impl Fn() -> sys::SysResult) -> sys::SysResult {
    let _changing = changing();
    // Another thread may have closed it meanwhile.
    let Some(desc) = table::get(fd) else { return make() };
    expose(desc, inheritable);
    let new = make()?;
    if table::set(new as i32, Some(desc)).is_err() {
        let _ = sys::close(new as i32);
        return Err(BEYOND);
    }
    epoll::remember(new as i32, desc);
    Ok(new)
}

/// A set gets one more number. One that is closed to programs that are started gives it to none of them, unless it is
/// opened to them later ([`epoll::set_inheritable`]), or given by name.
fn expose(desc: &Desc, inheritable: bool) {
    epoll::expose(desc);
    if inheritable {
        epoll::hand_on(desc);
    }
}

/// `dup2(2)`.
pub fn dup2(from: i32, to: i32) -> Outcome {
    if from == to {
        return Outcome::Kernel;
    }
    replace(from, to, 0)
}

/// `dup3(2)`.
pub fn dup3(from: i32, to: i32, flags: i32) -> Outcome {
    if from == to || flags & !libc::O_CLOEXEC != 0 {
        return Outcome::Kernel;
    }
    replace(from, to, flags)
}

fn replace(from: i32, to: i32, flags: i32) -> Outcome {
    let hidden = is_hidden(from) || is_hidden(to);
    if table::get(from).is_none() && table::get(to).is_none() && !hidden {
        return Outcome::Kernel;
    }
    if is_guest_of_parent() {
        hand_on(from);
        return Outcome::Kernel;
    }
    if hidden {
        // The number is taken by a descriptor of ours. The kernel's word for a number that cannot be had.
        return Outcome::fail(libc::EBADF);
    }
    if let Some(target) = table::get(to).filter(|target| target.is_lane() && !table::leads_to(from, target)) {
        meet::before_close(to, target);
    }
    let (settled, result) = {
        let _changing = changing();
        // What the kernel would refuse changes nothing.
        if let Err(errno) = kernel::is_close_on_exec(from) {
            return Outcome::Fail(errno);
        }
        if !table::within_limit(to) {
            return Outcome::fail(libc::EBADF);
        }
        let source = table::get(from);
        if let Some(source) = source {
            expose(source, flags & libc::O_CLOEXEC == 0);
        }
        let old = Old::of(to, source);
        let target = table::get(to);
        let mut result = Ok(0);
        let mut change = || {
            result = kernel::dup3(from, to, flags);
            if result.is_err() {
                // What the kernel gives the number to next is not ours.
                let _ = table::set(to, None);
            }
        };
        let settled = match target {
            Some(target) if source.is_some_and(|source| core::ptr::eq(source, target)) => {
                change();
                None
            }
            Some(target) => {
                linger::keep(to, target);
                Some(settle_with(to, target, Next { desc: source, is_kept: old.is_brief() }, &mut change))
            }
            None => {
                // As in `settle_with`.
                let _of_source = source.filter(|_| old.is_brief()).map(Desc::lock_both);
                if table::set(to, source).is_err() {
                    old.close();
                    return Outcome::fail(libc::EMFILE);
                }
                change();
                None
            }
        };
        // Before anybody forks: a child would keep the connection.
        old.close();
        match (result, source, target) {
            (Ok(_), Some(source), _) => epoll::remember(to, source),
            (Err(_), _, Some(target)) => lead_back(to, target),
            _ => {}
        }
        (settled, result)
    };
    if let Some(settled) = settled {
        settled.finish();
    }
    if result.is_ok() {
        stranger::demote_if_stream(to);
    }
    result.into()
}

/// The kernel has refused to give `fd`, which led to `target`, to something else, and has closed nothing: it leads
/// there as before, unless the kernel knows no such number. What has ended with the change cannot be had back: its
/// anchor fails. The caller holds [`changing`].
fn lead_back(fd: i32, target: &'static Desc) {
    if kernel::is_close_on_exec(fd).is_err() {
        return;
    }
    if target.kind() != Kind::Closed {
        // Cannot fail: the entry exists.
        let _ = table::set(fd, Some(target));
        epoll::remember(fd, target);
    } else if orphan::is_anchor(fd) {
        orphan::mark(fd);
    }
}

/// What is under a number that dup2(2) gives to a connection. The kernel closes it with that.
enum Old {
    /// Nothing, or an anchor or set of ours: that takes no time.
    Brief,
    /// A socket, which may linger in its close: a hidden number has it until the other is changed.
    Kept(i32),
    /// Nobody knows how long it takes. Or what comes is no connection: then nobody need wait.
    Unknown,
}

impl Old {
    fn of(fd: i32, next: Option<&'static Desc>) -> Self {
        let is_ours = |desc: &Desc| matches!(desc.kind(), Kind::Lane | Kind::Orphan | Kind::Epoll);
        if !next.is_some_and(Desc::is_lane) {
            return Self::Unknown;
        }
        if table::get(fd).is_some_and(is_ours) {
            return Self::Brief;
        }
        match kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_TYPE) {
            Ok(_) => twin_to_keep(fd).map_or(Self::Unknown, Self::Kept),
            Err(Errno(libc::EBADF)) => Self::Brief,
            Err(_) => Self::Unknown,
        }
    }

    /// Whether those who use the connection may wait while it is replaced.
    fn is_brief(&self) -> bool {
        !matches!(self, Self::Unknown)
    }

    fn close(self) {
        if let Self::Kept(twin) = self {
            close_hidden(twin);
        }
    }
}

/// `close_range(2)`.
pub fn close_range(first: u32, last: u32, flags: i32) -> Outcome {
    if first > last || flags != 0 && !(flags as u32 == libc::CLOSE_RANGE_UNSHARE && would_be_alone()) {
        // Close-on-exec is what hidden fds are already, and a table that one of several has for itself may lose them.
        return Outcome::Kernel;
    }
    // A kernel without the call must not find half of the work done. This gives the process its own table, if asked to.
    let nothing = [u32::MAX as usize, u32::MAX as usize, flags as usize, 0, 0, 0];
    // SAFETY: plain numbers; no fd has this one.
    if let Err(errno) = unsafe { sys::call(libc::SYS_close_range, nothing) } {
        return Outcome::Fail(errno);
    }
    if !is_guest_of_parent() {
        table::for_each(|fd, _| {
            if (first..=last).contains(&(fd as u32)) && !is_hidden(fd) {
                let _ = close_ours(fd);
            }
        });
    }
    let mut from = first;
    loop {
        let hidden = next_hidden(from, last);
        let to = hidden.map_or(Some(last), |fd| fd.checked_sub(1));
        if let Some(to) = to
            && from <= to
        {
            let args = [from as usize, to as usize, 0, 0, 0, 0];
            // SAFETY: plain numbers; the range holds no fd of ours.
            if let Outcome::Fail(errno) = unsafe { raw(libc::SYS_close_range, args) } {
                return Outcome::Fail(errno);
            }
        }
        if let Some(fd) = hidden
            && !is_ours_here(fd as i32)
        {
            let _ = sys::close(fd as i32);
        }
        match hidden.and_then(|fd| fd.checked_add(1)) {
            Some(next) if next <= last => from = next,
            _ => return Outcome::OK,
        }
    }
}

/// Whether a table of descriptors of the calling thread's own is the process's: not where it has several threads, or
/// uses its parent's memory.
fn would_be_alone() -> bool {
    !is_guest_of_parent() && threads() == Some(1)
}

/// How many threads the process has (`num_threads` of proc_pid_stat(5)).
fn threads() -> Option<u32> {
    let mut buffer = [0; 512];
    let stat = proc::read(c"/proc/self/stat", &mut buffer)?;
    // The name, in brackets, may hold anything.
    let after_name = stat.rsplit(|byte| *byte == b')').next()?;
    let field = after_name.split(|byte| *byte == b' ').nth(18)?;
    core::str::from_utf8(field).ok()?.parse().ok()
}

/// `closefrom(3)`.
pub fn closefrom(lowest: i32) -> Outcome {
    match close_range(lowest.max(0) as u32, u32::MAX, 0) {
        Outcome::Fail(Errno(libc::ENOSYS)) => Outcome::Kernel,
        outcome => outcome,
    }
}

/// Whether a file descriptor number of the app is closed to it because it is ours.
pub(super) fn hidden_refusal(fd: i32) -> Option<Outcome> {
    (is_hidden(fd) && !is_guest_of_parent()).then_some(Outcome::fail(libc::EBADF))
}

/// The non-blocking mode of a lane follows the anchor's.
pub(super) fn note_nonblock(desc: &'static Desc, nonblock: bool) {
    let _both = desc.lock_both();
    if desc.is_lane() {
        desc.side().nonblock.store(u32::from(nonblock), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{fcntl, ioctl};
    use super::*;
    use crate::process;

    #[test]
    fn threads_are_counted() {
        let listed = || std::fs::read_dir("/proc/self/task").unwrap().count() as u32;
        // Other tests begin and end meanwhile.
        assert!((0..1000).any(|_| threads() == Some(listed())));
        assert!(threads() >= Some(2), "this one and the harness's");
    }

    #[test]
    fn a_set_is_handed_on_by_a_number_that_stays_open_over_exec_or_does_later() {
        const HIGH: i32 = 900;
        let new_set = || {
            let before = (process::forks(), process::copies());
            let Outcome::Done(set) = epoll::begin(kernel::epoll_create().unwrap(), libc::EPOLL_CLOEXEC, before) else {
                panic!("no set")
            };
            set as i32
        };
        let done = |outcome| if let Outcome::Done(fd) = outcome { fd as i32 } else { panic!("{outcome:?}") };
        let is_handed_on = |set| epoll::is_handed_on(table::get(set).unwrap());
        let by_flag = |copy| {
            // SAFETY: plain numbers.
            unsafe { fcntl(copy, libc::F_SETFD, 0) }
        };
        let by_request = |copy| {
            // SAFETY: a request without an argument.
            unsafe { ioctl(copy, libc::FIONCLEX, 0) }
        };
        let opens: [fn(i32) -> Outcome; 2] = [by_flag, by_request];
        for opens in opens {
            let set = new_set();
            let copies = [done(dup_from(set, libc::F_DUPFD_CLOEXEC, 0)), done(dup3(set, HIGH, libc::O_CLOEXEC))];
            assert!(!is_handed_on(set));
            done(opens(copies[0]));
            assert!(is_handed_on(set));
            copies.into_iter().chain([set]).for_each(|fd| assert_eq!(done(close(fd)), 0));
        }
        let duplicates: [fn(i32) -> Outcome; 3] =
            [dup, |set| dup_from(set, libc::F_DUPFD, HIGH as usize), |set| dup3(set, HIGH + 1, 0)];
        for duplicate in duplicates {
            let set = new_set();
            let copy = done(duplicate(set));
            assert!(is_handed_on(set));
            [copy, set].into_iter().for_each(|fd| assert_eq!(done(close(fd)), 0));
        }
    }
}
