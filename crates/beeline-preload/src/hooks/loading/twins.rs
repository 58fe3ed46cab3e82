//! Our functions, each with libc's of the same name.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{
    AtomicBool, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};

use super::next::open;
use crate::real::look_up;

/// What this library exports, sorted.
const EXPORTS: &str = include_str!("../../exports.txt");
const COUNT: usize = 144;
/// Where each name begins.
#[allow(clippy::indexing_slicing, reason = "done while compiling")]
const STARTS: [u16; COUNT] = {
    let mut starts = [0; COUNT];
    let (names, mut index, mut place) = (EXPORTS.as_bytes(), 0, 0);
    while index < COUNT {
        starts[index] = place as u16;
        let start = place;
        while names[place] != b'\n' {
            place += 1;
        }
        assert!(place - start < NAME_BYTES);
        place += 1;
        index += 1;
    }
    assert!(place == names.len());
    starts
};
/// Room for the longest name and its end.
const NAME_BYTES: usize = 48;

/// A function of ours.
pub struct Twin {
    ours: AtomicPtr<c_void>,
    libcs: AtomicPtr<c_void>,
    /// Whether ours calls libc's, and no other library's that comes between.
    is_next: AtomicBool,
}

static TWINS: [Twin; COUNT] = [const { Twin::unknown() }; COUNT];
static ARE_KNOWN: AtomicBool = AtomicBool::new(false);

impl Twin {
    const fn unknown() -> Self {
        const NOWHERE: *mut c_void = core::ptr::null_mut();
        Self { ours: AtomicPtr::new(NOWHERE), libcs: AtomicPtr::new(NOWHERE), is_next: AtomicBool::new(false) }
    }

    /// Our function; null if it cannot be found.
    pub fn ours(&self) -> *mut c_void {
        self.ours.load(Relaxed)
    }

    /// Whether an address is that of libc's function of this name.
    pub fn is_libcs(&self, address: usize) -> bool {
        address != 0 && address == self.libcs.load(Relaxed) as usize && !self.ours().is_null()
    }

    /// Whether ours calls libc's. A library that comes between may itself look for libc's, and must not get ours.
    pub fn is_next(&self) -> bool {
        self.is_next.load(Relaxed)
    }
}

/// Our function of this name, if we have one; [`know`] finds it.
pub fn named(name: &[u8]) -> Option<&'static Twin> {
    STARTS.binary_search_by(|&start| name_at(start).cmp(name)).ok().and_then(|index| TWINS.get(index))
}

/// The name that begins here.
fn name_at(start: u16) -> &'static [u8] {
    let rest = EXPORTS.as_bytes().get(start.into()..).unwrap_or_default();
    rest.split(|&byte| byte == b'\n').next().unwrap_or_default()
}

/// Our function of the name that libc's function at this address has, if there is one that is known.
pub fn of_libcs(address: usize) -> Option<&'static Twin> {
    TWINS.iter().find(|twin| twin.is_libcs(address))
}

/// Finds all functions; false if there is no telling. Threads that come here together find the same; none waits for
/// another, which may hold the dynamic linker's lock, as none may who calls this.
pub fn know() -> bool {
    ARE_KNOWN.load(Acquire) || know_now()
}

#[cold]
fn know_now() -> bool {
    let (own, libc) = (own_handle(), handle(c"libc.so.6"));
    if own.is_null() || libc.is_null() {
        return false;
    }
    for (name, twin) in EXPORTS.lines().zip(&TWINS) {
        let mut place = [0_u8; NAME_BYTES];
        let Some(start) = place.get_mut(..name.len()) else { continue };
        start.copy_from_slice(name.as_bytes());
        let Ok(name) = CStr::from_bytes_until_nul(&place) else { continue };
        // SAFETY: handles of the dynamic linker.
        let [ours, next, libcs] = unsafe { [own, libc::RTLD_NEXT, libc].map(|handle| look_up(handle, name)) };
        twin.ours.store(ours, Relaxed);
        twin.libcs.store(libcs, Relaxed);
        twin.is_next.store(next == libcs, Relaxed);
    }
    ARE_KNOWN.store(true, Release);
    true
}

/// This library's handle.
fn own_handle() -> *mut c_void {
    let mut own = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address of ours, and room for what is told of it, which is a string that stays.
    unsafe {
        match libc::dladdr(know as fn() -> bool as *const c_void, own.as_mut_ptr()) {
            0 => core::ptr::null_mut(),
            _ => handle(CStr::from_ptr(own.assume_init().dli_fname)),
        }
    }
}

/// The handle of a library that is loaded. It is kept: the library stays as long as the program.
fn handle(path: &CStr) -> *mut c_void {
    // SAFETY: a string; nothing is loaded by this.
    unsafe { open(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) }
}
