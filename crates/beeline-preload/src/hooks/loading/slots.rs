//! The references of objects that are bound deeply: past us, to libc's functions.
//!
//! 1. Only what a load has brought is touched: the library and what it needs, as far as it stands behind it in the
//!    list. All that is relocated when dlopen(3) returns; what other threads are loading may not be, and is theirs to
//!    turn.
//! 2. A reference that is bound to libc's function is bound to ours. One that is bound at its first call is, too, if
//!    its name would give libc's. References to anything else are left alone: who brings a `send` of its own means it.
//! 3. Nothing is looked up or written while objects are listed: the dynamic linker takes its locks in another order.
//!    They stay where they are afterwards, as the load is not yet anybody else's to undo.
//! 4. Threads that load the same library turn it both. One writes at a time, so that none closes a page that another
//!    has opened.

use core::mem::{MaybeUninit, size_of};
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use beeline_sockets::life;
use beeline_sockets::life::objects::{self, Object};
use libc::{c_int, c_void};

use super::twins::{self, Twin};
use crate::real::look_up;

/// `Elf64_Rela` of elf(5).
#[repr(C)]
struct Reference {
    place: u64,
    info: u64,
    addend: i64,
}

/// `Elf64_Sym` of elf(5).
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// The beginning of `struct link_map`, of dlinfo(3).
#[repr(C)]
struct Link {
    base: u64,
}

const DT_PLTRELSZ: u64 = 2;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;

/// Kinds of references: one that may be bound at its first call; and others, in the table of addresses or in data.
#[cfg(target_arch = "x86_64")]
const KINDS: [u32; 3] = [7, 6, 1];
#[cfg(target_arch = "aarch64")]
const KINDS: [u32; 3] = [1026, 1025, 257];

/// The most objects that one load may bring, or find behind it.
const MEMBERS_MAX: usize = 128;

/// What one load has brought.
struct Members {
    objects: [MaybeUninit<Object>; MEMBERS_MAX],
    count: usize,
}

/// Turns the references of what the load of `handle` has brought; false if some could not be, or if it brings rings of
/// io_uring that our hooks do not hear of. To be called after [`twins::know`].
///
/// # Safety
/// `handle` must be one that dlopen(3) has returned to the caller, who keeps it.
pub unsafe fn turn(handle: *mut c_void) -> bool {
    let mut link: *const Link = core::ptr::null();
    // SAFETY: the caller guarantees it, and there is room for the answer.
    if unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut link).cast()) } != 0 || link.is_null() {
        return false;
    }
    // SAFETY: what dlinfo has told.
    let base = unsafe { (*link).base };
    let mut members = Members { objects: [const { MaybeUninit::uninit() }; MEMBERS_MAX], count: 0 };
    let mut is_whole = true;
    // What is needed stands behind who needs it, unless it was there before.
    objects::each(|object| {
        if members.count == 0 && object.base() == base || members.need(object) {
            is_whole = members.add(object);
        }
        if is_whole { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    for object in members.iter() {
        is_whole &= !object.needed().any(|name| name.starts_with(b"liburing"));
        is_whole &= references(object).all(|reference| turn_one(object, reference, handle));
    }
    // A name that was not found is nothing that dlerror(3) should tell.
    // SAFETY: a handle of the dynamic linker.
    unsafe { look_up(libc::RTLD_DEFAULT, c"dlopen") };
    is_whole
}

impl Members {
    fn iter(&self) -> impl Iterator<Item = &Object> {
        // SAFETY: so many were added.
        self.objects.iter().take(self.count).map(|object| unsafe { object.assume_init_ref() })
    }

    fn need(&self, object: &Object) -> bool {
        self.iter().any(|member| member.needed().any(|name| object.is_called(name)))
    }

    fn add(&mut self, object: &Object) -> bool {
        let Some(place) = self.objects.get_mut(self.count) else { return false };
        place.write(*object);
        self.count = self.count.wrapping_add(1);
        true
    }
}

/// An object's references of the kinds that may be to functions.
fn references(object: &Object) -> impl Iterator<Item = &Reference> {
    let tables = [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)].into_iter().filter_map(|(table, size)| {
        let (table, bytes) = (object.pointer(table)?, object.entry(size)?);
        let count = (bytes as usize).checked_div(size_of::<Reference>()).unwrap_or(0);
        // SAFETY: the object's table, which stays mapped while it is loaded.
        Some(unsafe { core::slice::from_raw_parts(table as *const Reference, count) })
    });
    let is_plain = |reference: &&Reference| KINDS.contains(&(reference.info as u32)) && reference.addend == 0;
    tables.flatten().filter(is_plain)
}

/// Turns a reference, if it is one past us; false if it cannot be turned.
fn turn_one(object: &Object, reference: &Reference, handle: *mut c_void) -> bool {
    let place = object.place(reference.place);
    if !place.is_multiple_of(size_of::<AtomicUsize>()) || !object.holds(libc::PT_LOAD, place) {
        return true;
    }
    // SAFETY: where the dynamic linker has written an address.
    let slot = unsafe { &*(place as *const AtomicUsize) };
    let bound = slot.load(Relaxed);
    let waits = reference.info as u32 == KINDS[0] && object.holds(libc::PT_LOAD, bound);
    let twin = if waits { will_be_bound(object, reference, handle) } else { twins::of_libcs(bound) };
    // Threads that call through it meanwhile call the one or the other.
    twin.is_none_or(|twin| write(object, slot, twin.ours() as usize))
}

/// Our function, if a reference that waits for its first call would be bound to libc's.
fn will_be_bound(object: &Object, reference: &Reference, handle: *mut c_void) -> Option<&'static Twin> {
    let symbols = object.pointer(DT_SYMTAB)? as *const Symbol;
    // SAFETY: the object's table of symbols has those that its references name, and its table of strings their names.
    let name = unsafe { object.string((*symbols.add((reference.info >> 32) as usize)).name.into()) };
    // SAFETY: by the word of the caller of `turn`.
    twins::named(name.to_bytes()).filter(|twin| twin.is_libcs(unsafe { look_up(handle, name) } as usize))
}

/// Writes a slot, which the dynamic linker may have closed after it had bound it.
fn write(object: &Object, slot: &AtomicUsize, address: usize) -> bool {
    let place = slot.as_ptr() as usize;
    let is_open = object.segments(libc::PT_LOAD).any(|segment| {
        segment.p_flags & libc::PF_W != 0 && place.wrapping_sub(object.address(segment)) < segment.p_memsz as usize
    });
    if !is_open {
        // A reference in text.
        return false;
    }
    // SAFETY: a plain question.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let page_of = |address: usize| address & !page_bytes.wrapping_sub(1);
    let page = page_of(place);
    // The page in which the closed part ends is open.
    let is_closed = object.segments(libc::PT_GNU_RELRO).any(|segment| {
        let start = object.address(segment);
        (page_of(start)..page_of(start.wrapping_add(segment.p_memsz as usize))).contains(&page)
    });
    let protect = |protection: c_int| {
        // SAFETY: a page of an object's table of addresses, which only the dynamic linker and this write.
        !is_closed || unsafe { libc::mprotect(page as *mut c_void, page_bytes, protection) } == 0
    };
    let _changing = life::changing();
    if !protect(libc::PROT_READ | libc::PROT_WRITE) {
        return false;
    }
    slot.store(address, Relaxed);
    protect(libc::PROT_READ)
}
