//! How far `select` looks into its sets, what it leaves in them, and what it says of sets that are nowhere.

use super::{descriptors_allowed, pipe};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;
use std::ptr::null_mut;

const PAGE: usize = 4096;
const WORD_BITS: usize = u64::BITS as usize;
/// More than sets of `FD_SETSIZE` bits have, and no multiple of what a table has room for.
const MANY: i32 = 5_000;
/// Words of a set of `FD_SETSIZE` bits.
const WORDS: usize = libc::FD_SETSIZE / WORD_BITS;

/// `MANY` descriptors are allowed from now on: Beeline's own lie above `FD_SETSIZE` then.
fn allow_many() {
    let before = descriptors_allowed(None);
    assert!(before.rlim_max >= MANY as u64, "a hard limit of {MANY} descriptors");
    descriptors_allowed(Some(libc::rlimit { rlim_cur: MANY as u64, ..before }));
}

/// Two pages, of which only the first can be used, and that as `rights` say.
pub(super) fn page_before_nothing(rights: i32) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping, of which the second page is shut.
    unsafe {
        let start = libc::mmap(null_mut(), 2 * PAGE, rights, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(start.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
        start as usize
    }
}

fn put(set: &mut [u64], fd: i32) {
    set[fd as usize / WORD_BITS] |= 1 << (fd as usize % WORD_BITS);
}

fn has(set: &[u64], fd: i32) -> bool {
    set[fd as usize / WORD_BITS] & 1 << (fd as usize % WORD_BITS) != 0
}

/// A connection, client and server, of which the client has something to read, and the reading end of such a pipe.
fn with_news(v: Variant) -> (Fd, Fd, Fd) {
    let (client, server) = v.pair();
    let (reader, writer) = pipe();
    send(server, b"x", 0);
    write(writer, b"x");
    await_readable(client);
    (client, server, reader)
}

/// A program that says how many descriptors it may have, with sets of the usual size.
pub(super) fn count_beyond_the_set(v: Variant) {
    allow_many();
    let (client, server, reader) = with_news(v);
    for (name, fd) in [("client", client), ("server", server), ("pipe", reader)] {
        for (count, behind) in [(MANY, u64::MAX), (i32::MAX, 1 << 7)] {
            let mut memory = vec![behind; MANY as usize / WORD_BITS + 1];
            memory[..WORDS].fill(0);
            put(&mut memory, fd.raw);
            let at = memory.as_mut_ptr() as usize;
            trace!("{name} before what is none: {}", sys::select_at(count, [at, 0, 0], 0));
            trace!("set: {}, behind: {}", has(&memory, fd.raw), memory[WORDS..].iter().all(|word| *word == behind));
            memory[..WORDS].fill(0);
            put(&mut memory, fd.raw);
            trace!("likewise by pselect: {}", sys::pselect_at(count, [at, 0, 0]));
            trace!("set: {}, behind: {}", has(&memory, fd.raw), memory[WORDS..].iter().all(|word| *word == behind));
        }
        let start = page_before_nothing(libc::PROT_READ | libc::PROT_WRITE) + PAGE - WORDS * size_of::<u64>();
        // SAFETY: the last words of a page of ours.
        let set = unsafe { std::slice::from_raw_parts_mut(start as *mut u64, WORDS) };
        put(set, fd.raw);
        trace!("{name} before nothing: {}, set: {}", sys::select_at(MANY, [start, 0, 0], 0), has(set, fd.raw));
    }
}

/// A program with larger sets, and numbers that need them.
pub(super) fn sets_beyond_the_usual_size(v: Variant) {
    allow_many();
    let (client, _server, reader) = with_news(v);
    let (far, farther) = (3_500, 4_500);
    for (name, fd) in [("client", client), ("pipe", reader)] {
        // SAFETY: integers only.
        assert_eq!(unsafe { libc::dup2(fd.raw, far) }, far);
        let mut set = vec![0u64; MANY as usize / WORD_BITS + 1];
        for count in [MANY, far + 1, far + 2, 4096, far] {
            set.fill(0);
            put(&mut set, far);
            let found = sys::select_at(count, [set.as_mut_ptr() as usize, 0, 0], 0);
            trace!("{name} of {count}: {found}, set: {}", has(&set, far));
        }
        // SAFETY: integers only.
        assert_eq!(unsafe { libc::close(far) }, 0);
        set.fill(0);
        put(&mut set, far);
        let closed = sys::select_at(MANY, [set.as_mut_ptr() as usize, 0, 0], 0);
        trace!("{name}, closed: {closed}");
        // SAFETY: integers only.
        assert_eq!(unsafe { libc::dup2(fd.raw, farther) }, farther);
        set.fill(0);
        put(&mut set, farther);
        put(&mut set, fd.raw);
        let found = sys::select_at(MANY, [set.as_mut_ptr() as usize, 0, 0], 0);
        trace!("{name}, two: {found}, {} {}", has(&set, farther), has(&set, fd.raw));
        // SAFETY: integers only.
        assert_eq!(unsafe { libc::close(farther) }, 0);
    }
}

/// The last word of a set is written whole.
pub(super) fn bits_above_the_count(v: Variant) {
    let (client, server) = v.pair();
    let mut set = [0u64; WORDS];
    for is_ready in [false, true] {
        if is_ready {
            send(server, b"x", 0);
            await_readable(client);
        }
        let word = client.raw as usize / WORD_BITS;
        for in_which in 0..3 {
            set.fill(0);
            put(&mut set, client.raw);
            set[word] |= 1 << (WORD_BITS - 1);
            set[word + 1] = 5;
            let mut sets = [0; 3];
            sets[in_which] = set.as_mut_ptr() as usize;
            let found = sys::select_at(client.raw + 1, sets, 1);
            trace!("ready: {is_ready}, set {in_which}: {found}, itself: {}", has(&set, client.raw));
            trace!("above it: {}, behind: {}", set[word] >> (WORD_BITS - 1), set[word + 1]);
        }
    }
    set.fill(0);
    put(&mut set, client.raw);
    let at = set.as_mut_ptr() as usize;
    trace!("one set for two, and the last is not ready: {}", sys::select_at(client.raw + 1, [at, 0, at], 0));
    trace!("itself: {}", has(&set, client.raw));
    trace!("nothing is ready: {}", sys::select_at(client.raw + 1, [0, 0, at], 0));
}

/// Sets where nothing can be, before there are connections and after.
pub(super) fn bad_sets(v: Variant) {
    bad_sets_for(0);
    let (client, server) = v.pair();
    send(server, b"x", 0);
    await_readable(client);
    bad_sets_for(client.raw);
    let read_only = page_before_nothing(libc::PROT_READ);
    trace!("read only, empty: {}", sys::select_at(client.raw + 1, [0, 0, read_only], 0));
    let mut set = [0u64; WORDS];
    put(&mut set, client.raw);
    let at = set.as_mut_ptr() as usize;
    trace!("read only beside one: {}", sys::select_at(client.raw + 1, [at, 0, read_only], 0));
}

fn bad_sets_for(fd: i32) {
    let mut set = [0u64; WORDS];
    put(&mut set, fd);
    let good = set.as_mut_ptr() as usize;
    let shut = page_before_nothing(libc::PROT_READ) + PAGE;
    for bad in [0x10, usize::MAX - 100, 1 << 63, shut] {
        for sets in [[bad, 0, 0], [good, bad, 0], [good, 0, bad]] {
            trace!("{}, stays: {}", sys::select_at(fd + 1, sets, 0), has(&set, fd));
            trace!("by pselect: {}", sys::pselect_at(fd + 1, sets));
        }
        trace!("of none: {}, of too few: {}", sys::select_at(0, [bad, 0, 0], 0), sys::select_at(-1, [bad, 0, 0], 0));
        trace!("of very many: {}", sys::select_at(MANY, [bad, 0, 0], 0));
    }
}
