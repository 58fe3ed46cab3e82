//! `select` and `pselect`, by way of `poll`.

use libc::{POLLERR, POLLHUP, POLLNVAL, POLLPRI, fd_set, pollfd};

use super::{READABLE, WRITABLE, deadline, places, scan, scratch};
use crate::app_memory::{bogus, is_bogus_room};
use crate::desc::{Desc, Kind};
use crate::operations::Adopt;
use crate::{Outcome, kernel, process, table, upkeep};

/// What makes an fd readable, writable and exceptional to select(2) (Linux fs/select.c).
const READ: i16 = READABLE | POLLHUP | POLLERR | POLLNVAL;
const WRITE: i16 = WRITABLE | POLLERR | POLLNVAL;
const EXCEPT: i16 = POLLPRI | POLLNVAL;
const WORD_BITS: usize = u64::BITS as usize;

/// The three sets of a call, as words.
struct Sets {
    words: [*mut u64; 3],
    fds: usize,
}

impl Sets {
    fn has(&self, set: usize, fd: usize) -> bool {
        let words = self.words[set];
        // SAFETY: the caller of `select` vouched for `fds` bits in each set that is not null.
        !words.is_null() && unsafe { words.add(fd / WORD_BITS).read_unaligned() } & 1 << (fd % WORD_BITS) != 0
    }

    fn wanted(&self, fd: usize) -> [bool; 3] {
        [self.has(0, fd), self.has(1, fd), self.has(2, fd)]
    }

    fn members(&self) -> impl Iterator<Item = usize> {
        (0..self.fds).filter(|fd| self.wanted(*fd) != [false; 3])
    }

    /// How many words the kernel reads and writes of each.
    fn length(&self) -> usize {
        self.fds.div_ceil(WORD_BITS)
    }

    /// Whether one of them is where `is_bogus` says that none can be.
    fn any(&self, is_bogus: impl Fn(usize, usize) -> bool) -> bool {
        let bytes = self.length() * size_of::<u64>();
        self.words.iter().any(|words| !words.is_null() && is_bogus(*words as usize, bytes))
    }

    /// Leaves only the bits that are ready. As in the kernel, words are written whole, one set after the other, which
    /// may be the same one.
    fn put(&self, fds: &[pollfd]) {
        for (set, words) in self.words.into_iter().enumerate().filter(|(_, words)| !words.is_null()) {
            for index in 0..self.length() {
                // SAFETY: as in `has`.
                unsafe { words.add(index).write_unaligned(0) }
            }
            for entry in fds.iter().filter(|entry| ready(entry)[set]) {
                let fd = fd_of(entry);
                // SAFETY: as in `has`.
                unsafe {
                    let word = words.add(fd / WORD_BITS);
                    word.write_unaligned(word.read_unaligned() | 1 << (fd % WORD_BITS));
                }
            }
        }
    }
}

/// In which sets an entry is ready, of those that it is in.
fn ready(entry: &pollfd) -> [bool; 3] {
    [(READABLE, READ), (WRITABLE, WRITE), (POLLPRI, EXCEPT)]
        .map(|(asked, told)| entry.events & asked != 0 && entry.revents & told != 0)
}

/// The member that an entry is about, also of one that is left out.
fn fd_of(entry: &pollfd) -> usize {
    (if entry.fd < 0 { -1 - entry.fd } else { entry.fd }) as usize
}

/// `select(2)`. Linux leaves the time that was not slept in `timeout`.
///
/// # Safety
/// The sets must be null or hold `count` bits; `timeout` must be null or valid, as for select(2).
pub(crate) unsafe fn select(count: i32, sets: [*mut fd_set; 3], timeout: *mut libc::timeval, adopt: Adopt) -> Outcome {
    // SAFETY: null or valid, as the caller guarantees.
    let given = unsafe { timeout.as_mut() };
    let relative = match &given {
        Some(time) if time.tv_sec < 0 || time.tv_usec < 0 => return Outcome::Kernel,
        Some(time) => Some(libc::timespec {
            tv_sec: time.tv_sec.wrapping_add(time.tv_usec / 1_000_000),
            tv_nsec: time.tv_usec % 1_000_000 * 1_000,
        }),
        None => None,
    };
    let start = kernel::now_ns();
    // SAFETY: forwarded from the caller.
    let outcome = unsafe { run(count, sets, relative.as_ref(), None, adopt) };
    if outcome != Outcome::Kernel
        && let (Some(time), Some(relative)) = (given, relative)
    {
        let total = (relative.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(relative.tv_nsec as u64);
        let left_us = total.saturating_sub(kernel::now_ns() - start) / 1_000;
        (time.tv_sec, time.tv_usec) = ((left_us / 1_000_000) as i64, (left_us % 1_000_000) as i64);
    }
    outcome
}

/// `pselect(2)`.
///
/// # Safety
/// As for [`select`]; `mask` must be null or a valid signal set.
pub(crate) unsafe fn pselect(
    count: i32,
    sets: [*mut fd_set; 3],
    timeout: *const libc::timespec,
    mask: *const u8,
    adopt: Adopt,
) -> Outcome {
    // SAFETY: null or valid, as the caller guarantees.
    let (timeout, mask) = unsafe { (timeout.as_ref(), mask.cast::<u64>().as_ref()) };
    // SAFETY: forwarded from the caller.
    unsafe { run(count, sets, timeout, mask, adopt) }
}

/// # Safety
/// The sets must be null or hold `count` bits.
unsafe fn run(
    count: i32,
    sets: [*mut fd_set; 3],
    timeout: Option<&libc::timespec>,
    mask: Option<&u64>,
    adopt: Adopt,
) -> Outcome {
    if !(1..=1 << 20).contains(&count) || process::is_sealed() {
        return Outcome::Kernel;
    }
    let sets = Sets { words: sets.map(|set| set.cast()), fds: count as usize };
    if sets.any(bogus) {
        return Outcome::Kernel;
    }
    let (mut members, mut ours, mut listeners) = (0, 0, 0);
    for fd in sets.members() {
        members += 1;
        match table::get(fd as i32).map(Desc::kind) {
            Some(Kind::Lane | Kind::Epoll | Kind::Orphan) => ours += 1,
            Some(Kind::Listener) => listeners += 1,
            _ => listeners += usize::from(adopt(fd as i32)),
        }
    }
    if ours + listeners == 0 && upkeep::due_ns().is_none() {
        return Outcome::Kernel;
    }
    let deadline = match deadline(timeout) {
        Ok(deadline) => deadline,
        Err(errno) => return Outcome::Fail(errno),
    };
    scratch::with(members + places(members, listeners), scratch::NONE, |room| {
        let (fds, shadow) = room.split_at_mut(members);
        wait(&sets, fds, shadow, deadline, mask)
    })
}

/// Polls the members of the sets. `fds` has room for one entry each.
fn wait(sets: &Sets, fds: &mut [pollfd], shadow: &mut [pollfd], deadline: Option<u64>, mask: Option<&u64>) -> Outcome {
    for (entry, fd) in fds.iter_mut().zip(sets.members()) {
        let [read, write, except] = sets.wanted(fd);
        let events = (i16::from(read) * READABLE) | (i16::from(write) * WRITABLE) | (i16::from(except) * POLLPRI);
        *entry = pollfd { fd: fd as i32, events, revents: 0 };
    }
    // poll(2) reports hang-ups that select(2) was not asked for; a call that only got those goes on waiting.
    let mut waited = false;
    loop {
        match scan(fds, shadow, deadline, mask, &mut waited) {
            Outcome::Done(_) => {}
            other => return other,
        }
        // What is closed only while the call waits is ready.
        if !waited && fds.iter().any(|entry| entry.revents & POLLNVAL != 0) {
            return Outcome::fail(libc::EBADF);
        }
        let timed_out = fds.iter().all(|entry| entry.revents == 0);
        let bits = fds.iter().flat_map(ready).filter(|is_ready| *is_ready).count();
        if bits != 0 || timed_out || deadline == Some(0) {
            if sets.any(is_bogus_room) {
                return Outcome::fail(libc::EFAULT);
            }
            sets.put(fds);
            return Outcome::Done(bits as isize);
        }
        // Only unasked hang-ups: nobody can wait for those, so leave such fds out.
        fds.iter_mut().filter(|entry| entry.revents != 0).for_each(|entry| entry.fd = -1 - entry.fd);
    }
}
