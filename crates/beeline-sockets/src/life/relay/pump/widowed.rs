//! A relay whose program has closed its socket, while the peer keeps its end.
//!
//! Of TCP the peer's half would be left (`CLOSE_WAIT`), and of the program's end what the kernel keeps for as long as
//! `tcp_fin_timeout` says, without a process. So from when the program's end of stream has been passed on it is looked
//! who has its socket. When that has gone, the relay ends, and with it this end of the lane: what the peer sends then
//! is answered as by the kernel. While it is the kernel's alone, SIGTERM ends the relay, as whoever stops all processes
//! of a service sends it; nothing is lost by it that a program would have got.

use beeline_shm::sys::call;

use super::{Pump, State};
use crate::kernel;
use crate::meet::{Holder, holder};

/// How long it is until the first look, and between two of later ones.
const FIRST_MS: u32 = 10;
const LAST_MS: u32 = 1000;

/// What was found out.
#[derive(Clone, Copy)]
pub(super) struct Widowed {
    /// The time until the next look; `None` if there is none, because the kernel does not tell.
    next_ms: Option<u32>,
    /// Whether SIGTERM ends this process.
    is_mortal: bool,
}

impl Widowed {
    pub(super) const NOT_YET: Self = Self { next_ms: Some(FIRST_MS), is_mortal: false };
}

impl Pump {
    /// How long a sleep may last, in milliseconds as for epoll_wait(2).
    pub(super) fn sleep_ms(&self) -> i32 {
        if self.relay.attendance.is_open() {
            return self.relay.attendance.sleep_ms().unwrap_or(-1);
        }
        let may_be = self.inward == State::Over && self.outward == State::Open;
        self.widowed.next_ms.filter(|_| may_be).map_or(-1, u32::cast_signed)
    }

    /// Nothing has happened for as long as that, and nobody else may come.
    #[cold]
    pub(super) fn look_for_program(&mut self) {
        let ends = [kernel::getpeername, kernel::getsockname].map(|name| name(self.relay.socket).ok()?.to_internet());
        let [Some(programs), Some(ours)] = ends else {
            self.widowed.next_ms = None;
            return;
        };
        match holder(programs, ours) {
            Ok(Holder::Program) => {}
            Ok(Holder::Kernel) if self.widowed.is_mortal => {}
            Ok(Holder::Kernel) => {
                self.widowed.is_mortal = true;
                let_sigterm_end_us();
            }
            Ok(Holder::Nobody) => self.end_outward(),
            Err(_) => self.widowed.next_ms = None,
        }
        self.widowed.next_ms = self.widowed.next_ms.map(|ms| ms.saturating_mul(2).min(LAST_MS));
    }
}

/// The program's handler is not mapped any more. A signal that has come already counts.
fn let_sigterm_end_us() {
    // The kernel's form: a handler (SIG_DFL), flags, and what is no longer than two words.
    let default = [0usize; 4];
    let args = [libc::SIGTERM as usize, default.as_ptr() as usize, 0, 8, 0, 0];
    // SAFETY: a live action, and no room for the old one.
    let _ = unsafe { call(libc::SYS_rt_sigaction, args) };
    let terminate = 1u64 << (libc::SIGTERM - 1);
    let args = [libc::SIG_UNBLOCK as usize, (&raw const terminate) as usize, 0, 8, 0, 0];
    // SAFETY: a live kernel signal set of 8 bytes.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, args) };
}
