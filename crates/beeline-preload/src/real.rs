//! libc's own functions behind the names we export.

use core::ffi::{CStr, c_char, c_void};
use core::marker::PhantomData;
use core::sync::atomic::{
    AtomicPtr, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_sockets::thread;

/// A function of libc, found when the library starts, or at the first call if that comes earlier.
pub struct Real {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    /// The first of the threads that look for it; 0 if none does.
    resolver: AtomicU32,
}

impl Real {
    /// The function called `name`.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(core::ptr::null_mut()), resolver: AtomicU32::new(0) }
    }

    /// Its address; null if this libc has no such function.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let address = self.address.load(Relaxed);
        if address.is_null() { self.resolve() } else { address }
    }

    /// Finds the function in the libraries that come after this one.
    #[cold]
    pub fn resolve(&self) -> *mut c_void {
        // An allocator under dlsym may call us again; it is told that there is no such function, which it
        // will survive, as it would not survive the recursion.
        // Another thread looks for it itself: what it waited for might wait for a lock of the linker's that it holds.
        let tid = thread::tid();
        let claimed = self.resolver.compare_exchange(0, tid, Acquire, Relaxed);
        if claimed == Err(tid) {
            return core::ptr::null_mut();
        }
        // SAFETY: one of dlsym's own handles.
        let address = keeping_errno(|| unsafe { look_up(libc::RTLD_NEXT, self.name) });
        self.address.store(address, Release);
        if claimed.is_ok() {
            self.resolver.store(0, Release);
        }
        address
    }
}

/// A function of libc whose type is known: `F`, a pointer to such a function.
pub struct Function<F> {
    pub real: Real,
    marker: PhantomData<F>,
}

impl<F: Copy> Function<F> {
    /// The function called `name`.
    ///
    /// # Safety
    /// Its type must be `F`.
    pub const unsafe fn new(name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Self { real: Real::new(name), marker: PhantomData }
    }

    /// The function; none if this libc has no such function.
    #[inline]
    pub fn get(&self) -> Option<F> {
        let address = self.real.address();
        // SAFETY: a function of this type, as whoever made this guarantees.
        if address.is_null() { None } else { Some(unsafe { core::mem::transmute_copy(&address) }) }
    }
}

/// libc's `dlsym`: this library exports one, too.
#[cold]
fn look_up_function() -> *mut c_void {
    static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    /// Since it is in libc itself; before, on x86-64 and on 64-bit ARM.
    const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];
    let known = DLSYM.load(Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: names that end with NUL.
    let find = |version: &&CStr| unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
    let found = VERSIONS.iter().map(find).find(|found| !found.is_null()).unwrap_or_default();
    DLSYM.store(found, Release);
    found
}

/// dlsym(3), as this library calls it.
///
/// # Safety
/// `handle` must be one of dlopen(3), or `RTLD_NEXT` or `RTLD_DEFAULT`.
pub unsafe fn look_up(handle: *mut c_void, name: &CStr) -> *mut c_void {
    type LookUp = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    let function = look_up_function();
    if function.is_null() {
        return function;
    }
    // SAFETY: dlsym has this type.
    let function: LookUp = unsafe { core::mem::transmute(function) };
    // SAFETY: the caller guarantees it; the name ends with NUL.
    unsafe { function(handle, name.as_ptr()) }
}

/// Fails a call.
#[cold]
pub fn fail(errno: i32) -> isize {
    // SAFETY: libc's per-thread errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Runs `body`, which leaves errno as it was.
#[inline]
pub fn keeping_errno<R>(body: impl FnOnce() -> R) -> R {
    // SAFETY: libc's per-thread errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the same.
    let kept = unsafe { *errno };
    let result = body();
    // SAFETY: the same; it is the same thread.
    unsafe { *errno = kept };
    result
}

/// Makes `reals`, where libc's own functions of these names and types are, and `REALS`, the list of them.
macro_rules! reals {
    ($( fn $name:ident $arguments:tt -> $result:ty; )*) => {
        #[allow(non_upper_case_globals)]
        pub mod reals {
            use super::*;

            $(
                pub static $name: $crate::real::Function<$crate::real::function!($arguments -> $result)> =
                    // SAFETY: libc's function of this name has this type.
                    unsafe { $crate::real::Function::new($crate::real::c_name!($name)) };
            )*
        }

        /// libc's functions behind this table.
        pub static REALS: &[&$crate::real::Real] = &[$( &reals::$name.real, )*];
    };
}

/// The type of a pointer to such a function.
macro_rules! function {
    (($($argument:ident: $type:ty),*) -> $result:ty) => { unsafe extern "C" fn($($type),*) -> $result };
}

macro_rules! c_name {
    ($name:ident) => {
        match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        }
    };
}

/// Makes the functions of a table, and what [`reals`] makes of them.
///
/// `fn name | alias: (arguments) -> result [fd] => outcome;`
///
/// * `[fd]` names the argument that must not be an anchor where the kernel gets the call; `[]` if there is none.
/// * `[fd, at_once first]`: `first` is tried before. It is the whole call unless it says 0; the rest is a function of
///   its own, so that the common case saves no registers for it. Both lie in `.text.served`, the pages that forked
///   children touch anyway when they serve connections.
/// * An argument that `outcome` assigns anew reaches libc's function with its new value.
/// * While `outcome` runs, a thread whose cancellation is asynchronous is deferred ([`beeline_sockets::cancel::hold`]).
///   `[at_any_time]` leaves that to the call, in whose waits such a thread may be cancelled while it holds no lock.
macro_rules! hooks {
    ($( fn $($name:ident)|+: $arguments:tt -> $result:tt $guard:tt => $outcome:expr; )*) => {
        $crate::real::reals! { $($( fn $name $arguments -> $result; )+)* }

        $($( $crate::real::hook! { $name $arguments $result, $guard, $outcome } )+)*
    };
}

macro_rules! hook {
    ($name:ident ($($argument:ident : $type:ty),*) $result:ty, [$fd:ident, at_once $first:expr], $outcome:expr) => {
        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".text.served")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the app's arguments, which are what the function's manual page asks for.
            let done: usize = unsafe { $first };
            if done != 0 {
                return done as $result;
            }
            $crate::real::hook! { #[inline(never)] #[unsafe(link_section = ".text.served")] rest ($($argument: $type),*) $result, $name, [$fd; beeline_sockets::cancel::hold()], $outcome }
            // SAFETY: as above.
            unsafe { rest($($argument),*) }
        }
    };
    ($name:ident ($($argument:ident : $type:ty),*) $result:ty, [at_any_time], $outcome:expr) => {
        $crate::real::hook! { #[unsafe(no_mangle)] $name ($($argument: $type),*) $result, $name, [; ()], $outcome }
    };
    ($name:ident ($($argument:ident : $type:ty),*) $result:ty, [$($fd:ident)?], $outcome:expr) => {
        $crate::real::hook! { #[unsafe(no_mangle)] $name ($($argument: $type),*) $result, $name, [$($fd)?; beeline_sockets::cancel::hold()], $outcome }
    };
    ($(#[$attribute:meta])+ $function:ident ($($argument:ident : $type:ty),*) $result:ty, $name:ident, [$($fd:ident)?; $hold:expr], $outcome:expr) => {
        $(#[$attribute])+
        #[allow(unused_mut)]
        pub unsafe extern "C" fn $function($(mut $argument: $type),*) -> $result {
            let held = $hold;
            // Some of the entry points are safe functions.
            #[allow(unused_unsafe)]
            // SAFETY: the app's arguments, which are what the function's manual page asks for.
            let outcome: beeline_sockets::Outcome = unsafe { $outcome };
            // Given back here, as the block moves it out. `drop` would be refused for the `()` of `[at_any_time]`.
            let _ = { held };
            match outcome {
                beeline_sockets::Outcome::Done(value) => value as $result,
                beeline_sockets::Outcome::Fail(errno) => $crate::real::fail(errno.0) as $result,
                beeline_sockets::Outcome::Kernel => {
                    $(
                        if let Some(errno) = beeline_sockets::life::refusal($fd) {
                            return $crate::real::fail(errno.0) as $result;
                        }
                    )?
                    let Some(real) = reals::$name.get() else {
                        return $crate::real::fail(libc::ENOSYS) as $result;
                    };
                    // SAFETY: the app's arguments, passed on.
                    unsafe { real($($argument),*) }
                }
            }
        }
    };
}

pub(crate) use {c_name, function, hook, hooks, reals};
