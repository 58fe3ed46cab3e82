//! libgcc's unwinder, found when something unwinds.
//!
//! Rust's standard library calls it where a panic is told with a backtrace, and where an unwinder that the program has
//! goes through one of its frames. Here neither happens while all is well, so the library is not linked to it: what the
//! dynamic linker would map is five mappings more in each program that is started and each child that is forked, and an
//! image without libgcc could not load us.
//!
//! 1. Each function that is wanted stands in here and goes to the one of `libgcc_s.so.1`, which is loaded if it is not
//!    there yet.
//! 2. The names are hidden: what the program unwinds itself goes by its own.
//! 3. Where there is no libgcc nobody unwinds, and a backtrace has no frames.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};

use crate::hooks::open;
use crate::real::look_up;

/// Where an unwinder is: its own.
type Context = *mut c_void;

/// `_URC_END_OF_STACK`.
const END_OF_STACK: c_int = 5;

/// The function of libgcc with this name; null if there is none. `place` keeps it.
#[cold]
fn found(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a path that ends with NUL. The library is never unloaded.
    let library = unsafe { open(c"libgcc_s.so.1".as_ptr(), libc::RTLD_LAZY) };
    if library.is_null() {
        return library;
    }
    // SAFETY: a handle that dlopen has returned.
    let function = unsafe { look_up(library, name) };
    place.store(function, Release);
    function
}

/// Each row: a function here with the type of libgcc's, and its name. `else` is what is said where there is no libgcc.
macro_rules! unwinder {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $symbol:literal, else $absent:expr;)*) => {$(
        unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            static PLACE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            let function = found(&PLACE, NAME);
            if function.is_null() {
                $absent
            } else {
                // SAFETY: libgcc's function has this type.
                let function: unsafe extern "C" fn($($type),*) -> $result = unsafe { core::mem::transmute(function) };
                // SAFETY: the caller guarantees what that function asks for.
                unsafe { function($($argument),*) }
            }
        }

        core::arch::global_asm!(
            concat!(".globl ", $symbol),
            concat!(".hidden ", $symbol),
            concat!(".type ", $symbol, ", %function"),
            concat!($symbol, ":"),
            ".cfi_startproc",
            #[cfg(target_arch = "x86_64")]
            "jmp {}",
            #[cfg(target_arch = "aarch64")]
            "b {}",
            ".cfi_endproc",
            concat!(".size ", $symbol, ", . - ", $symbol),
            sym $name,
        );
    )*};
}

unwinder! {
    fn backtrace(each: *mut c_void, argument: *mut c_void) -> c_int = "_Unwind_Backtrace", else END_OF_STACK;
    fn resume(exception: *mut c_void) -> ! = "_Unwind_Resume", else std::process::abort();
    fn ip(context: Context) -> usize = "_Unwind_GetIP", else 0;
    fn ip_info(context: Context, is_before: *mut c_int) -> usize = "_Unwind_GetIPInfo", else 0;
    fn set_ip(context: Context, ip: usize) -> () = "_Unwind_SetIP", else ();
    fn set_register(context: Context, register: c_int, value: usize) -> () = "_Unwind_SetGR", else ();
    fn language_data(context: Context) -> usize = "_Unwind_GetLanguageSpecificData", else 0;
    fn region(context: Context) -> usize = "_Unwind_GetRegionStart", else 0;
    fn data_base(context: Context) -> usize = "_Unwind_GetDataRelBase", else 0;
    fn frame(context: Context) -> usize = "_Unwind_GetCFA", else 0;
    fn function_of(address: *mut c_void) -> *mut c_void = "_Unwind_FindEnclosingFunction", else core::ptr::null_mut();
    fn text_base(context: Context) -> usize = "_Unwind_GetTextRelBase", else 0;
}
