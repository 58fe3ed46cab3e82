//! `getsockopt` on lanes.
//!
//! What nobody has set is what the kernel says of a fresh socket, or, for what a connection is asked about itself, what
//! it says of a connection over the loopback device, or of the one below the lane ([`Fact`], [`loopback`]).

use core::sync::atomic::Ordering::Relaxed;

use super::{loopback, with_template};
use beeline_lane::End;

use crate::app_memory::in_first_page;
use crate::desc::{Desc, Kind};
use crate::ending::Next;
use crate::ending::observe;
use crate::kept::table::{Class, Fact, class};
use crate::kernel::{self, SockAddr};
use crate::side::{SideState, state};
use crate::{Outcome, follow, process, table, upkeep};

/// `getsockopt(2)`.
///
/// # Safety
/// `length` must be valid and `value` writable for `*length` bytes.
pub unsafe fn getsockopt(fd: i32, level: i32, name: i32, value: *mut u8, length: *mut u32) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    if desc.kind() != Kind::Lane || follow::follow_if_relayed(fd, desc) {
        return Outcome::Kernel;
    }
    let _pin = desc.pin();
    if !desc.is_lane() || !table::leads_to(fd, desc) {
        return Outcome::Kernel;
    }
    if in_first_page(length as usize) {
        return Outcome::fail(libc::EFAULT);
    }
    let side = desc.side();
    let target = Target { level, value, length };
    let number = match class(level, name) {
        Class::Error => match error_of(fd, desc) {
            Some(errno) => errno,
            None => return Outcome::Kernel,
        },
        Class::Fact(Fact::Number(number)) => number,
        Class::Fact(Fact::Family) => side.family.load(Relaxed) as i32,
        Class::Fact(Fact::Anchor) => return Outcome::Kernel,
        Class::Fact(Fact::Info) => {
            observe(desc, side);
            let mut info = [0; loopback::INFO_BYTES];
            return match loopback::info(desc, side, &mut info) {
                // SAFETY: forwarded.
                Ok(length) => unsafe { target.give_bytes(info.get(..length).unwrap_or(&info)) },
                Err(errno) => Outcome::Fail(errno),
            };
        }
        // SAFETY: forwarded.
        Class::Fact(Fact::PeerName) => return unsafe { target.give_peer(side) },
        Class::Fact(Fact::PathMtu) if side.family.load(Relaxed) as i32 == libc::AF_INET6 => {
            // `struct ip6_mtuinfo`: an address that the kernel leaves empty, and the MTU.
            let mut info = [0; 32];
            info[28..].copy_from_slice(&loopback::mtu(desc, side).to_ne_bytes());
            // SAFETY: forwarded.
            return unsafe { target.give(&info) };
        }
        // SAFETY: forwarded.
        Class::Rate => return unsafe { target.give_rate(side.pacing_rate().unwrap_or(u64::MAX)) },
        Class::SegmentSize => loopback::segment(desc, side, side.option(level, name)),
        Class::ReceiveTimeout => {
            // SAFETY: forwarded.
            return unsafe { target.give(&time(side.rcv_timeout_ns.load(Relaxed))) };
        }
        Class::SendTimeout => {
            // SAFETY: forwarded.
            return unsafe { target.give(&time(side.snd_timeout_ns.load(Relaxed))) };
        }
        Class::Linger => {
            let seconds = side.linger.get();
            let linger = libc::linger { l_onoff: seconds.is_some().into(), l_linger: seconds.unwrap_or(0) as i32 };
            // SAFETY: forwarded.
            return unsafe { target.give(&linger) };
        }
        Class::IncomingCpu => loopback::incoming_cpu(desc),
        Class::ReceiveLowWater => side.rcv_lowat().max(1) as i32,
        Class::Name => match side.name_option(level, name) {
            // SAFETY: forwarded.
            Some(text) => return unsafe { target.give(&text) },
            // SAFETY: forwarded.
            None => return unsafe { ask_template(side, name, target) },
        },
        _ => match side.option(level, name) {
            Some(number) => number,
            None => match loopback::default(desc, side, level, name) {
                Some(number) => number,
                // SAFETY: forwarded.
                None => return unsafe { ask_template(side, name, target) },
            },
        },
    };
    // SAFETY: forwarded.
    unsafe { target.give_number(number) }
}

/// `SO_ERROR` of a lane, which the caller has pinned. `None` if it is none any more.
fn error_of(fd: i32, desc: &'static Desc) -> Option<i32> {
    upkeep::look_after();
    if !desc.is_lane() {
        return None;
    }
    let side = desc.side();
    observe(desc, side);
    // Nobody has written into the lane of a client that was not taken: only the kernel knows that its door died, or
    // that the TCP connection below it was reset.
    if !side.is(state::TAKEN | state::PEER_CLOSED | state::RESET) && desc.end() == End::Client {
        let below = loopback::socket_below(desc, side).map_or(0, |socket| kernel::poll_now(socket, 0) & libc::POLLHUP);
        let revents = kernel::poll_now(fd, 0) | below;
        if crate::io::kernel_said(fd, desc, revents) == Next::Kernel {
            return None;
        }
    }
    Some(side.take_error().map_or(0, |errno| errno.0))
}

/// Where an app wants the value of an option.
#[derive(Clone, Copy)]
struct Target {
    level: i32,
    value: *mut u8,
    length: *mut u32,
}

impl Target {
    /// Gives the peer's address: `SO_PEERNAME`, which is not cut to the app's room.
    ///
    /// # Safety
    /// As for [`getsockopt`].
    unsafe fn give_peer(self, side: &SideState) -> Outcome {
        let name = SockAddr::internet(side.remote.get(), side.family.load(Relaxed) as i32);
        // SAFETY: the caller guarantees it.
        if unsafe { self.length.read_unaligned() } > name.length {
            return Outcome::fail(libc::EINVAL);
        }
        // SAFETY: forwarded.
        unsafe { self.give_bytes(name.bytes()) }
    }

    /// Gives a rate, in the width that the app has room for.
    ///
    /// # Safety
    /// As for [`getsockopt`].
    unsafe fn give_rate(self, rate: u64) -> Outcome {
        // SAFETY: the caller guarantees it.
        if unsafe { self.length.read_unaligned() } as usize >= size_of::<u64>() {
            // SAFETY: forwarded.
            unsafe { self.give(&rate) }
        } else {
            // SAFETY: forwarded.
            unsafe { self.give(&u32::try_from(rate).unwrap_or(u32::MAX)) }
        }
    }

    /// Gives a value, cut to the app's room, as `sk_getsockopt` does (Linux net/core/sock.c).
    ///
    /// # Safety
    /// As for [`getsockopt`].
    unsafe fn give<T: Copy>(self, value: &T) -> Outcome {
        // SAFETY: any value may be read as bytes; forwarded.
        unsafe { self.give_bytes(core::slice::from_raw_parts(core::ptr::from_ref(value).cast(), size_of::<T>())) }
    }

    /// As [`Target::give`], bytes.
    ///
    /// # Safety
    /// As for [`getsockopt`].
    unsafe fn give_bytes(self, value: &[u8]) -> Outcome {
        // SAFETY: the caller guarantees it.
        let room = unsafe { self.length.read_unaligned() };
        if (room as i32) < 0 {
            return Outcome::fail(libc::EINVAL);
        }
        let length = (room as usize).min(value.len());
        if length != 0 && in_first_page(self.value as usize) {
            return Outcome::fail(libc::EFAULT);
        }
        // SAFETY: writable for `length` bytes, as the caller guarantees; the source is a live local.
        unsafe {
            core::ptr::copy_nonoverlapping(value.as_ptr(), self.value, length);
            self.length.write_unaligned(length as u32);
        }
        Outcome::OK
    }

    /// Gives an integer. At the IP level, room for less than an int gets one byte if the value fits
    /// (`do_ip_getsockopt`).
    ///
    /// # Safety
    /// As for [`getsockopt`].
    unsafe fn give_number(self, number: i32) -> Outcome {
        // SAFETY: the caller guarantees it.
        let room = unsafe { self.length.read_unaligned() };
        match u8::try_from(number) {
            // SAFETY: forwarded.
            Ok(byte) if self.level == libc::IPPROTO_IP && (1..4).contains(&room) => unsafe { self.give(&byte) },
            // SAFETY: forwarded.
            _ => unsafe { self.give(&number) },
        }
    }
}

fn time(ns: u64) -> libc::timeval {
    libc::timeval { tv_sec: (ns / 1_000_000_000) as i64, tv_usec: (ns % 1_000_000_000 / 1000) as i64 }
}

/// The kernel's answer for a socket on which nobody has set anything.
///
/// # Safety
/// As for [`getsockopt`].
unsafe fn ask_template(side: &SideState, name: i32, target: Target) -> Outcome {
    with_template(side.family.load(Relaxed) as i32, |template| {
        let args =
            [template as usize, target.level as usize, name as usize, target.value as usize, target.length as usize, 0];
        // SAFETY: forwarded.
        unsafe { process::raw(libc::SYS_getsockopt, args) }
    })
}
