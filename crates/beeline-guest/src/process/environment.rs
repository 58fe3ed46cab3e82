//! What the process was started with: the library's own entry in `LD_PRELOAD`, and its options.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

pub const PRELOAD: &[u8] = b"LD_PRELOAD=";

pub const OPTIONS: &[u8] = b"BEELINE_OPTIONS=";

/// Room for the copies: a path, and a list of options as long as the command writes it
/// ([`beeline_stats::tunables::rules::LIST_BYTES_MAX`]).
pub const KEPT_BYTES: usize = 8192;

const _: () =
    assert!(beeline_stats::tunables::rules::LIST_BYTES_MAX + OPTIONS.len() + (libc::PATH_MAX as usize) < KEPT_BYTES);

/// A null-terminated list of strings.
pub type List = *const *const c_char;

/// What this process was started with.
struct Kept {
    ready: AtomicBool,
    /// Our entry in `LD_PRELOAD`, and behind it the variable with the options; each ends in a zero.
    bytes: UnsafeCell<[u8; KEPT_BYTES]>,
    entry_bytes: AtomicUsize,
}

// SAFETY: `bytes` is written once, before `ready` is stored, and only read afterwards.
unsafe impl Sync for Kept {}

static KEPT: Kept =
    Kept { ready: AtomicBool::new(false), bytes: UnsafeCell::new([0; KEPT_BYTES]), entry_bytes: AtomicUsize::new(0) };

/// The strings of a list.
///
/// # Safety
/// `list` must be null or a null-terminated list of strings that outlive the result.
pub unsafe fn strings(list: List) -> impl Iterator<Item = &'static CStr> {
    let mut next = list;
    core::iter::from_fn(move || {
        // SAFETY: the caller guarantees it.
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
/// True if the library came by its environment.
///
/// # Safety
/// `list` must be null or a null-terminated list of strings. No other call of this may run at the same time: it is for
/// the library's constructor alone.
pub unsafe fn note(list: List, library: &[u8]) -> bool {
    if KEPT.ready.load(Acquire) {
        return false;
    }
    // SAFETY: the caller guarantees it.
    let given = || unsafe { strings(list) }.map(CStr::to_bytes);
    let mut preloads = given().filter_map(|text| text.strip_prefix(PRELOAD));
    let is_ours = |entry: &&[u8]| last_part(entry) == last_part(library);
    let Some(ours) = preloads.find_map(|value| entries(value).find(is_ours)) else { return false };
    let options = given().find(|text| text.starts_with(OPTIONS)).unwrap_or(OPTIONS);
    // SAFETY: the caller guarantees that nobody else writes, and nobody reads before `ready`, which is not set yet.
    let bytes = unsafe { &mut *KEPT.bytes.get() };
    let options_at = ours.len() + 1;
    // The last byte stays zero, and the one between them.
    if options_at + options.len() >= KEPT_BYTES {
        return false;
    }
    let Some(place) = bytes.get_mut(..ours.len()) else { return false };
    place.copy_from_slice(ours);
    let Some(place) = bytes.get_mut(options_at..).and_then(|rest| rest.get_mut(..options.len())) else { return false };
    place.copy_from_slice(options);
    KEPT.entry_bytes.store(ours.len(), Relaxed);
    KEPT.ready.store(true, Release);
    true
}

/// The entries of a list of libraries, ld.so(8).
pub fn entries(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| matches!(byte, b':' | b' ')).filter(|entry| !entry.is_empty())
}

pub fn last_part(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

fn kept_bytes() -> &'static [u8; KEPT_BYTES] {
    // SAFETY: callers have seen `ready`, so nobody writes any more.
    unsafe { &*KEPT.bytes.get() }
}

pub fn entry() -> &'static [u8] {
    kept_bytes().get(..KEPT.entry_bytes.load(Relaxed)).unwrap_or_default()
}

/// The same as a path.
pub fn entry_path() -> &'static CStr {
    CStr::from_bytes_until_nul(kept_bytes()).unwrap_or_default()
}

/// The variable with the options.
pub fn options_variable() -> &'static CStr {
    let rest = kept_bytes().get(KEPT.entry_bytes.load(Relaxed).saturating_add(1)..);
    rest.and_then(|rest| CStr::from_bytes_until_nul(rest).ok()).unwrap_or_default()
}

/// The options that the process was started with, if the library came by its environment.
pub(crate) fn options() -> Option<&'static [u8]> {
    if KEPT.ready.load(Acquire) { options_variable().to_bytes().strip_prefix(OPTIONS) } else { None }
}

unsafe extern "C" {
    static environ: *const *const libc::c_char;
}

/// The value of an environment variable; `name` ends in `=`. Not by `getenv`, which the app may interpose, as shells
/// do.
pub fn variable(name: &[u8]) -> Option<&'static [u8]> {
    // SAFETY: libc's variable; its value is null or a null-terminated array of strings, which nobody changes
    // while the process starts.
    unsafe { strings(environ) }.find_map(|text| text.to_bytes().strip_prefix(name))
}

/// Whether the library came by the environment.
pub fn is_kept() -> bool {
    KEPT.ready.load(Acquire)
}
