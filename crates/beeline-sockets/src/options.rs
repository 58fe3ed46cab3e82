//! `getsockopt` and `setsockopt`.
//!
//! No option ever reaches an anchor: its buffer sizes are part of the wake protocol. Instead, a lane keeps
//! what its app sets in the side, and the kernel is asked on a *template*, a TCP socket of the same family made
//! for the moment, what it thinks of a value and what an option is when nobody has set it. The few options
//! that servers set on every connection are decided here without one.
//!
//! On a socket that may yet become a lane, options go to the kernel, which judges them, and into the draft.
//! An option that a lane could not honour keeps the socket on TCP ([`block`]).

use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::sys::{self, call};
use beeline_stats::Reason;

use crate::desc::{Desc, Kind};
use crate::side::{OptionValue, SideState, state};
use crate::{Errno, Outcome, kernel, life, table};

/// What an option of a lane is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    /// On or off; no other property of the socket depends on it.
    Switch,
    /// An integer within bounds.
    Range(i32, i32),
    /// Whatever the kernel makes of it; stored if it is an integer.
    Template,
    /// `SO_RCVTIMEO`: the reading direction's timeout.
    ReceiveTimeout,
    /// `SO_SNDTIMEO`.
    SendTimeout,
    /// `SO_LINGER`.
    Linger,
    /// `SO_RCVLOWAT`.
    ReceiveLowWater,
    /// A string of at most 16 bytes.
    Name,
    /// The pending error; read only.
    Error,
    /// A fact; read only.
    Fact(Fact),
    /// Cannot be had on a lane, and keeps a socket that has it on TCP.
    Blocking(Reason),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fact {
    /// Always this number.
    Number(i32),
    /// The family the app sees.
    Family,
    /// `TCP_INFO`.
    Info,
    /// Whatever the kernel says about the anchor.
    Anchor,
}

// linux/tcp.h, linux/in.h, linux/in6.h, asm-generic/socket.h: what the libc crate lacks.
const TCP_FASTOPEN_CONNECT: i32 = 30;
const TCP_ULP: i32 = 31;
const TCP_MD5SIG_EXT: i32 = 32;
const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
const TCP_INQ: i32 = 36;
const TCP_TX_DELAY: i32 = 37;
const SO_RCVTIMEO_NEW: i32 = 66;
const SO_SNDTIMEO_NEW: i32 = 67;
const SO_TIMESTAMP_NEW: i32 = 63;
const SO_TIMESTAMPNS_NEW: i32 = 64;
const SO_TIMESTAMPING_NEW: i32 = 65;
const SO_COOKIE: i32 = 57;
const IP_OPTIONS: i32 = 4;
const IP_UNICAST_IF: i32 = 50;
const IPV6_UNICAST_IF: i32 = 76;
const IPV6_HOPOPTS: i32 = 54;
const IPV6_DSTOPTS: i32 = 59;
const IPV6_RTHDR: i32 = 57;
const IP_IPSEC_POLICY: i32 = 16;
const IP_XFRM_POLICY: i32 = 17;
const IPV6_IPSEC_POLICY: i32 = 34;
const IPV6_XFRM_POLICY: i32 = 35;

/// Maximum segment size that TCP over the loopback device shows (64 KiB less headers).
const LOOPBACK_MSS: i32 = 65483;

const OPTION: Reason = Reason::OptionUnsupported;

/// The table. What is not in it is [`Class::Template`].
const TABLE: &[(i32, i32, Class)] = &[
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, Class::Switch),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, Class::Switch),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR, Class::Switch),
    (libc::SOL_SOCKET, libc::SO_ERROR, Class::Error),
    (libc::SOL_SOCKET, libc::SO_TYPE, Class::Fact(Fact::Number(libc::SOCK_STREAM))),
    (libc::SOL_SOCKET, libc::SO_PROTOCOL, Class::Fact(Fact::Number(libc::IPPROTO_TCP))),
    (libc::SOL_SOCKET, libc::SO_ACCEPTCONN, Class::Fact(Fact::Number(0))),
    (libc::SOL_SOCKET, libc::SO_DOMAIN, Class::Fact(Fact::Family)),
    (libc::SOL_SOCKET, SO_COOKIE, Class::Fact(Fact::Anchor)),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO, Class::ReceiveTimeout),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO, Class::SendTimeout),
    (libc::SOL_SOCKET, SO_RCVTIMEO_NEW, Class::ReceiveTimeout),
    (libc::SOL_SOCKET, SO_SNDTIMEO_NEW, Class::SendTimeout),
    (libc::SOL_SOCKET, libc::SO_LINGER, Class::Linger),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, Class::ReceiveLowWater),
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_MARK, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_ATTACH_BPF, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, SO_TIMESTAMP_NEW, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, SO_TIMESTAMPNS_NEW, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, SO_TIMESTAMPING_NEW, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_TXTIME, Class::Blocking(OPTION)),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, Class::Switch),
    (libc::IPPROTO_TCP, libc::TCP_CORK, Class::Switch),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, Class::Range(1, 32767)),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, Class::Range(1, 32767)),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, Class::Range(1, 127)),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, Class::Range(0, i32::MAX)),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION, Class::Name),
    (libc::IPPROTO_TCP, libc::TCP_INFO, Class::Fact(Fact::Info)),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG, Class::Blocking(OPTION)),
    (libc::IPPROTO_TCP, TCP_MD5SIG_EXT, Class::Blocking(OPTION)),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR, Class::Blocking(OPTION)),
    (libc::IPPROTO_TCP, TCP_ULP, Class::Blocking(OPTION)),
    (libc::IPPROTO_TCP, TCP_INQ, Class::Blocking(OPTION)),
    (libc::IPPROTO_TCP, TCP_TX_DELAY, Class::Blocking(OPTION)),
    (libc::IPPROTO_TCP, TCP_FASTOPEN_CONNECT, Class::Blocking(Reason::FastOpen)),
    (libc::IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, Class::Blocking(Reason::FastOpen)),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT, Class::Blocking(OPTION)),
    (libc::IPPROTO_IP, IP_OPTIONS, Class::Blocking(OPTION)),
    (libc::IPPROTO_IP, IP_UNICAST_IF, Class::Blocking(OPTION)),
    (libc::IPPROTO_IP, IP_IPSEC_POLICY, Class::Blocking(OPTION)),
    (libc::IPPROTO_IP, IP_XFRM_POLICY, Class::Blocking(OPTION)),
    (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, Class::Blocking(OPTION)),
    (libc::IPPROTO_IPV6, IPV6_UNICAST_IF, Class::Blocking(OPTION)),
    (libc::IPPROTO_IPV6, IPV6_HOPOPTS, Class::Blocking(OPTION)),
    (libc::IPPROTO_IPV6, IPV6_DSTOPTS, Class::Blocking(OPTION)),
    (libc::IPPROTO_IPV6, IPV6_RTHDR, Class::Blocking(OPTION)),
    (libc::IPPROTO_IPV6, IPV6_IPSEC_POLICY, Class::Blocking(OPTION)),
    (libc::IPPROTO_IPV6, IPV6_XFRM_POLICY, Class::Blocking(OPTION)),
];

fn class(level: i32, name: i32) -> Class {
    TABLE.iter().find(|row| row.0 == level && row.1 == name).map_or(Class::Template, |row| row.2)
}

/// Keeps a socket that is not connected yet on TCP. The first reason counts.
pub fn block(desc: &Desc, reason: Reason) {
    let _ = desc.draft.blocked_by.compare_exchange(0, reason as u16 + 1, Relaxed, Relaxed);
}

/// Runs `f` with a TCP socket of `family` that exists for that long only.
pub fn with_template(family: i32, f: impl FnOnce(i32) -> Outcome) -> Outcome {
    match kernel::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) {
        Ok(template) => {
            let outcome = f(template as i32);
            let _ = sys::close(template as i32);
            outcome
        }
        Err(errno) => Outcome::Fail(errno),
    }
}

/// `setsockopt(2)` as the app called it, on any fd.
///
/// # Safety
/// `value` must be readable for `length` bytes, or be what the kernel would refuse.
unsafe fn raw_set(fd: i32, level: i32, name: i32, value: *const u8, length: u32) -> Outcome {
    let args = [fd as usize, level as usize, name as usize, value as usize, length as usize, 0];
    // SAFETY: forwarded.
    unsafe { life::raw(libc::SYS_setsockopt, args) }
}

/// `setsockopt(2)`.
///
/// # Safety
/// `value` must be readable for `length` bytes.
pub unsafe fn setsockopt(fd: i32, level: i32, name: i32, value: *const u8, length: u32) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    match desc.kind() {
        Kind::Lane => {
            let _pin = desc.pin();
            if !desc.is_lane() || !table::leads_to(fd, desc) {
                return Outcome::Kernel;
            }
            // SAFETY: forwarded.
            unsafe { set_on_lane(desc, level, name, value, length) }
        }
        Kind::Tcp | Kind::Listener => {
            // SAFETY: forwarded.
            let outcome = unsafe { raw_set(fd, level, name, value, length) };
            if let Outcome::Done(_) = outcome {
                // SAFETY: the kernel has just taken the value.
                unsafe { record(fd, desc, level, name, value, length) };
            }
            outcome
        }
        _ => Outcome::Kernel,
    }
}

/// Writes down what the kernel has accepted on a socket that may become a lane.
///
/// # Safety
/// `value` must be readable for `length` bytes.
unsafe fn record(fd: i32, desc: &Desc, level: i32, name: i32, value: *const u8, length: u32) {
    let draft = &desc.draft;
    match class(level, name) {
        Class::Blocking(reason) => {
            // Switched off before it was ever on: nothing that a lane would have to honour.
            // SAFETY: forwarded.
            let off = length >= 4 && unsafe { value.cast::<i32>().read_unaligned() } == 0;
            if !(off && length == 4) {
                block(desc, reason);
            }
        }
        Class::ReceiveTimeout => draft.rcv_timeout_ns.store(timeout_of(fd, libc::SO_RCVTIMEO), Relaxed),
        Class::SendTimeout => draft.snd_timeout_ns.store(timeout_of(fd, libc::SO_SNDTIMEO), Relaxed),
        Class::Linger => draft.linger.store(linger_of(fd), Relaxed),
        Class::ReceiveLowWater => {
            let bytes = kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1);
            draft.rcv_lowat.store(bytes as u32, Relaxed);
        }
        Class::Name => {
            let kept = store_name(&draft.options, level, name, &name_of(fd, level, name));
            keep_or_block(desc, kept);
        }
        Class::Switch | Class::Range(..) => {
            // SAFETY: forwarded; the kernel takes an int for these.
            let number = unsafe { value.cast::<i32>().read_unaligned() };
            let number = if class(level, name) == Class::Switch { i32::from(number != 0) } else { number };
            keep_or_block(desc, store(&draft.options, level, name, number));
        }
        Class::Template => {
            if let Some(number) = number_of(fd, level, name) {
                keep_or_block(desc, store(&draft.options, level, name, number));
            }
        }
        Class::Error | Class::Fact(_) => {}
    }
}

fn keep_or_block(desc: &Desc, kept: bool) {
    if !kept {
        block(desc, OPTION);
    }
}

/// # Safety
/// `value` must be readable for `length` bytes.
unsafe fn set_on_lane(desc: &'static Desc, level: i32, name: i32, value: *const u8, length: u32) -> Outcome {
    let side = desc.side();
    let class = class(level, name);
    match class {
        Class::Switch | Class::Range(..) => {
            if (length as i32) < 4 {
                return Outcome::fail(libc::EINVAL);
            }
            if (value as usize) < 4096 {
                return Outcome::fail(libc::EFAULT);
            }
            // SAFETY: forwarded; at least four bytes.
            let number = unsafe { value.cast::<i32>().read_unaligned() };
            let number = match class {
                Class::Range(least, greatest) if !(least..=greatest).contains(&number) => {
                    return Outcome::fail(libc::EINVAL);
                }
                Class::Switch => i32::from(number != 0),
                _ => number,
            };
            if (level, name) == (libc::SOL_SOCKET, libc::SO_OOBINLINE) {
                side.rx.set_urgent_inline(number != 0);
            }
            stored(side.set_option(level, name, number))
        }
        // What a lane cannot do is refused as by a kernel that was built without it.
        Class::Blocking(_) => Outcome::fail(libc::ENOPROTOOPT),
        Class::Error | Class::Fact(_) => Outcome::fail(libc::ENOPROTOOPT),
        // Needs no template where the value is plain, so that it works when the fd table is full.
        Class::ReceiveTimeout | Class::SendTimeout
            if level == libc::SOL_SOCKET && matches!(name, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) =>
        {
            // SAFETY: forwarded.
            match unsafe { timeout_from(value, length) } {
                Ok(timeout_ns) if class == Class::ReceiveTimeout => side.rcv_timeout_ns.store(timeout_ns, Relaxed),
                Ok(timeout_ns) => side.snd_timeout_ns.store(timeout_ns, Relaxed),
                Err(errno) => return Outcome::Fail(errno),
            }
            Outcome::OK
        }
        _ => with_template(side.family.load(Relaxed) as i32, |template| {
            // SAFETY: forwarded.
            let outcome = unsafe { raw_set(template, level, name, value, length) };
            match outcome {
                Outcome::Done(_) => {
                    let low_water = side.rcv_lowat.load(Relaxed);
                    let adopted = adopt(side, template, level, name, class);
                    if class == Class::ReceiveLowWater {
                        crate::io::low_water_set(desc, low_water);
                    }
                    adopted
                }
                // A template is not connected: only a connection may have this, so a lane cannot.
                Outcome::Fail(Errno(libc::ENOTCONN)) => Outcome::fail(libc::ENOPROTOOPT),
                _ => outcome,
            }
        }),
    }
}

/// Takes over from the template what it was set to.
fn adopt(side: &SideState, template: i32, level: i32, name: i32, class: Class) -> Outcome {
    match class {
        Class::ReceiveTimeout => side.rcv_timeout_ns.store(timeout_of(template, libc::SO_RCVTIMEO), Relaxed),
        Class::SendTimeout => side.snd_timeout_ns.store(timeout_of(template, libc::SO_SNDTIMEO), Relaxed),
        Class::Linger => side.linger.store(linger_of(template), Relaxed),
        Class::ReceiveLowWater => {
            let bytes = kernel::getsockopt::<i32>(template, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1);
            side.rcv_lowat.store(bytes as u32, Relaxed);
        }
        Class::Name => return stored(store_name(&side.options, level, name, &name_of(template, level, name))),
        _ => {
            if let Some(number) = number_of(template, level, name) {
                return stored(side.set_option(level, name, number));
            }
        }
    }
    Outcome::OK
}

fn stored(kept: bool) -> Outcome {
    if kept { Outcome::OK } else { Outcome::fail(libc::ENOBUFS) }
}

/// A `struct timeval` as sock_set_timeout() takes it (Linux net/core/sock.c): negative seconds mean no wait at all,
/// which is told from "no timeout" by one nanosecond.
///
/// # Safety
/// `value` must be readable for `length` bytes.
unsafe fn timeout_from(value: *const u8, length: u32) -> Result<u64, Errno> {
    if (length as usize) < size_of::<libc::timeval>() {
        return Err(Errno(libc::EINVAL));
    }
    if (value as usize) < 4096 {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: readable for at least a timeval.
    let time = unsafe { value.cast::<libc::timeval>().read_unaligned() };
    if !(0..1_000_000).contains(&time.tv_usec) {
        return Err(Errno(libc::EDOM));
    }
    if time.tv_sec < 0 {
        return Ok(1);
    }
    let nanoseconds = (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_usec as u64 * 1_000);
    Ok(if time.tv_sec as u64 >= i64::MAX as u64 / 1_000 { 0 } else { nanoseconds })
}

fn timeout_of(fd: i32, name: i32) -> u64 {
    kernel::getsockopt::<libc::timeval>(fd, libc::SOL_SOCKET, name).map_or(0, |time| {
        (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add((time.tv_usec as u64).saturating_mul(1000))
    })
}

fn linger_of(fd: i32) -> u32 {
    match kernel::getsockopt::<libc::linger>(fd, libc::SOL_SOCKET, libc::SO_LINGER) {
        Ok(linger) if linger.l_onoff != 0 => (linger.l_linger as u32).saturating_add(1),
        _ => 0,
    }
}

/// The value of an integer option; `None` if it is something else.
fn number_of(fd: i32, level: i32, name: i32) -> Option<i32> {
    let mut value = [0u8; 64];
    let mut length = value.len() as u32;
    let args = [fd as usize, level as usize, name as usize, value.as_mut_ptr() as usize, (&raw mut length) as usize, 0];
    // SAFETY: live places of the lengths given.
    unsafe { call(libc::SYS_getsockopt, args) }.ok()?;
    (length == 4).then(|| i32::from_ne_bytes([value[0], value[1], value[2], value[3]]))
}

fn name_of(fd: i32, level: i32, name: i32) -> [u8; 16] {
    kernel::getsockopt::<[u8; 16]>(fd, level, name).unwrap_or_default()
}

fn option_key(level: i32, name: i32) -> u32 {
    (level as u32) << 16 | (name as u32 & 0xFFFF)
}

/// Stores an integer option in a draft; `false` when there is no place left.
fn store(options: &[OptionValue], level: i32, name: i32, value: i32) -> bool {
    let key = option_key(level, name);
    for slot in options {
        let holds = slot.key.load(Relaxed);
        if holds == key || holds == 0 {
            slot.value.store(value, Relaxed);
            slot.key.store(key, Relaxed);
            return true;
        }
    }
    false
}

/// A string option takes four places, under names that no option has: the option's own plus `0x8000`,
/// `0x9000`, `0xA000` and `0xB000`.
fn name_part(name: i32, part: usize) -> i32 {
    name | (0x8000 + 0x1000 * part as i32)
}

fn store_name(options: &[OptionValue], level: i32, name: i32, text: &[u8; 16]) -> bool {
    let (words, _) = text.as_chunks::<4>();
    words.iter().enumerate().all(|(part, word)| store(options, level, name_part(name, part), i32::from_ne_bytes(*word)))
}

fn stored_name(side: &SideState, level: i32, name: i32) -> Option<[u8; 16]> {
    let mut text = [0; 16];
    for (part, word) in text.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *word = side.option(level, name_part(name, part))?.to_ne_bytes();
    }
    Some(text)
}

/// `getsockopt(2)`.
///
/// # Safety
/// `length` must be valid and `value` writable for `*length` bytes.
pub unsafe fn getsockopt(fd: i32, level: i32, name: i32, value: *mut u8, length: *mut u32) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    if desc.kind() != Kind::Lane {
        return Outcome::Kernel;
    }
    let _pin = desc.pin();
    if !desc.is_lane() || !table::leads_to(fd, desc) {
        return Outcome::Kernel;
    }
    if (length as usize) < 4096 {
        return Outcome::fail(libc::EFAULT);
    }
    let side = desc.side();
    let target = Target { level, value, length };
    let number = match class(level, name) {
        Class::Error => {
            crate::io::observe(desc, side);
            side.take_error()
        }
        Class::Fact(Fact::Number(number)) => number,
        Class::Fact(Fact::Family) => side.family.load(Relaxed) as i32,
        Class::Fact(Fact::Anchor) => return Outcome::Kernel,
        Class::Fact(Fact::Info) => {
            crate::io::observe(desc, side);
            // SAFETY: forwarded.
            return unsafe { info(side, target) };
        }
        Class::ReceiveTimeout => {
            // SAFETY: forwarded.
            return unsafe { target.give(&time(side.rcv_timeout_ns.load(Relaxed))) };
        }
        Class::SendTimeout => {
            // SAFETY: forwarded.
            return unsafe { target.give(&time(side.snd_timeout_ns.load(Relaxed))) };
        }
        Class::Linger => {
            let linger = side.linger.load(Relaxed);
            let linger = libc::linger { l_onoff: i32::from(linger != 0), l_linger: linger.saturating_sub(1) as i32 };
            // SAFETY: forwarded.
            return unsafe { target.give(&linger) };
        }
        Class::ReceiveLowWater => side.rcv_lowat.load(Relaxed).max(1) as i32,
        Class::Name => match stored_name(side, level, name) {
            // SAFETY: forwarded.
            Some(text) => return unsafe { target.give(&text) },
            // SAFETY: forwarded.
            None => return unsafe { ask_template(side, name, target) },
        },
        _ => match side.option(level, name) {
            Some(number) => number,
            None if (level, name) == (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => LOOPBACK_MSS,
            // SAFETY: forwarded.
            None => return unsafe { ask_template(side, name, target) },
        },
    };
    // SAFETY: forwarded.
    unsafe { target.give_number(number) }
}

/// Where an app wants the value of an option.
#[derive(Clone, Copy)]
struct Target {
    level: i32,
    value: *mut u8,
    length: *mut u32,
}

impl Target {
    /// Gives a value, cut to the app's room, as `sk_getsockopt` does (Linux net/core/sock.c).
    ///
    /// # Safety
    /// As for [`getsockopt`].
    unsafe fn give<T: Copy>(self, value: &T) -> Outcome {
        // SAFETY: by the caller's word.
        let room = unsafe { self.length.read_unaligned() };
        if (room as i32) < 0 {
            return Outcome::fail(libc::EINVAL);
        }
        let length = (room as usize).min(size_of::<T>());
        if length != 0 && (self.value as usize) < 4096 {
            return Outcome::fail(libc::EFAULT);
        }
        // SAFETY: writable for `length` bytes by the caller's word; the source is a live local.
        unsafe {
            core::ptr::copy_nonoverlapping(core::ptr::from_ref(value).cast::<u8>(), self.value, length);
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
        // SAFETY: by the caller's word.
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
        unsafe { life::raw(libc::SYS_getsockopt, args) }
    })
}

// linux/tcp.h and net/tcp_states.h
const TCP_ESTABLISHED: u8 = 1;
const TCP_FIN_WAIT2: u8 = 5;
const TCP_CLOSE: u8 = 7;
const TCP_CLOSE_WAIT: u8 = 8;

/// Offset of `tcpi_snd_mss`; `tcpi_rcv_mss` follows.
const INFO_SND_MSS: usize = 16;
/// Offset of `tcpi_pmtu`.
const INFO_PMTU: usize = 60;
/// Offset of `tcpi_rtt`, in microseconds.
const INFO_RTT: usize = 68;

/// `TCP_INFO`: a fresh socket's, with what is known of the lane.
///
/// # Safety
/// As for [`getsockopt`].
unsafe fn info(side: &SideState, target: Target) -> Outcome {
    with_template(side.family.load(Relaxed) as i32, |template| {
        let mut info = [0u8; 256];
        let mut length = info.len() as u32;
        let (level, name) = (libc::IPPROTO_TCP as usize, libc::TCP_INFO as usize);
        let args = [template as usize, level, name, info.as_mut_ptr() as usize, (&raw mut length) as usize, 0];
        // SAFETY: live places of the lengths given.
        if let Err(errno) = unsafe { call(libc::SYS_getsockopt, args) } {
            return Outcome::Fail(errno);
        }
        info[0] = if side.is(state::RESET) {
            TCP_CLOSE
        } else {
            match (side.is(state::SHUT_WR), side.is(state::PEER_FIN)) {
                (false, false) => TCP_ESTABLISHED,
                (true, false) => TCP_FIN_WAIT2,
                (false, true) => TCP_CLOSE_WAIT,
                (true, true) => TCP_CLOSE,
            }
        };
        for (offset, number) in
            [(INFO_SND_MSS, LOOPBACK_MSS), (INFO_SND_MSS + 4, LOOPBACK_MSS), (INFO_PMTU, 65536), (INFO_RTT, 1)]
        {
            if let Some(place) = info.get_mut(offset..offset + 4) {
                place.copy_from_slice(&number.to_ne_bytes());
            }
        }
        // SAFETY: forwarded.
        let room = unsafe { target.length.read_unaligned() };
        if (room as i32) < 0 {
            return Outcome::fail(libc::EINVAL);
        }
        let length = room.min(length).min(info.len() as u32);
        if length != 0 && (target.value as usize) < 4096 {
            return Outcome::fail(libc::EFAULT);
        }
        // SAFETY: writable for `*length` bytes by the caller's word.
        unsafe {
            core::ptr::copy_nonoverlapping(info.as_ptr(), target.value, length as usize);
            target.length.write_unaligned(length);
        }
        Outcome::OK
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_option_is_listed_twice() {
        for (index, row) in TABLE.iter().enumerate() {
            assert!(!TABLE.iter().take(index).any(|other| (other.0, other.1) == (row.0, row.1)), "{row:?}");
        }
    }

    #[test]
    fn switches_and_ranges_are_what_the_kernel_says() {
        for &(level, name, class) in TABLE {
            let values: &[i32] = match class {
                Class::Switch => &[0, 1, 2, -1, i32::MAX],
                Class::Range(least, greatest) => &[least, greatest, least - 1, greatest.wrapping_add(1)],
                _ => continue,
            };
            for &value in values {
                let template = kernel::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap() as i32;
                let kernel_says = kernel::setsockopt(template, level, name, &value);
                let read = kernel::getsockopt::<i32>(template, level, name).unwrap();
                sys::close(template).unwrap();
                match class {
                    Class::Switch => {
                        assert!(kernel_says.is_ok(), "{name} {value}");
                        assert_eq!(read, i32::from(value != 0), "{name} {value}");
                    }
                    Class::Range(least, greatest) => {
                        let ours = if (least..=greatest).contains(&value) { Ok(0) } else { Err(Errno(libc::EINVAL)) };
                        assert_eq!(kernel_says, ours, "{name} {value}");
                        if ours.is_ok() {
                            assert_eq!(read, value, "{name}");
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn string_options_survive_their_four_places() {
        let side = Box::new(SideState {
            // SAFETY: all fields are atomics, for which zero is valid.
            ..unsafe { core::mem::zeroed() }
        });
        let text = *b"abcdefghijklmnop";
        assert!(store_name(&side.options, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &text));
        assert_eq!(stored_name(&side, libc::IPPROTO_TCP, libc::TCP_CONGESTION), Some(text));
        assert_eq!(side.option(libc::IPPROTO_TCP, libc::TCP_CONGESTION), None);
    }
}
