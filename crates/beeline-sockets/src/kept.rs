//! Options as a connection over a lane keeps them: what each is ([`table`]), what the kernel says of it on a socket,
//! and where it is stored.
//!
//! What is set on a socket that may become a lane goes into its draft as it is set. A listener that another program has
//! set up, or this one past the library, is asked for all of it once, when it is met ([`inherit`]): what it says is
//! compared with what a fresh socket says.

pub(crate) mod table;

use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::sys::call;

use crate::app_memory::in_first_page;
use crate::desc::Draft;
use crate::side::{option_of, store_name, store_option, store_rate};
use crate::{Errno, hidden, kernel, process};
use table::{Class, INHERITED, OPTION, TABLE};

/// Who has buffers up to this size, which is twice what was asked for, wants little to be on its way: less than a ring
/// holds.
const SMALL_BUFFER: i32 = 8192;

/// A time-out of negative seconds means no wait at all, which is told from "no time-out" by one nanosecond. The kernel
/// tells neither from the other.
pub(crate) const AT_ONCE_NS: u64 = 1;

/// A `struct timeval` as sock_set_timeout() takes it (Linux net/core/sock.c), in nanoseconds.
///
/// # Errors
/// Those of setsockopt(2).
///
/// # Safety
/// `value` must be readable for `length` bytes.
pub(crate) unsafe fn timeout_from(value: *const u8, length: u32) -> Result<u64, Errno> {
    if (length as usize) < size_of::<libc::timeval>() {
        return Err(Errno(libc::EINVAL));
    }
    if in_first_page(value as usize) {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: readable for at least a timeval.
    let time = unsafe { value.cast::<libc::timeval>().read_unaligned() };
    if !(0..1_000_000).contains(&time.tv_usec) {
        return Err(Errno(libc::EDOM));
    }
    if time.tv_sec < 0 {
        return Ok(AT_ONCE_NS);
    }
    let nanoseconds = (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_usec as u64 * 1_000);
    Ok(if time.tv_sec as u64 >= i64::MAX as u64 / 1_000 { 0 } else { nanoseconds })
}

/// What `SO_RCVTIMEO` or `SO_SNDTIMEO` of a socket of the kernel's is now that it has taken `value`: in its own units,
/// if it is a time.
///
/// # Safety
/// `value` must be readable for `length` bytes.
pub(crate) unsafe fn timeout_taken(fd: i32, name: i32, value: *const u8, length: u32) -> u64 {
    // SAFETY: forwarded.
    match unsafe { timeout_from(value, length) } {
        Ok(AT_ONCE_NS) => AT_ONCE_NS,
        _ => timeout_of(fd, name),
    }
}

fn timeout_of(fd: i32, name: i32) -> u64 {
    kernel::getsockopt::<libc::timeval>(fd, libc::SOL_SOCKET, name).map_or(0, |time| {
        (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add((time.tv_usec as u64).saturating_mul(1000))
    })
}

/// A time-out as the kernel keeps it, which has a clock of so many ticks in a second: in whole ticks, as many as last
/// for no less (sock_set_timeout() and sock_get_timeout(), Linux net/core/sock.c).
pub(crate) fn whole_ticks(timeout_ns: u64, ticks: u64) -> u64 {
    const SECOND_US: u64 = 1_000_000;
    let microseconds = timeout_ns / 1000;
    let tick_us = SECOND_US.checked_div(ticks).filter(|&tick_us| tick_us != 0);
    let Some(tick_us) = tick_us.filter(|_| timeout_ns != AT_ONCE_NS) else { return timeout_ns };
    let whole = (microseconds / SECOND_US).saturating_mul(ticks);
    let whole = whole.saturating_add((microseconds % SECOND_US).div_ceil(tick_us));
    let part_us = (whole % ticks).saturating_mul(SECOND_US) / ticks;
    (whole / ticks).saturating_mul(SECOND_US).saturating_add(part_us).saturating_mul(1000)
}

/// The ticks of the kernel's clock in a second: the coarse clocks go on by one tick, and their resolution is a tick in
/// whole nanoseconds (`TICK_NSEC`), of which no other number of ticks comes near. 0 where that is not told.
pub(crate) fn ticks_of_kernel() -> u64 {
    const SECOND_NS: u64 = 1_000_000_000;
    let mut tick = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec. It goes through the vDSO, and no hook of ours has that name.
    unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut tick) };
    let tick_ns = if tick.tv_sec == 0 { tick.tv_nsec as u64 } else { 0 };
    SECOND_NS.saturating_add(tick_ns / 2).checked_div(tick_ns).unwrap_or(0)
}

/// What the kernel is told for a time-out of a lane; `None` for none.
pub(crate) fn timeval_of(timeout_ns: u64) -> Option<libc::timeval> {
    let microseconds = (timeout_ns / 1000) as i64;
    match timeout_ns {
        0 => None,
        AT_ONCE_NS => Some(libc::timeval { tv_sec: -1, tv_usec: 0 }),
        _ => Some(libc::timeval { tv_sec: microseconds / 1_000_000, tv_usec: microseconds % 1_000_000 }),
    }
}

pub(crate) fn linger_of(fd: i32) -> Option<u32> {
    let linger = kernel::getsockopt::<libc::linger>(fd, libc::SOL_SOCKET, libc::SO_LINGER).ok()?;
    (linger.l_onoff != 0).then_some(linger.l_linger as u32)
}

pub(crate) fn low_water_of(fd: i32) -> u32 {
    kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).map_or(1, |bytes| bytes as u32)
}

/// The most that an option has which is no name: headers, addresses.
const VALUE_BYTES: usize = 64;

/// The value of an option as bytes, and how many the kernel gave.
fn bytes_of(fd: i32, level: i32, name: i32) -> Result<([u8; VALUE_BYTES], usize), Errno> {
    let mut value = [0u8; VALUE_BYTES];
    let mut length = value.len() as u32;
    let args = [fd as usize, level as usize, name as usize, value.as_mut_ptr() as usize, (&raw mut length) as usize, 0];
    // SAFETY: live places of the lengths given.
    unsafe { call(libc::SYS_getsockopt, args) }?;
    Ok((value, length as usize))
}

/// The value of an integer option; `None` if it is something else.
pub(crate) fn number_of(fd: i32, level: i32, name: i32) -> Option<i32> {
    let (value, length) = bytes_of(fd, level, name).ok()?;
    value.first_chunk().filter(|_| length == 4).map(|number| i32::from_ne_bytes(*number))
}

pub(crate) fn name_of(fd: i32, level: i32, name: i32) -> [u8; 16] {
    kernel::getsockopt::<[u8; 16]>(fd, level, name).unwrap_or_default()
}

pub(crate) fn rate_of(fd: i32) -> u64 {
    kernel::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE).unwrap_or(u64::MAX)
}

/// Stores an integer option in a draft. What it has no place for keeps the socket on TCP, as do buffers that a ring
/// would not limit.
pub(crate) fn keep_number(draft: &Draft, level: i32, name: i32, class: Class, number: i32) {
    keep_or_block(draft, store_option(&draft.options, level, name, number));
    if class == Class::Buffer && number <= SMALL_BUFFER {
        draft.connectable.block(OPTION);
    }
}

pub(crate) fn keep_or_block(draft: &Draft, kept: bool) {
    if !kept {
        draft.connectable.block(OPTION);
    }
}

/// A program chooses which listener of an address gets a client, and only the kernel can ask it. Noted in the drafts of
/// those that it chooses among, none of which goes into a lane.
pub(crate) fn note_chosen(draft: &Draft) {
    draft.connectable.block(OPTION);
    let _ = store_option(&draft.options, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, 1);
}

/// Whether that was noted.
pub(crate) fn is_chosen(draft: &Draft) -> bool {
    let noted = (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF);
    draft.options.iter().map(|option| option.key.load(Relaxed)).any(|key| key != 0 && option_of(key) == noted)
}

/// Fills the draft of a listener that was not made under our eyes with what its connections inherit, and finds out what
/// keeps them on TCP. `false` if there is no socket to compare it with, as descriptors are short.
///
/// What the kernel does not tell stays unknown: time-outs of negative seconds, keys of `TCP_MD5SIG`, policies of IPsec,
/// and programs that choose among the listeners of a port.
pub(crate) fn inherit(fd: i32, family: i32, draft: &Draft) -> bool {
    // Nothing of ours asks the kernel for anything any more.
    if process::is_sealed() {
        return false;
    }
    let Ok(fresh) = kernel::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) else { return false };
    let fresh = hidden::hide(fresh as i32);
    let plain = INHERITED.iter().map(|&(level, name)| (level, name, Class::Template));
    TABLE
        .iter()
        .copied()
        .chain(plain)
        .filter(|&(level, ..)| level != libc::IPPROTO_IPV6 || family == libc::AF_INET6)
        .for_each(|(level, name, class)| take_over(draft, fd, fresh, (level, name), class));
    hidden::close_hidden(fresh);
    true
}

/// One option of that listener's.
fn take_over(draft: &Draft, fd: i32, fresh: i32, (level, name): (i32, i32), class: Class) {
    match class {
        Class::Blocking(reason) => {
            if is_on(fd, level, name) {
                draft.connectable.block(reason);
            }
        }
        // The names that the kernel has for wider times mean the same.
        Class::ReceiveTimeout => draft.rcv_timeout_ns.store(timeout_of(fd, libc::SO_RCVTIMEO), Relaxed),
        Class::SendTimeout => draft.snd_timeout_ns.store(timeout_of(fd, libc::SO_SNDTIMEO), Relaxed),
        Class::Linger => draft.linger.set(linger_of(fd)),
        Class::ReceiveLowWater => draft.rcv_lowat.store(low_water_of(fd), Relaxed),
        Class::Name => {
            let text = name_of(fd, level, name);
            if text != name_of(fresh, level, name) {
                keep_or_block(draft, store_name(&draft.options, level, name, &text));
            }
        }
        Class::Rate => {
            if rate_of(fd) != u64::MAX {
                keep_or_block(draft, store_rate(&draft.options, rate_of(fd)));
            }
        }
        Class::Buffer if is_sized_by_kernel(fd, name) => {}
        Class::Switch | Class::Range(..) | Class::Template | Class::Buffer | Class::BusyPoll | Class::SegmentSize => {
            let number = number_of(fd, level, name);
            if let Some(number) = number.filter(|_| number != number_of(fresh, level, name)) {
                keep_number(draft, level, name, class, number);
            }
        }
        // IPV6_V6ONLY is noted of each listener.
        Class::V6Only | Class::IncomingCpu | Class::Error | Class::Fact(_) => {}
    }
}

/// Whether a socket has an option that a lane cannot honour: a number, a text or a header that is not empty.
fn is_on(fd: i32, level: i32, name: i32) -> bool {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER) {
        return has_filter(fd);
    }
    match (level, name, bytes_of(fd, level, name)) {
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF, Ok((value, _))) => {
            value.first_chunk().is_some_and(|number| i32::from_ne_bytes(*number) >= 0)
        }
        (.., Ok((value, length))) => value.iter().take(length).any(|&byte| byte != 0),
        (.., Err(_)) => false,
    }
}

/// Whether a socket has a filter. `SO_GET_FILTER` has the number of `SO_ATTACH_FILTER`, and counts instructions of
/// eight bytes: with a length of 0 the kernel tells how many there are, and writes none. It does not show a loaded
/// program.
fn has_filter(fd: i32) -> bool {
    let mut instructions = 0_u32;
    let (level, name) = (libc::SOL_SOCKET as usize, libc::SO_ATTACH_FILTER as usize);
    let args = [fd as usize, level, name, 0, (&raw mut instructions) as usize, 0];
    // SAFETY: a live place for the length, and no byte of anything else is written.
    match unsafe { call(libc::SYS_getsockopt, args) } {
        Ok(_) => instructions != 0,
        Err(errno) => errno.0 == libc::EACCES,
    }
}

/// Whether the kernel sizes a buffer as it thinks fit: nobody has set it (`SO_BUF_LOCK`, since Linux 5.14).
fn is_sized_by_kernel(fd: i32, name: i32) -> bool {
    let bit = if name == libc::SO_SNDBUF { 1 } else { 2 };
    number_of(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK).is_some_and(|set| set & bit == 0)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    /// The kernel has the last word on what is carried to a socket of its own: there, nobody waits either.
    #[test]
    fn no_wait_stays_no_wait_where_the_kernel_goes_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let negative = [-3_i64, 999_999].map(i64::to_ne_bytes).concat();
        // SAFETY: sixteen bytes that can be read.
        let timeout_ns = unsafe { timeout_from(negative.as_ptr(), 16) }.unwrap();
        let carried = timeval_of(timeout_ns).unwrap();
        kernel::setsockopt(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, &carried).unwrap();
        let (told, hears) = channel();
        std::thread::spawn(move || told.send(client.read(&mut [0]).map_err(|error| error.raw_os_error())));
        assert_eq!(hears.recv_timeout(Duration::from_secs(20)).unwrap(), Err(Some(libc::EAGAIN)));
    }

    #[test]
    fn times_are_in_whole_ticks_as_the_kernel_has_them() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = socket.as_raw_fd();
        let ticks = ticks_of_kernel();
        for (tv_sec, tv_usec) in [(0, 1), (0, 1500), (0, 999_999), (3, 1), (7, 500_000), (100_000, 4001), (0, 0)] {
            let wanted = libc::timeval { tv_sec, tv_usec };
            kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &wanted).unwrap();
            let exact = (tv_sec * 1_000_000 + tv_usec) as u64 * 1000;
            assert_eq!(whole_ticks(exact, ticks), timeout_of(fd, libc::SO_RCVTIMEO), "{tv_sec} s {tv_usec} us");
        }
        assert_eq!(whole_ticks(1_500_000, 100), 10_000_000);
        assert_eq!(whole_ticks(1_500_000, 300), 3_333_000);
        assert_eq!(whole_ticks(1_500_000, 1000), 2_000_000);
        assert_eq!((whole_ticks(1_500_000, 0), whole_ticks(AT_ONCE_NS, 250)), (1_500_000, AT_ONCE_NS));
    }

    #[test]
    fn a_listener_has_in_its_draft_what_was_set_on_it_and_nothing_else() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_raw_fd();
        let set = |level, name, value: i32| kernel::setsockopt(fd, level, name, &value).unwrap();
        let kept = |draft: &Draft| {
            let keys = draft.options.iter().map(|option| option.key.load(Relaxed));
            keys.filter(|&key| key != 0).map(option_of).collect::<Vec<_>>()
        };
        let draft = Draft::default();
        assert!(inherit(fd, libc::AF_INET, &draft));
        // The standard library sets it.
        assert_eq!(kept(&draft), [(libc::SOL_SOCKET, libc::SO_REUSEADDR)]);
        assert_eq!((draft.rcv_lowat.load(Relaxed), draft.linger.get()), (1, None));
        assert_eq!(draft.connectable.reason(), None);

        set(libc::SOL_SOCKET, libc::SO_SNDBUF, 50_000);
        set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 5000);
        set(libc::SOL_SOCKET, libc::SO_RCVLOWAT, 7);
        let half = libc::timeval { tv_sec: 0, tv_usec: 500_000 };
        kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &half).unwrap();
        let draft = Draft::default();
        assert!(inherit(fd, libc::AF_INET, &draft));
        let names = [
            (libc::SOL_SOCKET, libc::SO_REUSEADDR),
            (libc::SOL_SOCKET, libc::SO_SNDBUF),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
        ];
        assert_eq!(kept(&draft), names);
        assert_eq!((draft.rcv_lowat.load(Relaxed), draft.rcv_timeout_ns.load(Relaxed)), (7, 500_000_000));
        assert_eq!(draft.connectable.reason(), None);
    }

    #[test]
    fn what_no_lane_can_honour_is_found_on_a_listener() {
        for (level, name, value) in [
            (libc::SOL_SOCKET, libc::SO_TIMESTAMP, 1),
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 8),
            (libc::SOL_SOCKET, libc::SO_RCVBUF, 2000),
            (libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, 1),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            kernel::setsockopt(listener.as_raw_fd(), level, name, &value).unwrap();
            let draft = Draft::default();
            assert!(inherit(listener.as_raw_fd(), libc::AF_INET, &draft));
            assert_eq!(draft.connectable.reason(), Some(OPTION), "level {level} option {name}");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Each takes what comes: BPF_RET | BPF_K. Far more than there is room for where other options are asked.
        let instructions = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0xFFFF }; 400];
        let filter = libc::sock_fprog { len: 400, filter: instructions.as_ptr().cast_mut() };
        // SAFETY: a live program of that many instructions.
        let set = unsafe {
            let (value, length) = ((&raw const filter).cast(), size_of::<libc::sock_fprog>() as u32);
            libc::setsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value, length)
        };
        assert_eq!(set, 0);
        let draft = Draft::default();
        assert!(inherit(listener.as_raw_fd(), libc::AF_INET, &draft));
        assert_eq!(draft.connectable.reason(), Some(OPTION));
    }
}
