//! Our functions, each with the one of libc behind it.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{
    AtomicBool, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::real::look_up;

/// What this library exports, sorted.
const EXPORTS: &str = include_str!("../../exports.txt");
const COUNT: usize = 125;
/// Where each name begins.
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
    /// libc's, if it is what ours calls; null if another library comes between, which may look for libc's itself.
    behind: AtomicPtr<c_void>,
}

static TWINS: [Twin; COUNT] =
    [const { Twin { ours: AtomicPtr::new(core::ptr::null_mut()), behind: AtomicPtr::new(core::ptr::null_mut()) } };
        COUNT];
static ARE_KNOWN: AtomicBool = AtomicBool::new(false);

impl Twin {
    /// Our function; null if it cannot be found.
    pub fn ours(&self) -> *mut c_void {
        self.ours.load(Relaxed)
    }

    /// Whether an address is that of the function behind ours.
    pub fn is_behind(&self, address: usize) -> bool {
        address != 0 && address == self.behind.load(Relaxed) as usize && !self.ours().is_null()
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

/// Our function before the one at this address, if there is one that is known.
pub fn behind(address: usize) -> Option<&'static Twin> {
    TWINS.iter().find(|twin| twin.is_behind(address))
}

/// Finds all functions. Threads that come here together find the same; none waits for another, which may hold the dynamic
/// linker's lock, as none may who calls this.
pub fn know() {
    if !ARE_KNOWN.load(Acquire) {
        know_now();
    }
}

#[cold]
fn know_now() {
    let (own, libc) = (own_handle(), handle(c"libc.so.6"));
    let are_known = !own.is_null() && !libc.is_null();
    for (name, twin) in EXPORTS.lines().zip(&TWINS).filter(|_| are_known) {
        let mut place = [0_u8; NAME_BYTES];
        let Some(start) = place.get_mut(..name.len()) else { continue };
        start.copy_from_slice(name.as_bytes());
        let Ok(name) = CStr::from_bytes_until_nul(&place) else { continue };
        // SAFETY: handles of the dynamic linker.
        let [ours, next, behind] = unsafe { [own, libc::RTLD_NEXT, libc].map(|handle| look_up(handle, name)) };
        twin.ours.store(ours, Relaxed);
        twin.behind.store(if next == behind { behind } else { core::ptr::null_mut() }, Relaxed);
    }
    ARE_KNOWN.store(true, Release);
}

/// This library's handle.
fn own_handle() -> *mut c_void {
    let mut own = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address of ours, and room for what is told of it, which is a string that stays.
    unsafe {
        match libc::dladdr(know as fn() as *const c_void, own.as_mut_ptr()) {
            0 => core::ptr::null_mut(),
            _ => handle(CStr::from_ptr(own.assume_init().dli_fname)),
        }
    }
}

/// The handle of a library that is loaded. It is kept: the library stays as long as the program.
fn handle(path: &CStr) -> *mut c_void {
    // SAFETY: a string; nothing is loaded by this.
    unsafe { super::open(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) }
}
