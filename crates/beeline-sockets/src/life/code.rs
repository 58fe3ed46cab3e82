//! Code that goes past our hooks.
//!
//! A program, or a library it has loaded, may ask the kernel itself, without the C library: for rings of io_uring(7),
//! for readiness, for a connection's bytes. No hook hears of that, and an anchor is not what the kernel is asked about
//! then. So before the process gets its first lane its text is searched for such calls. Who carries one gets no lanes,
//! whether it makes it or not: when it makes it, it is too late to know.
//!
//! # What is found
//!
//! 1. In text of any loaded object that can be read: calls that are told by their number ([`text`]). For a ring the
//!    reason is `io_uring_carried`, for what [`calls`] lists `raw_system_calls`. So it is for a place that makes
//!    whatever call it is asked to, which is how Go does it.
//! 2. liburing and rings that are there already ([`rings`]).
//!
//! The C library, its dynamic linker and this library make calls for others and are left out ([`is_system`]). So are
//! liburing, and libaio where somebody needs it by name and so comes to our hook. An object that stops and reads
//! processes (ptrace(2)), as reporters of crashes and profilers of memory do, also reads, writes and closes files of
//! its own; such calls mean nothing there ([`Carried::reason`]).
//!
//! Not found are calls that are put together while the program runs, code that libc loads by itself later, and on other
//! machines than x86-64 any calls in text.
//!
//! # When
//!
//! A search costs some milliseconds in a large program, so it is not made when the library starts, but where the
//! process is about to get something to do with lanes ([`allow_lanes`]): once, and what is new after it has loaded
//! something, unless it had that before ([`super::cleared`]), or another process of the user has searched it.
//! No lock of ours is held meanwhile: the dynamic linker has its own, and others wait for ours while they hold that.
//! Threads that come here together search each for itself.
//!
//! Only a program made by Go is searched when it starts ([`look_at_program`]): it would never come to a hook, and
//! nobody could see why.

use core::ops::ControlFlow;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_stats::Reason;

use super::cleared::shared::Shared;
use super::cleared::{CLEARED, number_of};
use super::objects::{self, Object, Seen};
use super::text::{self, Carried};
use super::{may_accelerate, relay, rings};
use crate::process;

/// How often the program has loaded code, or may have; and how often it had when the text was searched and nothing
/// found.
#[unsafe(link_section = ".fork")]
static LOADS: AtomicU32 = AtomicU32::new(1);
#[unsafe(link_section = ".fork")]
static CLEAN_AT: AtomicU32 = AtomicU32::new(0);
/// Threads that search.
#[unsafe(link_section = ".fork")]
static SEARCHERS: AtomicU32 = AtomicU32::new(0);
/// The objects that were searched then, packed.
#[unsafe(link_section = ".fork")]
static CLEAN: AtomicU64 = AtomicU64::new(0);

/// Whether the process may have lanes, as far as its code tells; gives up those it has if not. To be asked before it
/// gets something to do with lanes, outside of `changing`.
#[must_use]
pub fn allow_lanes() -> bool {
    if !may_accelerate() {
        return false;
    }
    is_clean() || search()
}

/// Lanes came from elsewhere, to a program that makes some itself or to one that does not: they are given up if the
/// process may have none.
pub(crate) fn settle_lanes() {
    if let Some(reason) = process::reason_left() {
        leave(reason);
    } else if !process::has_stopped() && !is_clean() {
        search();
    }
}

/// At the start: a program that will never call us, because its language goes to the kernel itself, leaves a statistics
/// file that says so.
pub(super) fn look_at_program() {
    let mut is_go = false;
    objects::each(|program| {
        is_go = program.notes().any(is_by_go);
        ControlFlow::Break(())
    });
    if is_go && !allow_lanes() && process::reason_left().is_some() {
        crate::stats::appear();
    }
}

/// Whether this is the note with the build's number that Go's linker puts into programs: length of its name, of its
/// content, its kind, which is 4, and its name (`cmd/link/internal/ld/elf.go`).
fn is_by_go(note: &[u8]) -> bool {
    const KIND: [u8; 4] = 4u32.to_le_bytes();
    const NAME: [u8; 4] = *b"Go\0\0";
    matches!(note.as_chunks::<4>().0, [length, _, kind, name, ..] if *length == KIND && *kind == KIND && *name == NAME)
}

/// The program loads something, or uses what it has loaded.
pub fn code_is_loaded() {
    LOADS.fetch_add(1, Release);
}

/// How often the program has loaded something, or may have, as far as that is looked at: never 0.
#[must_use]
pub fn loads() -> u32 {
    LOADS.load(Acquire)
}

fn is_clean() -> bool {
    CLEAN_AT.load(Acquire) == LOADS.load(Acquire)
}

/// Before a fork: what has been loaded since the last search is searched here, because the child takes over what was
/// found. So is everything if another thread is about to search it for the first time.
pub(super) fn before_fork() {
    if (CLEAN_AT.load(Relaxed) != 0 || is_being_searched()) && !is_clean() && may_accelerate() {
        search();
    }
}

/// Whether a first search is under way, which a fork should wait for.
pub(super) fn is_being_searched() -> bool {
    CLEAN_AT.load(Relaxed) == 0 && SEARCHERS.load(Acquire) != 0 && may_accelerate()
}

/// In the child of a fork: another thread may have held the dynamic linker's lock, which nobody gives back here. If it
/// was in the first search, nobody knows what it would have found: the child gets no lanes.
pub(super) fn forked() {
    let unknown = is_being_searched();
    if SEARCHERS.load(Relaxed) != 0 {
        SEARCHERS.store(0, Relaxed);
    }
    if unknown {
        leave(Reason::Internal);
    }
    if unknown || CLEAN_AT.load(Relaxed) != 0 && !is_clean() {
        CLEAN_AT.store(LOADS.load(Relaxed), Relaxed);
    }
}

#[cold]
fn search() -> bool {
    SEARCHERS.fetch_add(1, Release);
    let clean = search_now();
    SEARCHERS.fetch_sub(1, Release);
    clean
}

fn search_now() -> bool {
    let loads = LOADS.load(Acquire);
    let (clean, seen) = (Seen::unpack(CLEAN.load(Acquire)), objects::seen());
    if clean != seen {
        let mut search = Search::new(Shared::read());
        objects::each_since(clean, |object, is_new| search.look_at(object, is_new));
        search.shared.write();
        if let Some(reason) = search.reason() {
            leave(reason);
            return false;
        }
        if rings::has_unknown_ring() {
            leave(Reason::IoUringCarried);
            return false;
        }
    }
    CLEAN.store(seen.pack(), Release);
    CLEAN_AT.store(loads, Release);
    may_accelerate()
}

fn leave(reason: Reason) {
    if let Err(reason) = relay::leave_lanes(reason) {
        crate::stats::fell_back(beeline_stats::Role::Client, reason);
    }
}

struct Search {
    own: Option<Reason>,
    liburing: bool,
    needed: bool,
    libaio: bool,
    libaio_is_needed: bool,
    shared: Shared,
}

impl Search {
    fn new(shared: Shared) -> Self {
        Self { own: None, liburing: false, needed: false, libaio: false, libaio_is_needed: false, shared }
    }

    fn reason(&self) -> Option<Reason> {
        let by_hand = self.liburing && !self.needed;
        let libaio_by_hand = self.libaio && !self.libaio_is_needed;
        self.own.or(by_hand.then_some(Reason::IoUringCarried)).or(libaio_by_hand.then_some(Reason::RawSystemCalls))
    }

    /// Looks at an object; at the text of one that is new.
    fn look_at(&mut self, object: &Object, is_new: bool) -> ControlFlow<()> {
        self.needed |= rings::needs_liburing(object);
        self.libaio_is_needed |= rings::needs_libaio(object);
        if rings::is_liburing(object.name()) {
            self.liburing |= !is_new || carried(object).has_rings();
        } else if rings::is_libaio(object.name()) {
            self.libaio = true;
        } else if is_new && !is_system(object) {
            self.own = carried_by(object, &mut self.shared);
        }
        if self.own.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Why an object keeps the process from having lanes, if it does. One that was found to carry nothing is known by its
/// number when it is loaded again, here or by another process.
fn carried_by(object: &Object, shared: &mut Shared) -> Option<Reason> {
    let Some(number) = number_of(object) else { return carried(object).reason() };
    if CLEARED.has(number) {
        return None;
    }
    if !shared.has(number) {
        if let Some(reason) = carried(object).reason() {
            return Some(reason);
        }
        shared.add(number);
    }
    CLEARED.add(number);
    None
}

/// What the text of an object carries.
fn carried(object: &Object) -> Carried {
    let mut carried = Carried::default();
    for segment in object.segments(libc::PT_LOAD) {
        if segment.p_flags & (libc::PF_X | libc::PF_R) != libc::PF_X | libc::PF_R {
            continue;
        }
        let (start, length) = (object.address(segment), segment.p_filesz as usize);
        // This library hands calls on for others.
        if (allow_lanes as fn() -> bool as usize).wrapping_sub(start) < length {
            continue;
        }
        // SAFETY: a loaded segment, which can be read, and which nothing unmaps while it is listed. The dynamic linker
        // may be relocating text of an object that another thread loads: then a search finds what is there.
        text::look(unsafe { core::slice::from_raw_parts(start as *const u8, length) }, &mut carried);
    }
    carried
}

unsafe extern "C" {
    /// Of the C library, whose address nobody else has a use for.
    fn gnu_get_libc_version() -> *const libc::c_char;
    /// Of the dynamic linker, whatever the program calls it itself.
    fn __tls_get_addr(index: *mut libc::c_void) -> *mut libc::c_void;
}

/// Whether an object is a part of the C library that makes its system calls: by its name, and by its being the one that
/// is bound in this process. What only bears the name is searched as any other.
fn is_system(object: &Object) -> bool {
    // The threads' library had calls of its own before glibc 2.34.
    const NAMES: [&[u8]; 3] = [b"libc.so.6", b"ld-linux", b"libpthread.so.0"];
    let bound = [
        gnu_get_libc_version as *const () as usize,
        __tls_get_addr as *const () as usize,
        libc::pthread_create as *const () as usize,
    ];
    object.soname().is_some_and(|soname| NAMES.iter().any(|name| soname.starts_with(name)))
        && (bound.iter().any(|&function| object.holds(libc::PT_LOAD, function)) || is_interpreter(object))
}

/// Whether the kernel has loaded an object as the program's interpreter.
fn is_interpreter(object: &Object) -> bool {
    // SAFETY: it only looks into a list that the kernel has given.
    let base = unsafe { libc::getauxval(libc::AT_BASE) };
    base != 0 && base == object.base()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_carries_nothing() {
        let mut search = Search::new(Shared::none());
        let (mut objects, mut system) = (0, 0);
        objects::each(|object| {
            objects += 1;
            system += usize::from(is_system(object));
            search.look_at(object, true)
        });
        assert_eq!(search.reason(), None);
        // The C library and the dynamic linker.
        assert!(objects >= 3 && system == 2, "{system} of {objects}");
    }

    #[test]
    fn programs_by_go_are_known_by_their_note() {
        assert!(is_by_go(b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0GJGUK9r8ATFLXoLO"));
        assert!(!is_by_go(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0\xcb\x84\x54\xb1"));
        assert!(!is_by_go(b"\x04\0\0\0\x14\0\0\0\x04\0\0\0G") && !is_by_go(b""));
    }

    #[test]
    fn the_c_library_would_be_found() {
        let mut found = 0;
        objects::each(|object| {
            found += usize::from(is_system(object) && carried(object).reason() == Some(Reason::RawSystemCalls));
            ControlFlow::Continue(())
        });
        assert_eq!(found, if cfg!(target_arch = "x86_64") { 2 } else { 0 });
    }
}
