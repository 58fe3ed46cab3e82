//! What the host's agent needs of this crate (`docs/design/0008-namespaces.md`): messages with descriptors, the page,
//! what strangers hold, and the proof of which connection that is an end of.

mod found;
mod guard;
mod process;
mod proof;

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use beeline_shm::sys::call;
use beeline_wire::DoorName;

pub use self::found::{end_of, owner_of};
pub use self::guard::{mark_this_threads_end, sends_as_nobody_else, shut};
pub use self::proof::{End, Pair, Prover};
pub use super::farewell::was_said as has_taken_leave;
pub use super::message::{Came, name_senders, receive, send};
pub use super::page::Page;
pub use beeline_guest::Errno;

use crate::kernel::{self, SockAddr};

/// The nice value of the agent's threads.
const NICE: isize = -10;

/// Whether it is this module that has given it to them.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Lets this thread, and those that it makes from now on, have a CPU before those that compute (setpriority(2)):
/// whoever asks the agent waits for it. Without the power to do that nothing changes; nor if whoever has started the
/// agent gave it another priority than programs have.
pub fn take_precedence() {
    if precedence() == Ok(0) && set_precedence(NICE) {
        TAKEN.store(true, Relaxed);
    }
}

/// Lets this thread be as programs are until it takes precedence again, if that is what has raised it.
pub fn give_precedence_up() {
    if TAKEN.load(Relaxed) && precedence() == Ok(NICE) {
        set_precedence(0);
    }
}

fn set_precedence(nice: isize) -> bool {
    // SAFETY: plain numbers.
    (unsafe { call(libc::SYS_setpriority, [libc::PRIO_PROCESS as usize, 0, nice.cast_unsigned(), 0, 0, 0]) }).is_ok()
}

/// The nice value of this thread.
fn precedence() -> Result<isize, Errno> {
    // SAFETY: plain numbers. The kernel says 20 less that value, which is never negative.
    unsafe { call(libc::SYS_getpriority, [libc::PRIO_PROCESS as usize, 0, 0, 0, 0, 0]) }
        .map(|said| 20 - said.cast_signed())
}

/// A connected pair of `AF_UNIX` sockets: the client's end of a lane, and the server's. The client's takes no
/// descriptors. Either is known for an anchor by the server's name, in whichever program it comes to be: that of a door
/// whose listener there is not, since no two sockets of a host have one cookie.
///
/// # Errors
/// Those of socketpair(2) and bind(2).
pub fn pair() -> Result<(std::os::fd::OwnedFd, std::os::fd::OwnedFd), Errno> {
    let mut ends = [0i32; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let args = [libc::AF_UNIX as usize, kind as usize, 0, ends.as_mut_ptr() as usize, 0, 0];
    // SAFETY: a live place for two descriptors.
    unsafe { call(libc::SYS_socketpair, args) }?;
    let [client, server] = ends.map(own);
    let cookie: u64 = kernel::getsockopt(server.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE)?;
    let name = SockAddr::abstract_unix(DoorName::encode(cookie).as_bytes()).ok_or(Errno(libc::EINVAL))?;
    kernel::bind(server.as_raw_fd(), &name)?;
    let _ = crate::trust::refuse_rights(client.as_raw_fd());
    Ok((client, server))
}

/// The user at the other end of a carrier, and the network namespace that this end was made in: an accepted `AF_UNIX`
/// socket is the connecting one's in this.
#[must_use]
pub fn holder_of(carrier: i32) -> Option<(u32, u64)> {
    let found: libc::ucred = kernel::getsockopt(carrier, libc::SOL_SOCKET, libc::SO_PEERCRED).ok()?;
    Some((found.uid, kernel::namespace(carrier)?))
}

/// Whether a message that came over a carrier is of the very process that has connected it: others may have a copy of
/// the carrier.
#[must_use]
pub fn is_its_own(carrier: i32, sender: Option<libc::ucred>) -> bool {
    let maker: Result<libc::ucred, Errno> = kernel::getsockopt(carrier, libc::SOL_SOCKET, libc::SO_PEERCRED);
    maker.is_ok_and(|maker| maker.pid != 0 && sender.is_some_and(|sender| sender.pid == maker.pid))
}

/// Lets no more lie in a carrier's queue, of what this end sends, than a few short messages: it is memory of who sends,
/// and stays for as long as the other end likes.
///
/// # Errors
/// Those of setsockopt(2).
pub fn send_little(carrier: i32) -> Result<(), Errno> {
    // The kernel makes that the least that it allows.
    kernel::setsockopt(carrier, libc::SOL_SOCKET, libc::SO_SNDBUF, &0i32).map(|_| ())
}

/// Whether the other end of a carrier has left unread what was sent to it.
#[must_use]
pub fn is_unread(carrier: i32) -> bool {
    let mut unread = 0i32;
    let args = [carrier as usize, libc::TIOCOUTQ as usize, (&raw mut unread) as usize, 0, 0, 0];
    // SAFETY: a live place for a number.
    unsafe { call(libc::SYS_ioctl, args) }.is_ok() && unread != 0
}

/// Sends an answer to who has connected a carrier, in that process's name: only who has the host's power can
/// ([`super::finding`]).
///
/// # Errors
/// Those of sendmsg(2).
pub fn answer(carrier: i32, bytes: &[u8], descriptor: Option<i32>) -> Result<(), Errno> {
    let maker: libc::ucred = kernel::getsockopt(carrier, libc::SOL_SOCKET, libc::SO_PEERCRED)?;
    // SAFETY: takes nothing, and cannot fail.
    let gid = unsafe { call(libc::SYS_getegid, [0; 6]) }? as u32;
    match maker.pid {
        0 => send(carrier, bytes, descriptor),
        pid => super::message::send_as(carrier, bytes, descriptor, libc::ucred { pid, uid: crate::trust::euid(), gid }),
    }
}

/// What the process that has connected a carrier has under a number of its own (pidfd_getfd(2)). To be closed with
/// [`close`]. Only while that process is still wholly its user's: it may have executed a program that is another's.
///
/// # Errors
/// `EBADF` for nothing; `ESRCH` for a process that has ended; `EACCES` for one that is not that user's any more;
/// `EPERM` without the power to; `ENOPROTOOPT` before Linux 6.5.
pub fn taken_from(carrier: i32, number: u32) -> Result<i32, Errno> {
    let maker: libc::ucred = kernel::getsockopt(carrier, libc::SOL_SOCKET, libc::SO_PEERCRED)?;
    let process = own(kernel::getsockopt(carrier, libc::SOL_SOCKET, libc::SO_PEERPIDFD)?);
    // SAFETY: plain numbers.
    let taken = unsafe { call(libc::SYS_pidfd_getfd, [process.as_raw_fd() as usize, number as usize, 0, 0, 0, 0]) }?;
    // In this order: what it has taken on since, it has not had when the descriptor was taken.
    match process::is_wholly_of(process.as_raw_fd(), maker.pid, maker.uid) {
        Ok(true) => Ok(taken as i32),
        other => {
            close(taken as i32);
            Err(other.err().unwrap_or(Errno(libc::EACCES)))
        }
    }
}

/// Closes a descriptor that a stranger has sent. May block for as long as that one likes.
pub fn close(fd: i32) {
    crate::disarm::disarm(fd);
}

/// A descriptor of the network namespace that a socket belongs to (`SIOCGSKNS`, for which power over it is needed).
///
/// # Errors
/// Those of ioctl(2).
pub fn namespace_of(socket: i32) -> Result<std::os::fd::OwnedFd, Errno> {
    use std::os::fd::FromRawFd;
    // SAFETY: a request without an argument.
    let fd = unsafe { call(libc::SYS_ioctl, [socket as usize, libc::SIOCGSKNS as usize, 0, 0, 0, 0]) }?;
    // SAFETY: made just now, and nobody else's.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd as i32) })
}

/// A descriptor that the kernel has just given out to the caller, and that nobody else will close.
#[must_use]
pub fn own(fd: i32) -> std::os::fd::OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: given out by the kernel, and so not -1, at which the standard library panics. That nobody else closes it
    // is the caller's matter, as with close(2), which is safe here, too: at worst one is closed that is in use.
    unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) }
}

/// Lets `f` have a descriptor that stays open meanwhile.
pub fn borrowed<R>(fd: i32, f: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> R) -> R {
    // No descriptor is one that is never given out: the kernel refuses it as well, and `BorrowedFd` can hold it.
    let fd = if fd < 0 { i32::MAX } else { fd };
    // SAFETY: not -1. That it stays open is the caller's matter: at worst a system call goes to another one.
    f(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_descriptor_is_refused_by_the_kernel_alone() {
        for fd in [-1, i32::MIN] {
            assert_eq!(borrowed(fd, |fd| kernel::status_flags(fd.as_raw_fd())), Err(Errno(libc::EBADF)));
        }
    }

    #[test]
    fn a_priority_that_somebody_has_chosen_is_kept() {
        // Threads of their own, as a lower priority may be for good.
        let told = std::thread::spawn(|| {
            let before = precedence().unwrap();
            let lower = (before + 1).clamp(1, 19);
            let args = [libc::PRIO_PROCESS as usize, 0, lower.cast_unsigned(), 0, 0, 0];
            // SAFETY: plain numbers.
            unsafe { call(libc::SYS_setpriority, args) }.unwrap();
            take_precedence();
            give_precedence_up();
            (lower, precedence().unwrap())
        });
        let (lower, kept) = told.join().unwrap();
        assert_eq!(kept, lower);
        let told = std::thread::spawn(|| {
            let before = precedence().unwrap();
            take_precedence();
            let taken = precedence().unwrap();
            give_precedence_up();
            let given_up = precedence().unwrap();
            take_precedence();
            (before, taken, given_up, precedence().unwrap())
        });
        let (before, taken, given_up, again) = told.join().unwrap();
        assert!(taken == before || before == 0 && taken == -10, "{before} {taken}");
        assert_eq!((given_up, again), (before, taken));
    }
    #[test]
    fn what_is_left_unread_is_seen_and_is_not_much() {
        let mut ends = [0i32; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let args = [libc::AF_UNIX as usize, kind as usize, 0, ends.as_mut_ptr() as usize, 0, 0];
        // SAFETY: a live place for two descriptors.
        unsafe { call(libc::SYS_socketpair, args) }.unwrap();
        let [agents, programs] = ends.map(own);
        let fd = agents.as_raw_fd();
        send_little(fd).unwrap();
        assert!(!is_unread(fd));
        let sent = (0..100).take_while(|_| send(fd, b"answer", None).is_ok()).count();
        assert!((1..32).contains(&sent) && is_unread(fd), "{sent}");
        for _ in 0..sent {
            assert!(is_unread(fd));
            assert_eq!(receive(programs.as_raw_fd(), &mut [0; 8], drop).map(|came| came.length), Ok(6));
        }
        assert!(!is_unread(fd));
    }
}
