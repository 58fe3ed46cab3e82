//! What a program has set on a lane, set on the TCP socket with which its connection goes on.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::side::{BEING_STORED, SideState, option_of};
use crate::{kept, kernel};

/// Sets on the TCP socket what the app had set on the lane. Options that the kernel refuses now it would have
/// refused then.
pub(crate) fn carry_options(side: &SideState, tcp: i32) {
    for option in &side.options {
        let key = option.key.load(Acquire);
        if key != 0 && key & BEING_STORED == 0 {
            let (level, name) = option_of(key);
            let value = option.value.load(Relaxed);
            // The kernel says twice what it was told.
            let is_buffer = level == libc::SOL_SOCKET && matches!(name, libc::SO_SNDBUF | libc::SO_RCVBUF);
            let _ = kernel::setsockopt(tcp, level, name, &if is_buffer { value >> 1 } else { value });
        }
    }
    for (name, timeout) in [(libc::SO_RCVTIMEO, &side.rcv_timeout_ns), (libc::SO_SNDTIMEO, &side.snd_timeout_ns)] {
        if let Some(value) = kept::timeval_of(timeout.load(Relaxed)) {
            let _ = kernel::setsockopt(tcp, libc::SOL_SOCKET, name, &value);
        }
    }
    let lowat = side.rcv_lowat();
    if lowat > 1 {
        let _ = kernel::setsockopt(tcp, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &(lowat as i32));
    }
    set_wide_options(side, tcp);
    set_linger(tcp, side.linger.get());
}

/// The same for options that are more than an integer.
fn set_wide_options(side: &SideState, tcp: i32) {
    if let Some(text) = side.name_option(libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
        let _ = kernel::setsockopt(tcp, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &text);
    }
    if let Some(rate) = side.pacing_rate() {
        let _ = kernel::setsockopt(tcp, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &rate);
    }
}

pub(super) fn set_linger(tcp: i32, seconds: Option<u32>) {
    let value = libc::linger { l_onoff: i32::from(seconds.is_some()), l_linger: seconds.unwrap_or(0) as i32 };
    let _ = kernel::setsockopt(tcp, libc::SOL_SOCKET, libc::SO_LINGER, &value);
}
