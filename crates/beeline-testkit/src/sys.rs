//! The socket API as a program sees it: one libc call a function, with its result and errno kept together.
//!
//! Rules:
//! 1. A function makes exactly one call and retries nothing: EINTR, short counts and errors are what tests look at.
//! 2. errno holds a marker before each call. Linux and glibc leave errno alone when a system call succeeds, and a
//!    guest in the process must do the same: [`Ret::clobbered`] tells when it did not.
//! 3. Pointers that a test passes on purpose (NULL, unmapped) go through the `*_at` functions, which take an address.

mod address;
mod ancillary;
mod data;
mod descriptor;
mod moving;
mod names;
mod process;
mod ready;
mod signal;
mod stdio;
mod thread;
mod unseen;

pub use address::*;
pub use ancillary::*;
pub use data::*;
pub use descriptor::*;
pub use moving::*;
pub use names::*;
pub use process::*;
pub use ready::*;
pub use signal::*;
pub use stdio::*;
pub use thread::*;
pub use unseen::*;

use std::fmt;

/// No errno has this value.
const MARKER: i32 = 4321;

/// What a call returned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ret {
    pub value: i64,
    /// Zero when the call succeeded.
    pub errno: i32,
    /// The call succeeded and changed errno all the same.
    pub clobbered: bool,
}

impl Ret {
    #[must_use]
    pub fn is_ok(self) -> bool {
        self.value >= 0
    }

    #[must_use]
    pub fn is(self, errno: i32) -> bool {
        self.value < 0 && self.errno == errno
    }

    /// The value as a size; zero for an error.
    #[must_use]
    pub fn size(self) -> usize {
        usize::try_from(self.value).unwrap_or(0)
    }
}

impl fmt::Display for Ret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.value < 0, self.clobbered) {
            (true, _) => write!(out, "-1 {}", errno_name(self.errno)),
            (false, true) => write!(out, "{} (errno was changed)", self.value),
            (false, false) => write!(out, "{}", self.value),
        }
    }
}

impl fmt::Debug for Ret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

fn errno_place() -> *mut i32 {
    // SAFETY: the call has no preconditions; the address belongs to this thread for its lifetime.
    unsafe { libc::__errno_location() }
}

/// Makes one call with errno marked before it and read after it.
fn call(operation: impl FnOnce() -> i64) -> Ret {
    let place = errno_place();
    // SAFETY: errno is this thread's own int.
    unsafe { *place = MARKER };
    let value = operation();
    // SAFETY: as above.
    let errno = unsafe { *place };
    match value < 0 {
        true => Ret { value, errno, clobbered: false },
        false => Ret { value, errno: 0, clobbered: errno != MARKER },
    }
}
