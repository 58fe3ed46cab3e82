//! `fcntl` and `ioctl`.
//!
//! File status flags belong to the description, and so to the anchor, which keeps them over `fork` and
//! `exec`; a lane's `O_NONBLOCK` stands in its side as well, where operations look. Signals on readiness
//! (`O_ASYNC`) work with an anchor as far as doorbells go, which is not always; a socket that asks for them
//! before it is connected stays on TCP.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::Since;
use beeline_stats::Reason;

use super::fds::{dup_from, hidden_refusal, note_nonblock};
use crate::anchor::Anchor;
use crate::app_memory::in_first_page;
use crate::desc::{Desc, Kind};
use crate::ending::stand_no_more;
use crate::linux::{F_SETOWN_EX, FIOGETOWN, FIOSETOWN, SIOCATMARK, SIOCGPGRP, SIOCSPGRP};
use crate::process::raw;
use crate::side::state;
use crate::{Outcome, epoll, follow, guards, io, kernel, options, table};

/// `fcntl(2)`.
///
/// # Safety
/// `argument` must be what the command takes, as for fcntl(2).
pub unsafe fn fcntl(fd: i32, command: i32, argument: usize) -> Outcome {
    let Some(desc) = table::get(fd) else {
        // Loops that ask which fds are open shall not see ours.
        return hidden_refusal(fd).unwrap_or_else(|| match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => dup_from(fd, command, argument),
            _ => Outcome::Kernel,
        });
    };
    follow::follow_if_relayed(fd, desc);
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => dup_from(fd, command, argument),
        libc::F_SETFL => set_flags(fd, desc, argument),
        libc::F_SETFD => set_inheritable(desc, argument & libc::FD_CLOEXEC as usize == 0, || {
            // SAFETY: flags are a number.
            unsafe { kernel::fcntl(fd, libc::F_SETFD, argument) }.into()
        }),
        libc::F_SETOWN | F_SETOWN_EX => set_owner(fd, desc, libc::SYS_fcntl, [command as usize, argument]),
        _ => Outcome::Kernel,
    }
}

/// Runs `change`, by which a number becomes one that stays open in other programs, or does not any more.
fn set_inheritable(desc: &Desc, inheritable: bool, change: impl FnOnce() -> Outcome) -> Outcome {
    if inheritable {
        epoll::set_inheritable(desc, true);
    }
    let outcome = change();
    if !inheritable && matches!(outcome, Outcome::Done(_)) {
        epoll::set_inheritable(desc, false);
    }
    outcome
}

fn set_flags(fd: i32, desc: &'static Desc, flags: usize) -> Outcome {
    // SAFETY: flags are a number.
    let outcome = unsafe { kernel::fcntl(fd, libc::F_SETFL, flags) }.into();
    if let Outcome::Done(_) = outcome {
        note_flags(fd, desc, flags as i32 & libc::O_NONBLOCK != 0, flags as i32 & libc::O_ASYNC != 0);
        if flags as i32 & (libc::O_APPEND | libc::O_NOATIME) != 0 {
            keep_no_end(fd, desc);
        }
    }
    outcome
}

/// The connection has a mode, beside `O_NONBLOCK`, that the next one over the same anchor would have, too, which nobody
/// asks for (`meet::standing`).
fn keep_no_end(fd: i32, desc: &'static Desc) {
    if desc.is_lane()
        && let Some(_guard) = guards::tx_of(fd, desc)
    {
        stand_no_more(fd, desc);
    }
}

/// `F_SETOWN` and its kin: whom the kernel signals about urgent bytes.
fn set_owner(fd: i32, desc: &'static Desc, call: libc::c_long, arguments: [usize; 2]) -> Outcome {
    // SAFETY: the app's arguments, passed on.
    let outcome = unsafe { raw(call, [fd as usize, arguments[0], arguments[1], 0, 0, 0]) };
    if let Outcome::Done(_) = outcome {
        match desc.kind() {
            Kind::Lane => io::own(fd),
            _ => desc.draft.owned.store(true, Relaxed),
        }
    }
    outcome
}

fn note_flags(fd: i32, desc: &'static Desc, nonblock: bool, asynchronous: bool) {
    if desc.is_lane() {
        note_nonblock(desc, nonblock);
    }
    note_async(fd, desc, asynchronous);
}

/// `ioctl(2)`.
///
/// # Safety
/// `argument` must be what the request takes, as for ioctl(2).
pub unsafe fn ioctl(fd: i32, request: u64, argument: usize) -> Outcome {
    let Some(desc) = table::get(fd) else { return hidden_refusal(fd).unwrap_or(Outcome::Kernel) };
    follow::follow_if_relayed(fd, desc);
    // The kernel looks at 32 bits of the request, and libc's callers sign-extend.
    let request = request & 0xFFFF_FFFF;
    let kind = desc.kind();
    if request == libc::FIONBIO || request == libc::FIOASYNC {
        // SAFETY: forwarded from the caller.
        let outcome = unsafe { raw(libc::SYS_ioctl, [fd as usize, request as usize, argument, 0, 0, 0]) };
        if let Outcome::Done(_) = outcome {
            // SAFETY: the kernel has just read an int there.
            let on = unsafe { (argument as *const i32).read_unaligned() } != 0;
            if request == libc::FIOASYNC {
                note_async(fd, desc, on);
            } else if kind == Kind::Lane {
                note_nonblock(desc, on);
            }
        }
        return outcome;
    }
    if request == FIOSETOWN || request == SIOCSPGRP {
        return set_owner(fd, desc, libc::SYS_ioctl, [request as usize, argument]);
    }
    if request == libc::FIOCLEX || request == libc::FIONCLEX {
        return set_inheritable(desc, request == libc::FIONCLEX, || {
            // SAFETY: neither takes an argument.
            unsafe { raw(libc::SYS_ioctl, [fd as usize, request as usize, argument, 0, 0, 0]) }
        });
    }
    if kind != Kind::Lane {
        return Outcome::Kernel;
    }
    let value = match request {
        libc::FIONREAD => guards::lane_rx(fd).map(|guard| Ok(io::unread_bytes(desc, guard.side))),
        SIOCATMARK => guards::lane_rx(fd).map(|guard| Ok(u32::from(io::at_mark(desc, guard.side)))),
        // TCP counts what is not acknowledged, and the peer's kernel acknowledges what its program has yet to read.
        libc::TIOCOUTQ => guards::lane_tx(fd).map(|guard| match guard.side.is(state::BRIDGED) {
            true => guard.writer().unread(),
            false => Ok(0),
        }),
        libc::SIOCOUTQNSD => Some(Ok(0)),
        FIOGETOWN | SIOCGPGRP => return Outcome::Kernel,
        // The rest of the socket requests ask about the network, which an AF_UNIX socket does not know.
        0x8900..=0x8BFF => {
            let Some(pin) = guards::pin(fd, desc).filter(|_| desc.is_lane()) else { return Outcome::Kernel };
            let family = desc.side().family.load(Relaxed) as i32;
            drop(pin);
            return options::with_template(family, |template| {
                // SAFETY: forwarded from the caller.
                unsafe { raw(libc::SYS_ioctl, [template as usize, request as usize, argument, 0, 0, 0]) }
            });
        }
        _ => return Outcome::Kernel,
    };
    let Some(value) = value else { return Outcome::Kernel };
    if in_first_page(argument) {
        return Outcome::fail(libc::EFAULT);
    }
    // A peer that lies about its cursors is found out by the next operation; there is nothing to read.
    let value = value.map_or(0, |bytes| bytes as i32);
    // SAFETY: the caller promised room for an int.
    unsafe { (argument as *mut i32).write_unaligned(value) };
    Outcome::OK
}

/// `sockatmark(3)`.
pub fn sockatmark(fd: i32) -> Outcome {
    let mut value = 0i32;
    // SAFETY: the request writes one int.
    match unsafe { ioctl(fd, SIOCATMARK, (&raw mut value) as usize) } {
        Outcome::Done(_) => Outcome::Done(value as isize),
        outcome => outcome,
    }
}

fn note_async(fd: i32, desc: &'static Desc, on: bool) {
    match desc.kind() {
        Kind::Tcp | Kind::Listener if on => options::block(desc, Reason::AsyncIo),
        Kind::Lane => {
            desc.pace.ask_signals(on);
            if on {
                have_it_ring(fd, desc);
                keep_no_end(fd, desc);
            }
        }
        _ => {}
    }
}

/// A receive that found nothing before the program asked for signals may have been excused from arming the lane.
fn have_it_ring(fd: i32, desc: &'static Desc) {
    // None that others share is excused.
    if desc.entries.load(Relaxed) != 0 || desc.shared.load(Relaxed) {
        return;
    }
    let Some(guard) = guards::rx_of(fd, desc) else { return };
    let is_named = guard.side.rx.sleep() != 0;
    // A fault is found again by whoever reads.
    let _ = guard.arm(Since::Read, &Anchor(fd));
    drop(guard);
    if is_named {
        io::alarm_poller();
    }
}
