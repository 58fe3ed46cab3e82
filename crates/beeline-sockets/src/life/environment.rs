//! The environment of other programs: the library and its options stay in it.
//!
//! A program that starts another one with an environment of its own making means to hide its own variables, not to
//! take the library away. So what `beeline run` has put there is put back: our entry of `LD_PRELOAD`, beside any that
//! the program wants, and variables that begin with `BEELINE_`, unless the program sets them itself. The option
//! `follow` switches that off. A program that the library would harm ([`super::image`]) does not get our entry.
//!
//! 1. The values are copied when the process starts: programs overwrite the memory of their environment.
//! 2. An environment that has everything is passed on as it is.
//! 3. Another one is put together in memory of the calling thread's slot. It is used until `execve` has copied it, or
//!    the spawned process runs, and then again by the same thread: the child of a `vfork`, which has its parent's
//!    memory and number here, never returns to give it back.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use beeline_shm::sys;

use super::image::Image;
use crate::lock::exists;
use crate::thread;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const PREFIX: &[u8] = b"BEELINE_";
/// Room for the copies.
const KEPT_BYTES: usize = 4096;
/// Variables that are kept beside `LD_PRELOAD`.
const VARIABLES_MAX: usize = 8;
/// Threads that can put environments together at one time without losing the memory.
const SLOTS: usize = 16;

/// A null-terminated list of strings.
pub type List = *const *const c_char;

/// The variables of this process as it was started, each with its end.
struct Kept {
    ready: AtomicBool,
    bytes: UnsafeCell<[u8; KEPT_BYTES]>,
    /// Bytes of our entry in `LD_PRELOAD`, at the start of `bytes`; 0 if there is none.
    entry: AtomicUsize,
    /// Where in `bytes` a variable begins; 0 for none.
    variables: [AtomicUsize; VARIABLES_MAX],
}

// SAFETY: `bytes` is written once, before `ready` is stored, and only read afterwards.
unsafe impl Sync for Kept {}

static KEPT: Kept = Kept {
    ready: AtomicBool::new(false),
    bytes: UnsafeCell::new([0; KEPT_BYTES]),
    entry: AtomicUsize::new(0),
    variables: [const { AtomicUsize::new(0) }; VARIABLES_MAX],
};

struct Slot {
    /// The thread, 0 for none.
    tid: AtomicU32,
    memory: AtomicPtr<u8>,
    length: AtomicUsize,
}

static SLOT: [Slot; SLOTS] = [const {
    Slot { tid: AtomicU32::new(0), memory: AtomicPtr::new(core::ptr::null_mut()), length: AtomicUsize::new(0) }
}; SLOTS];

/// The strings of a list.
///
/// # Safety
/// `list` must be null or a null-terminated list of strings that outlive the result.
unsafe fn strings(list: List) -> impl Iterator<Item = &'static CStr> {
    let mut next = list;
    core::iter::from_fn(move || {
        // SAFETY: by the caller's word.
        unsafe {
            if next.is_null() || (*next).is_null() {
                return None;
            }
            let text = CStr::from_ptr(*next);
            next = next.add(1);
            Some(text)
        }
    })
}

/// Notes what the process was started with. `library` is the file name of this library as the dynamic linker knows it.
///
/// # Safety
/// `list` must be null or a null-terminated list of strings. No other call of this may run at the same time: it is for the
/// library's constructor alone.
pub unsafe fn note(list: List, library: &[u8]) {
    if KEPT.ready.load(Acquire) {
        return;
    }
    // SAFETY: by the caller's word nobody else writes, and nobody reads before `ready`, which is not set yet.
    let bytes = unsafe { &mut *KEPT.bytes.get() };
    let mut used = 0usize;
    let mut copy = |text: &[u8]| -> Option<usize> {
        let start = used;
        let end = start.checked_add(text.len())?;
        bytes.get_mut(start..end)?.copy_from_slice(text);
        *bytes.get_mut(end)? = 0;
        used = end.saturating_add(1);
        Some(start)
    };
    // SAFETY: by the caller's word.
    let preload = unsafe { strings(list) }.find_map(|text| text.to_bytes().strip_prefix(PRELOAD));
    let ours = preload.and_then(|value| entries(value).find(|entry| last_part(entry) == last_part(library)));
    let Some(ours) = ours else { return };
    if copy(ours).is_none() {
        return;
    }
    KEPT.entry.store(ours.len(), Relaxed);
    // SAFETY: by the caller's word.
    let variables = unsafe { strings(list) }.filter(|text| text.to_bytes().starts_with(PREFIX));
    for (place, text) in KEPT.variables.iter().zip(variables) {
        place.store(copy(text.to_bytes()).unwrap_or(0), Relaxed);
    }
    KEPT.ready.store(true, Release);
}

/// The entries of a list of libraries, ld.so(8).
fn entries(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| matches!(byte, b':' | b' ')).filter(|entry| !entry.is_empty())
}

fn last_part(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

fn key(variable: &[u8]) -> &[u8] {
    variable.split(|byte| *byte == b'=').next().unwrap_or_default()
}

fn kept_bytes() -> &'static [u8; KEPT_BYTES] {
    // SAFETY: callers have seen `ready`, so nobody writes any more.
    unsafe { &*KEPT.bytes.get() }
}

fn entry() -> &'static [u8] {
    kept_bytes().get(..KEPT.entry.load(Relaxed)).unwrap_or_default()
}

fn variables() -> impl Iterator<Item = &'static CStr> {
    KEPT.variables.iter().filter_map(|place| match place.load(Relaxed) {
        0 => None,
        start => CStr::from_bytes_until_nul(kept_bytes().get(start..)?).ok(),
    })
}

/// The list to start a program with instead of `list`. The same one if nothing is to be changed, or nothing can be.
///
/// # Safety
/// `list` must be null or a null-terminated list of strings. The result is valid as long as the list and until the
/// calling thread asks again.
pub unsafe fn kept(list: List, image: Image) -> List {
    if !KEPT.ready.load(Acquire) || !super::config().follow || !super::config().accelerate {
        return list;
    }
    // SAFETY: by the caller's word.
    let given = || unsafe { strings(list) };
    let preload = given().find_map(|text| text.to_bytes().strip_prefix(PRELOAD)).unwrap_or_default();
    let is_ours = |entry: &&[u8]| last_part(entry) == last_part(self::entry());
    let has_entry = entries(preload).any(|entry| is_ours(&entry));
    let wants_entry = image != Image::Harmed;
    let missing = |variable: &&CStr| !given().any(|text| key(text.to_bytes()) == key(variable.to_bytes()));
    if has_entry == wants_entry && !variables().any(|variable| missing(&variable)) {
        return list;
    }
    let pointers = given().count().saturating_add(VARIABLES_MAX + 2);
    let text_bytes = PRELOAD.len() + entry().len() + 1 + preload.len() + 1;
    let pointer_bytes = pointers.saturating_mul(size_of::<*const c_char>());
    let Some(memory) = slot(pointer_bytes.saturating_add(text_bytes)) else { return list };
    // SAFETY: as large as was asked for, page-aligned, and the calling thread's alone.
    let (target, text) = unsafe {
        let text = core::slice::from_raw_parts_mut(memory.add(pointer_bytes), text_bytes);
        (core::slice::from_raw_parts_mut(memory.cast::<*const c_char>(), pointers), text)
    };
    let ours = (wants_entry && !has_entry).then(entry);
    let theirs = entries(preload).filter(|entry| wants_entry || !is_ours(entry));
    let changed = (has_entry != wants_entry).then(|| join(text, ours.into_iter().chain(theirs))).flatten();
    let others = given().filter(|text| changed.is_none() || !text.to_bytes().starts_with(PRELOAD));
    let all = others.chain(variables().filter(missing)).map(CStr::as_ptr).chain(changed).chain([core::ptr::null()]);
    for (place, pointer) in target.iter_mut().zip(all) {
        *place = pointer;
    }
    target.as_ptr()
}

/// Writes `LD_PRELOAD` with these entries. There is room for all of them.
fn join<'a>(text: &mut [u8], entries: impl Iterator<Item = &'a [u8]>) -> Option<*const c_char> {
    let mut end = 0usize;
    let mut put = |part: &[u8]| {
        let next = end.checked_add(part.len())?;
        text.get_mut(end..next)?.copy_from_slice(part);
        end = next;
        Some(())
    };
    put(PRELOAD)?;
    for (index, entry) in entries.enumerate() {
        if index != 0 {
            put(b":")?;
        }
        put(entry)?;
    }
    put(b"\0")?;
    Some(text.as_ptr().cast())
}

/// Memory of at least `length` bytes for the calling thread.
fn slot(length: usize) -> Option<*mut u8> {
    let tid = thread::identity();
    let claim = |slot: &&Slot| {
        let owner = slot.tid.load(Relaxed);
        (owner == 0 || !exists(owner)) && slot.tid.compare_exchange(owner, tid, AcqRel, Relaxed).is_ok()
    };
    let own = SLOT.iter().find(|slot| slot.tid.load(Relaxed) == tid).or_else(|| SLOT.iter().find(claim));
    let length = length.next_multiple_of(4096);
    let Some(slot) = own else { return sys::map_private(length).ok() };
    if slot.length.load(Relaxed) < length {
        let memory = sys::map_private(length).ok()?;
        let old = slot.memory.swap(memory, Relaxed);
        let old_length = slot.length.swap(length, Relaxed);
        if !old.is_null() {
            // SAFETY: only this thread has used it, and it asks again.
            unsafe { sys::unmap(old, old_length) };
        }
    }
    Some(slot.memory.load(Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list for the calls above, which lives for ever.
    fn list(texts: &[&str]) -> List {
        let strings = texts.iter().map(|text| std::ffi::CString::new(*text).unwrap().into_raw().cast_const());
        Vec::leak(strings.chain([core::ptr::null()]).collect()).as_ptr()
    }

    fn result(texts: &[&str]) -> Vec<&'static str> {
        result_for(texts, Image::Takes)
    }

    fn result_for(texts: &[&str], image: Image) -> Vec<&'static str> {
        // SAFETY: a list that lives for ever.
        unsafe { strings(kept(list(texts), image)) }.map(|text| text.to_str().unwrap()).collect()
    }

    #[test]
    fn what_was_cleaned_away_is_put_back() {
        let mine = ["A=1", "LD_PRELOAD=/x/first.so:/lib/libbeeline.so", "BEELINE_OPTIONS=wait=wait", "BEELINE_X="];
        // SAFETY: a list that lives for ever.
        unsafe { note(list(&mine), b"/lib/libbeeline.so") };
        assert_eq!(result(&mine), mine);
        let back = ["BEELINE_OPTIONS=wait=wait", "BEELINE_X=", "LD_PRELOAD=/lib/libbeeline.so"];
        assert_eq!(result(&[]), back);
        assert_eq!(result(&["LD_PRELOAD="]), back);
        assert_eq!(
            result(&["LD_PRELOAD=/their.so", "BEELINE_OPTIONS=", "BEELINE_X=7"]),
            ["BEELINE_OPTIONS=", "BEELINE_X=7", "LD_PRELOAD=/lib/libbeeline.so:/their.so"]
        );
        assert_eq!(result(&["LD_PRELOAD=a.so libbeeline.so"]).len(), 3);
        assert_eq!(result_for(&mine, Image::Harmed), [mine[0], mine[2], mine[3], "LD_PRELOAD=/x/first.so"]);
        let many: Vec<String> = (0..2000).map(|index| format!("V{index}=x")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(result(&many).len(), 2003);
    }
}
