//! What was set on a socket before it became a connection.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::ConnectableCell;
use crate::kernel;
use crate::side::{LingerCell, OptionValue, store_option};

/// Options set before there is a connection.
#[derive(Default)]
pub struct Draft {
    /// `SO_RCVTIMEO`, as in the side.
    pub rcv_timeout_ns: AtomicU64,
    /// `SO_SNDTIMEO`, as in the side.
    pub snd_timeout_ns: AtomicU64,
    /// `SO_RCVLOWAT`, as in the side.
    pub rcv_lowat: AtomicU32,
    /// `SO_LINGER`, as in the side.
    pub linger: LingerCell,
    /// Who connects the socket, or what keeps it on TCP.
    pub connectable: ConnectableCell,
    /// The socket has an owner (`F_SETOWN`).
    pub owned: AtomicBool,
    /// `bind` was called, in vain perhaps.
    pub bound: AtomicBool,
    /// Integer options, as in the side.
    pub options: [OptionValue; 16],
}

impl Draft {
    /// What a listener's connections inherit that the app may not have set: binding to an IPv6 address sets it.
    pub fn note_v6_only(&self, fd: i32) {
        if let Ok(only) = kernel::getsockopt::<i32>(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) {
            let _ = store_option(&self.options, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only);
        }
    }

    pub(super) fn clear(&self) {
        self.rcv_timeout_ns.store(0, Relaxed);
        self.snd_timeout_ns.store(0, Relaxed);
        self.rcv_lowat.store(0, Relaxed);
        self.linger.set(None);
        self.owned.store(false, Relaxed);
        self.bound.store(false, Relaxed);
        self.connectable.clear();
        self.options.iter().for_each(|option| option.key.store(0, Relaxed));
    }
}
