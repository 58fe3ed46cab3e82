//! `getsockopt` and `setsockopt`.
//!
//! No option ever reaches an anchor: its buffer sizes are part of the wake protocol. Instead, a lane keeps
//! what its app sets in the side, and the kernel is asked on a *template*, a TCP socket of the same family made
//! for the moment, what it thinks of a value and what an option is when nobody has set it. The few options
//! that servers set on every connection are decided here without one.
//!
//! On a socket that may yet become a lane, options go to the kernel, which judges them, and into the draft.
//! An option that a lane could not honour keeps the socket on TCP ([`block`]).

mod get;
mod loopback;

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use beeline_shm::sys::call;
use beeline_stats::Reason;

use crate::app_memory::in_first_page;
use crate::desc::{Desc, Kind};
use crate::kept::table::{Class, class, kept_as};
use crate::kept::{self, name_of, number_of, rate_of};
use crate::side::{SideState, store_name, store_option, store_rate};
use crate::{Errno, Outcome, changing, follow, hidden, kernel, meet, process};
pub use get::getsockopt;

/// What relays set on listeners for a moment.
const REUSES_PORT: (i32, i32) = (libc::SOL_SOCKET, libc::SO_REUSEPORT);

/// Whoever sets the first one anew sets the second one, too, which is kept like any other.
const TYPE_OF_SERVICE: (i32, i32) = (libc::IPPROTO_IP, libc::IP_TOS);
const PRIORITY: (i32, i32) = (libc::SOL_SOCKET, libc::SO_PRIORITY);

/// Keeps a socket that is not connected yet on TCP, also if another thread is connecting it: that one finds it, if it
/// has no lane yet. The first reason counts.
pub fn block(desc: &Desc, reason: Reason) {
    desc.draft.connectable.block(reason);
}

/// Runs `f` with a TCP socket of `family` that exists for that long only, out of the way of the app's numbers. No lock
/// may be held.
pub fn with_template(family: i32, f: impl FnOnce(i32) -> Outcome) -> Outcome {
    // A connection over TCP needs no number for this.
    match meet::with_room(|| kernel::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)) {
        Ok(template) => {
            let template = hidden::hide(template as i32);
            let outcome = f(template);
            hidden::close_hidden(template);
            outcome
        }
        Err(errno) => Outcome::Fail(errno),
    }
}

/// A fresh socket's `TCP_INFO`, and its length.
fn template_info(side: &SideState, info: &mut [u8], length: &mut usize) -> Outcome {
    with_template(side.family.load(Relaxed) as i32, |template| {
        let mut room = info.len() as u32;
        let (level, name) = (libc::IPPROTO_TCP as usize, libc::TCP_INFO as usize);
        let args = [template as usize, level, name, info.as_mut_ptr() as usize, (&raw mut room) as usize, 0];
        // SAFETY: live places of the lengths given.
        let outcome = unsafe { call(libc::SYS_getsockopt, args) }.into();
        *length = room as usize;
        outcome
    })
}

/// `setsockopt(2)` as the app called it, on any fd.
///
/// # Safety
/// `value` must be readable for `length` bytes, or be what the kernel would refuse.
unsafe fn raw_set(fd: i32, level: i32, name: i32, value: *const u8, length: u32) -> Outcome {
    let args = [fd as usize, level as usize, name as usize, value as usize, length as usize, 0];
    // SAFETY: forwarded.
    unsafe { process::raw(libc::SYS_setsockopt, args) }
}

/// `setsockopt(2)`.
///
/// # Safety
/// `value` must be readable for `length` bytes.
pub unsafe fn setsockopt(fd: i32, level: i32, name: i32, value: *const u8, length: u32) -> Outcome {
    let Some(desc) = crate::table::get(fd) else { return Outcome::Kernel };
    match desc.kind() {
        Kind::Lane if follow::follow_if_relayed(fd, desc) => Outcome::Kernel,
        // SAFETY: forwarded.
        Kind::Lane => unsafe { pin_and_set(fd, desc, level, name, value, length) },
        // SAFETY: forwarded.
        Kind::Tcp | Kind::Listener => unsafe { set_in_kernel(fd, desc, level, name, value, length) },
        _ => Outcome::Kernel,
    }
}

/// Sets an option of a lane. Out of line, so that who sets one of a TCP socket touches no page of it.
///
/// # Safety
/// As for [`setsockopt`].
#[inline(never)]
unsafe fn pin_and_set(fd: i32, desc: &'static Desc, level: i32, name: i32, value: *const u8, length: u32) -> Outcome {
    let _pin = desc.pin();
    if !desc.is_lane() || !crate::table::leads_to(fd, desc) {
        return Outcome::Kernel;
    }
    // SAFETY: forwarded.
    let outcome = unsafe { set_on_lane(desc, level, name, value, length) };
    if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
        crate::io::tell_linger(desc);
    }
    outcome
}

/// Sets an option of what may become a lane.
///
/// # Safety
/// As for [`setsockopt`].
#[inline(never)]
unsafe fn set_in_kernel(fd: i32, desc: &'static Desc, level: i32, name: i32, value: *const u8, length: u32) -> Outcome {
    // Not while a relay is being made, for which a listener is marked so.
    let is_marked = desc.kind() == Kind::Listener && (level, name) == REUSES_PORT;
    let _changing = is_marked.then(changing::changing);
    // SAFETY: forwarded.
    let outcome = unsafe { raw_set(fd, level, name, value, length) };
    if let Outcome::Done(_) = outcome {
        // SAFETY: the kernel has just taken the value.
        unsafe { record(fd, desc, level, name, value, length) };
    }
    outcome
}

/// Writes down what the kernel has accepted on a socket that may become a lane.
///
/// # Safety
/// `value` must be readable for `length` bytes.
#[inline(never)]
unsafe fn record(fd: i32, desc: &'static Desc, level: i32, name: i32, value: *const u8, length: u32) {
    let draft = &desc.draft;
    let name = kept_as(level, name);
    match class(level, name) {
        Class::Blocking(reason) => {
            // Switched off before it was ever on: nothing that a lane would have to honour.
            // SAFETY: forwarded.
            if !unsafe { is_off(level, name, value, length) } {
                block(desc, reason);
                if is_group_program(level, name) {
                    meet::leave_doors_of_group(desc);
                }
            }
        }
        Class::ReceiveTimeout => {
            // SAFETY: forwarded.
            let timeout_ns = unsafe { kept::timeout_taken(fd, libc::SO_RCVTIMEO, value, length) };
            draft.rcv_timeout_ns.store(timeout_ns, Relaxed);
        }
        Class::SendTimeout => {
            // SAFETY: forwarded.
            let timeout_ns = unsafe { kept::timeout_taken(fd, libc::SO_SNDTIMEO, value, length) };
            draft.snd_timeout_ns.store(timeout_ns, Relaxed);
        }
        Class::Linger => draft.linger.set(kept::linger_of(fd)),
        Class::ReceiveLowWater => draft.rcv_lowat.store(kept::low_water_of(fd), Relaxed),
        Class::Name => {
            let kept = store_name(&draft.options, level, name, &name_of(fd, level, name));
            kept::keep_or_block(draft, kept);
        }
        Class::Switch | Class::Range(..) => {
            // SAFETY: forwarded; the kernel has just taken the value, for which it wants an int's four bytes at least.
            let number = unsafe { value.cast::<i32>().read_unaligned() };
            let number = if class(level, name) == Class::Switch { i32::from(number != 0) } else { number };
            kept::keep_or_block(draft, store_option(&draft.options, level, name, number));
        }
        Class::Rate => kept::keep_or_block(draft, store_rate(&draft.options, rate_of(fd))),
        Class::Template | Class::SegmentSize | Class::V6Only | Class::Buffer | Class::BusyPoll => {
            if let Some(number) = number_of(fd, level, name) {
                kept::keep_number(draft, level, name, class(level, name), number);
            }
            if (level, name) == TYPE_OF_SERVICE
                && let Some(priority) = number_of(fd, PRIORITY.0, PRIORITY.1)
            {
                kept::keep_number(draft, PRIORITY.0, PRIORITY.1, Class::Template, priority);
            }
        }
        Class::IncomingCpu | Class::Error | Class::Fact(_) => {}
    }
    if desc.kind() == Kind::Listener {
        if (level, name) == REUSES_PORT {
            // SAFETY: the kernel has just taken the value, for which it wants an int's four bytes at least.
            meet::note_reuse_of_port(desc, unsafe { value.cast::<i32>().read_unaligned() } != 0);
        }
        meet::leave_door_if_blocked(desc);
    }
}

/// Whether an option is a program that chooses which listener of a port gets a client.
fn is_group_program(level: i32, name: i32) -> bool {
    level == libc::SOL_SOCKET && matches!(name, libc::SO_ATTACH_REUSEPORT_CBPF | libc::SO_ATTACH_REUSEPORT_EBPF)
}

/// Whether a connection over a lane may have an option all the same, which would have kept it on TCP before: only a
/// listener makes use of it.
fn is_listeners(level: i32, name: i32) -> bool {
    (level, name) == (libc::IPPROTO_TCP, libc::TCP_SAVE_SYN)
}

/// Whether an option is switched off by a value that the kernel took: an integer of 0, a device without a name, a
/// header without bytes.
///
/// # Safety
/// `value` must be readable for `length` bytes.
unsafe fn is_off(level: i32, name: i32, value: *const u8, length: u32) -> bool {
    match length {
        0 => true,
        // The number of a descriptor, with which a program is attached.
        _ if level == libc::SOL_SOCKET && matches!(name, libc::SO_ATTACH_BPF | libc::SO_ATTACH_REUSEPORT_EBPF) => false,
        // SAFETY: the caller guarantees that there is a byte.
        _ if (level, name) == (libc::SOL_SOCKET, libc::SO_BINDTODEVICE) => unsafe { value.read() == 0 },
        // SAFETY: the same; the kernel reads four of them.
        4.. if (level, name) == (libc::SOL_SOCKET, libc::SO_PEEK_OFF) => unsafe {
            value.cast::<i32>().read_unaligned() < 0
        },
        // SAFETY: the caller guarantees that there are four.
        4 => unsafe { value.cast::<i32>().read_unaligned() == 0 },
        _ => false,
    }
}

/// # Safety
/// `value` must be readable for `length` bytes.
unsafe fn set_on_lane(desc: &'static Desc, level: i32, name: i32, value: *const u8, length: u32) -> Outcome {
    let side = desc.side();
    let kept_as = kept_as(level, name);
    let class = class(level, kept_as);
    match class {
        Class::Switch | Class::Range(..) => {
            if (length as i32) < 4 {
                return Outcome::fail(libc::EINVAL);
            }
            if in_first_page(value as usize) {
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
                crate::io::set_inline(desc, number != 0);
            }
            side.note_extra(level, name, number);
            stored(side.set_option(level, name, number))
        }
        Class::V6Only if side.family.load(Relaxed) as i32 == libc::AF_INET6 => Outcome::fail(libc::EINVAL),
        Class::Error | Class::Fact(_) => Outcome::fail(libc::ENOPROTOOPT),
        // Needs no template, so that it works when the fd table is full, and as the kernel does not tell all of it.
        Class::ReceiveTimeout | Class::SendTimeout => {
            // SAFETY: forwarded.
            match unsafe { kept::timeout_from(value, length) } {
                Ok(timeout_ns) => {
                    let place =
                        if class == Class::ReceiveTimeout { &side.rcv_timeout_ns } else { &side.snd_timeout_ns };
                    place.store(in_ticks(timeout_ns), Relaxed);
                }
                Err(errno) => return Outcome::Fail(errno),
            }
            Outcome::OK
        }
        // Only a listener, or what may become one, has a queue for it.
        Class::Template if (level, name) == (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) => {
            Outcome::fail(if length as i32 >= 4 && in_first_page(value as usize) { libc::EFAULT } else { libc::EINVAL })
        }
        _ => with_template(side.family.load(Relaxed) as i32, |template| {
            take_to_present(side, template, (level, name));
            // SAFETY: forwarded.
            let outcome = unsafe { raw_set(template, level, name, value, length) };
            match outcome {
                // What a lane cannot do is refused as by a kernel that was built without it; to switch it off is fine.
                Outcome::Done(_) if matches!(class, Class::Blocking(_)) && !is_listeners(level, name) => {
                    // SAFETY: the kernel has just read that many bytes.
                    match unsafe { is_off(level, name, value, length) } {
                        true => Outcome::OK,
                        false => Outcome::fail(libc::ENOPROTOOPT),
                    }
                }
                Outcome::Done(_) => adopt(desc, template, level, kept_as, class),
                // A template is not connected: only a connection may have this, so a lane cannot.
                Outcome::Fail(Errno(libc::ENOTCONN)) => Outcome::fail(libc::ENOPROTOOPT),
                _ => outcome,
            }
        }),
    }
}

/// Gives a template what the connection has at present, where the kernel's answer depends on it. `SO_BUSY_POLL`, as far
/// as the kernel lets it: older ones let an unprivileged program lower it, and not raise it. `IP_TOS` sets the priority
/// only where it is another one than before.
fn take_to_present(side: &SideState, template: i32, option: (i32, i32)) {
    let take = |(level, name), usual: Option<i32>| {
        if let Some(present) = side.option(level, name).or(usual) {
            let _ = kernel::setsockopt(template, level, name, &present);
        }
    };
    match option {
        (libc::SOL_SOCKET, libc::SO_BUSY_POLL) => take(option, None),
        TYPE_OF_SERVICE => {
            take(TYPE_OF_SERVICE, None);
            take(PRIORITY, Some(0));
        }
        _ => {}
    }
}

/// A time-out as the kernel would keep it, in whole ticks of its clock. How long they are is asked once.
fn in_ticks(timeout_ns: u64) -> u64 {
    static TICKS: AtomicU64 = AtomicU64::new(0);
    if timeout_ns > kept::AT_ONCE_NS && TICKS.load(Relaxed) == 0 {
        TICKS.store(kept::ticks_of_kernel(), Relaxed);
    }
    kept::whole_ticks(timeout_ns, TICKS.load(Relaxed))
}

/// Takes over from the template what it was set to.
fn adopt(desc: &'static Desc, template: i32, level: i32, name: i32, class: Class) -> Outcome {
    let side = desc.side();
    match class {
        Class::Linger => side.linger.set(kept::linger_of(template)),
        Class::ReceiveLowWater => crate::io::set_low_water(desc, kept::low_water_of(template)),
        // A connection's segments are what they are, and its peer runs where it does.
        Class::SegmentSize | Class::IncomingCpu => {}
        Class::Rate => return stored(store_rate(&side.options, rate_of(template))),
        Class::Name => return stored(store_name(&side.options, level, name, &name_of(template, level, name))),
        _ => {
            if let Some(number) = number_of(template, level, name) {
                if class == Class::BusyPoll {
                    desc.set_busy_poll(number);
                }
                let is_kept = side.set_option(level, name, number);
                let sets_priority = (level, name) == TYPE_OF_SERVICE;
                let priority = sets_priority.then(|| number_of(template, PRIORITY.0, PRIORITY.1)).flatten();
                return stored(is_kept && priority.is_none_or(|it| side.set_option(PRIORITY.0, PRIORITY.1, it)));
            }
        }
    }
    Outcome::OK
}

fn stored(kept: bool) -> Outcome {
    if kept { Outcome::OK } else { Outcome::fail(libc::ENOBUFS) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::table::TABLE;

    #[test]
    fn no_option_is_listed_twice() {
        for (index, row) in TABLE.iter().enumerate() {
            assert!(!TABLE.iter().take(index).any(|other| (other.0, other.1) == (row.0, row.1)), "{row:?}");
        }
    }

    #[test]
    fn the_documented_table_is_this_one() {
        use beeline_stats::semantics::{Handling, OPTIONS};
        let documented =
            |level, name| OPTIONS.iter().find(|row| row.number == (level, name)).map(|row| row.row.handling);
        for &(level, name, class) in TABLE {
            let falls_back = match documented(level, name) {
                Some(Handling::FallsBack(reason)) => Some(reason),
                Some(_) => None,
                None => panic!("level {level} option {name} is missing in beeline_stats::semantics"),
            };
            let blocks = if let Class::Blocking(reason) = class { Some(reason) } else { None };
            assert_eq!(falls_back, blocks, "level {level} option {name}");
        }
        for row in OPTIONS {
            let (level, name) = row.number;
            assert!(TABLE.iter().any(|known| (known.0, known.1) == (level, name)), "{:?}", row.row.names);
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
                beeline_shm::sys::close(template).unwrap();
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
}
