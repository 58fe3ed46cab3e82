//! Which fd numbers are ours and hidden from the app.
//!
//! An app that closes all fds it does not know (`closefrom`, loops over the limit) must not close ours, and
//! must not learn of them: to it such a number is not open. One bit for each number, in memory that is never
//! touched where no bit was set; those of low numbers lie with what forks write.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use beeline_shm::{Fd, sys};
use beeline_stats::Counter;

use crate::kernel::{descriptor_limit, duplicate, epoll_create, now_ns, recent_descriptor_limit, set_close_on_exec};
use crate::stats;

/// The numbers of descriptors that can be ours, hidden, or members of a set, here and in all other tables: those below
/// the kernel's default limit (`fs.nr_open`). What has a higher one is the kernel's business alone.
pub const FDS: usize = 1 << 20;

/// Limits above this leave room for us above the numbers that `select` takes. A fork with a descriptor just there costs
/// 3 us more than without, and 14 us more at 3,968, because it copies the kernel's table up to the highest number in
/// use.
const LIMIT_LARGE: usize = 4096;
/// How long nothing is kept that is only good to have, once the program ran short of numbers.
const SHORT_NS: u64 = 1_000_000_000;

/// Until when that is; 0 when it never was, or is over.
static SHORT_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// Those of low numbers. Most of ours are among them: just above what `select` takes.
#[unsafe(link_section = ".fork.written")]
static LOW_BITS: Low = Low([const { AtomicU64::new(0) }; 24]);
/// Those of all others.
static BITS: [AtomicU64; FDS / 64] = [const { AtomicU64::new(0) }; FDS / 64];
#[unsafe(link_section = ".fork.written")]
static COUNT: AtomicU32 = AtomicU32::new(0);

/// In lines of their own, as they are looked at far more often than written.
#[repr(align(64))]
struct Low([AtomicU64; 24]);

fn place(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((word(fd / 64)?, 1 << (fd % 64)))
}

fn word(index: usize) -> Option<&'static AtomicU64> {
    LOW_BITS.0.get(index).or_else(|| BITS.get(index))
}

/// Says that `fd` is ours.
pub fn hidden_add(fd: i32) {
    if let Some((word, bit)) = place(fd)
        && word.fetch_or(bit, Relaxed) & bit == 0
    {
        COUNT.fetch_add(1, Relaxed);
        stats::count_if_open(Counter::HiddenFds);
    }
}

/// Says that `fd` is no longer ours. To be called before it is closed: afterwards the number may be the app's.
pub fn hidden_remove(fd: i32) {
    if let Some((word, bit)) = place(fd)
        && word.fetch_and(!bit, Relaxed) & bit != 0
    {
        COUNT.fetch_sub(1, Relaxed);
        stats::uncount_if_open(Counter::HiddenFds);
    }
}

/// How many are ours.
pub fn hidden_count() -> u32 {
    COUNT.load(Relaxed)
}

/// Whether `fd` is ours.
#[must_use]
#[inline]
pub fn is_hidden(fd: i32) -> bool {
    COUNT.load(Relaxed) != 0 && place(fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
}

/// The first hidden fd in `first..=last`.
pub fn next_hidden(first: u32, last: u32) -> Option<u32> {
    if COUNT.load(Relaxed) == 0 {
        return None;
    }
    let last = last.min(FDS as u32 - 1);
    let mut fd = first;
    while fd <= last {
        let rest = word(fd as usize / 64)?.load(Relaxed) >> (fd % 64);
        if rest != 0 {
            let found = fd + rest.trailing_zeros();
            return (found <= last).then_some(found);
        }
        fd = (fd / 64 + 1) * 64;
    }
    None
}

/// Moves a descriptor of ours out of the way of the app's, which expects low numbers, and hides it from the
/// app. The new one is close-on-exec. Keeps the old one if there is no room above. To be closed with
/// [`close_hidden`] and nothing else.
pub fn hide(fd: i32) -> i32 {
    let hidden = match high_twin(fd) {
        Some(high) => {
            let _ = sys::close(fd);
            high
        }
        None => {
            set_close_on_exec(fd, true);
            fd
        }
    };
    hidden_add(hidden);
    hidden
}

/// A hidden duplicate of `fd`; none if there is no room.
pub fn hidden_twin(fd: i32) -> Option<i32> {
    let hidden = high_twin(fd)?;
    hidden_add(hidden);
    Some(hidden)
}

/// A duplicate of `fd` where ours are; none if there is no room.
fn high_twin(fd: i32) -> Option<i32> {
    let below = |limit| duplicate(fd, hidden_from(limit), true).ok();
    // Another process may have lowered the limit.
    below(recent_descriptor_limit()).or_else(|| below(descriptor_limit()))
}

/// A hidden duplicate of `fd` that is good to have, but not needed; none when there is little room.
pub fn twin_to_keep(fd: i32) -> Option<i32> {
    let limit = recent_descriptor_limit();
    let twin = if may_keep_below(limit) { duplicate(fd, hidden_from(limit), true).ok()? } else { return None };
    hidden_add(twin);
    Some(twin)
}

/// Gives a hidden descriptor another number, among the last below `limit`. None, and it is closed, if there is no room,
/// or so little that the program would get other numbers than without us.
pub fn move_below(fd: i32, limit: usize) -> Option<i32> {
    /// Where the last numbers are some of many.
    const LIMIT_LEAST: usize = 64;
    let twin = if limit < LIMIT_LEAST { None } else { duplicate(fd, last_numbers(limit), true).ok() };
    close_hidden(fd);
    let twin = twin?;
    if twin as usize >= limit {
        let _ = sys::close(twin);
        return None;
    }
    hidden_add(twin);
    Some(twin)
}

/// Whether [`keep`] would keep one more, as far as the limit of a moment ago tells.
#[must_use]
pub fn has_room() -> bool {
    may_keep_below(recent_descriptor_limit())
}

/// Hides a descriptor that is good to have, but not needed: closes it when there is little room.
pub fn keep(fd: i32) -> Option<i32> {
    let limit = recent_descriptor_limit();
    let kept = if may_keep_below(limit) { duplicate(fd, hidden_from(limit), true).ok() } else { None };
    let _ = sys::close(fd);
    let hidden = kept?;
    hidden_add(hidden);
    Some(hidden)
}

/// Closes a hidden descriptor that is good to have, but not needed, when there is little room. Whether it is still
/// there.
pub fn keep_hidden(fd: i32) -> bool {
    let kept = may_keep();
    if !kept {
        close_hidden(fd);
    }
    kept
}

/// Whether there is room for a descriptor that is good to have, but not needed.
pub fn may_keep() -> bool {
    may_keep_below(descriptor_limit())
}

fn may_keep_below(limit: usize) -> bool {
    /// Numbers that are left to descriptors that are needed.
    const SPARED: usize = 16;
    (hidden_count() as usize).saturating_add(SPARED) < limit / 8 && !is_short()
}

/// Whether there are numbers to spare where descriptors of ours go.
pub fn has_spare() -> bool {
    let limit = descriptor_limit();
    let from = hidden_from(limit);
    // Any descriptor would do; one that is made for this is never the app's.
    let Ok(probe) = epoll_create().map(Fd::own) else { return false };
    let twin = duplicate(probe.get(), from, true).map(Fd::own);
    (probe.get() as usize) < last_numbers(limit) && twin.is_ok()
}

/// The last 128 numbers below the limit, or the last eighth of a small one, begin here.
fn last_numbers(limit: usize) -> usize {
    limit.saturating_sub((limit / 8).clamp(8, 128)).max(3)
}

/// Closes a descriptor that [`hide`] returned.
pub fn close_hidden(fd: i32) {
    hidden_remove(fd);
    let _ = sys::close(fd);
}

/// The first number for descriptors of ours: the last ones. Where the limit is large, they begin above what `select`
/// takes, and the program's come among them.
fn hidden_from(limit: usize) -> usize {
    if limit > LIMIT_LARGE { libc::FD_SETSIZE } else { last_numbers(limit) }
}

/// The program has run short of numbers, and we have given up some: it shall have them.
pub fn note_short() {
    SHORT_UNTIL_NS.store(now_ns().saturating_add(SHORT_NS), Relaxed);
}

fn is_short() -> bool {
    let until_ns = SHORT_UNTIL_NS.load(Relaxed);
    if until_ns != 0 && now_ns() >= until_ns {
        SHORT_UNTIL_NS.store(0, Relaxed);
        return false;
    }
    until_ns != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_numbers_are_found_in_order() {
        for fd in [100_000, 100_063, 100_064, 300_000] {
            hidden_add(fd);
        }
        assert!(is_hidden(100_063) && !is_hidden(100_062) && !is_hidden(-1) && !is_hidden(i32::MAX));
        assert_eq!(next_hidden(90_000, u32::MAX), Some(100_000));
        assert_eq!(next_hidden(100_001, u32::MAX), Some(100_063));
        assert_eq!(next_hidden(100_064, 100_064), Some(100_064));
        assert_eq!(next_hidden(100_065, 200_000), None);
        for fd in [100_000, 100_063, 100_064, 300_000] {
            hidden_remove(fd);
        }
        assert_eq!(next_hidden(90_000, u32::MAX), None);
    }
}
