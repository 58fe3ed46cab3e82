//! Messages with descriptors, between programs and the host's agent.
//!
//! Both ends take what comes as hostile: there is room for every descriptor that the kernel lets travel with one
//! message, since it would drop, and thereby close, what finds none. Those that were not asked for are given to the
//! caller's care like the others, since closing one may block for as long as its sender likes.

use crate::control::{self, Control, RIGHTS_MAX, control_bytes};
use crate::{Errno, kernel};

/// Room for who has sent a message.
// SAFETY: computes a size from a small number.
const SENDER_BYTES: usize = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) as usize };

/// Sends a message, with a descriptor perhaps, without waiting.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send(fd: i32, bytes: &[u8], descriptor: Option<i32>) -> Result<(), Errno> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control::empty();
    let message = match descriptor {
        Some(descriptor) => control::message_with(&mut part, &mut control, descriptor),
        None => libc::msghdr { msg_controllen: 0, ..control::message(&mut part, &mut control) },
    };
    // SAFETY: iovec, bytes and control data are live and of the lengths given; a send only reads them.
    unsafe { kernel::sendmsg(fd, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }.map(|_| ())
}

/// As [`send`], and says that it is `client` who sends, where this process has power (`CAP_SYS_ADMIN`) over a pid
/// namespace that has that process; else it is as without. Who is told of itself knows that power.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send_as(fd: i32, bytes: &[u8], descriptor: Option<i32>, client: libc::ucred) -> Result<(), Errno> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control::<{ control::ONE + SENDER_BYTES }>::empty();
    let message = control::message_of(&mut part, &mut control, |filling| {
        filling.add(libc::SCM_CREDENTIALS, client);
        if let Some(descriptor) = descriptor {
            filling.add(libc::SCM_RIGHTS, descriptor);
        }
    });
    // SAFETY: iovec, bytes and control data are live and of the lengths given; a send only reads them.
    match unsafe { kernel::sendmsg(fd, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) } {
        Err(Errno(libc::EPERM | libc::ESRCH)) => send(fd, bytes, descriptor),
        sent => sent.map(|_| ()),
    }
}

/// What came with a message.
pub struct Came {
    /// Bytes of the message; 0 at the end of the connection.
    pub length: usize,
    /// The descriptor, if it was exactly one. The caller's.
    pub descriptor: Option<i32>,
    /// Whether there were more descriptors, or some that found no room.
    pub strange: bool,
    /// Who has sent it, by the kernel's word, where this end has asked for that ([`name_senders`]).
    pub sender: Option<libc::ucred>,
}

/// Asks the kernel to say of each message that comes who has sent it.
///
/// # Errors
/// Those of setsockopt(2).
pub fn name_senders(fd: i32) -> Result<(), Errno> {
    kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_PASSCRED, &1i32).map(|_| ())
}

/// Takes a message without waiting. Descriptors beyond the one that may come are given to `surplus`.
///
/// # Errors
/// Those of recvmsg(2).
pub fn receive(fd: i32, bytes: &mut [u8], mut surplus: impl FnMut(i32)) -> Result<Came, Errno> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control::<{ control_bytes(RIGHTS_MAX) + SENDER_BYTES }>::empty();
    let mut message = control::message(&mut part, &mut control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: iovec, buffer and control space are live and of the lengths given.
    let length = unsafe { kernel::recvmsg(fd, &mut message, flags) }?;
    let strange = message.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) != 0;
    let mut came = Came { length, descriptor: None, strange, sender: None };
    // SAFETY: the kernel filled in the control data; what is read lies within the control message that is at hand.
    unsafe {
        control::each(&message, |header, data, bytes| {
            if control::is_rights(header) {
                for index in 0..bytes / size_of::<i32>() {
                    let descriptor = data.cast::<i32>().add(index).read_unaligned();
                    if came.descriptor.is_none() && !came.strange {
                        came.descriptor = Some(descriptor);
                    } else {
                        came.strange = true;
                        surplus(descriptor);
                    }
                }
            }
            if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_CREDENTIALS {
                came.sender = Some(data.cast::<libc::ucred>().read_unaligned());
            }
        });
    }
    // What comes with no bytes is nobody's question, and ends the connection.
    if (came.strange || length == 0)
        && let Some(first) = came.descriptor.take()
    {
        surplus(first);
    }
    Ok(came)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    fn socketpair() -> (OwnedFd, OwnedFd) {
        let mut ends = [0; 2];
        // SAFETY: a live place for two descriptors, which are this caller's.
        unsafe {
            assert_eq!(libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, ends.as_mut_ptr()), 0);
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        }
    }

    #[test]
    fn one_descriptor_arrives_and_more_are_left_over() {
        let (one, two) = UnixStream::pair().unwrap();
        send(one.as_raw_fd(), b"abc", Some(one.as_raw_fd())).unwrap();
        let mut bytes = [0; 8];
        let came = receive(two.as_raw_fd(), &mut bytes, |_| panic!("there was one")).unwrap();
        assert_eq!((came.length, came.strange), (3, false));
        let arrived = came.descriptor.unwrap();
        assert_ne!(arrived, one.as_raw_fd());
        let _ = beeline_shm::sys::close(arrived);
        send(one.as_raw_fd(), b"x", None).unwrap();
        let came = receive(two.as_raw_fd(), &mut bytes, |_| panic!("there was none")).unwrap();
        assert_eq!((came.length, came.descriptor), (1, None));
        assert_eq!(receive(two.as_raw_fd(), &mut bytes, |_| ()).err(), Some(Errno(libc::EAGAIN)));
        // On a socket that keeps messages apart one may have no bytes; its descriptor is somebody's to close all the
        // same.
        let (packets, others) = socketpair();
        send(packets.as_raw_fd(), b"", Some(one.as_raw_fd())).unwrap();
        let mut left = Vec::new();
        let came = receive(others.as_raw_fd(), &mut bytes, |fd| left.push(fd)).unwrap();
        assert_eq!((came.length, came.descriptor, left.len()), (0, None, 1));
        for fd in left {
            let _ = beeline_shm::sys::close(fd);
        }
        drop(one);
        // A child that another test has just forked may have the socket, too, for a moment.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
        let ended = loop {
            match receive(two.as_raw_fd(), &mut bytes, |_| ()) {
                Err(Errno(libc::EAGAIN)) if std::time::Instant::now() < until => std::thread::yield_now(),
                came => break came,
            }
        };
        assert_eq!(ended.unwrap().length, 0);
    }

    #[test]
    fn who_has_sent_a_message_is_known_to_who_has_asked_for_it() {
        let (one, two) = socketpair();
        let mut bytes = [0; 8];
        send(one.as_raw_fd(), b"x", None).unwrap();
        assert!(receive(two.as_raw_fd(), &mut bytes, |_| ()).unwrap().sender.is_none());
        name_senders(two.as_raw_fd()).unwrap();
        send(one.as_raw_fd(), b"x", Some(one.as_raw_fd())).unwrap();
        let came = receive(two.as_raw_fd(), &mut bytes, |_| ()).unwrap();
        assert_eq!((came.sender.map(|sender| sender.pid), came.strange), (Some(std::process::id() as i32), false));
        let _ = beeline_shm::sys::close(came.descriptor.unwrap());
    }

    #[test]
    fn who_has_power_over_a_process_can_speak_in_its_name() {
        let (one, two) = socketpair();
        name_senders(two.as_raw_fd()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        // SAFETY: take nothing, and cannot fail.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let its = libc::ucred { pid: child.id() as i32, uid, gid };
        send_as(one.as_raw_fd(), b"xy", Some(one.as_raw_fd()), its).unwrap();
        let mut bytes = [0; 8];
        let came = receive(two.as_raw_fd(), &mut bytes, |_| ()).unwrap();
        let sender = came.sender.unwrap().pid;
        // As whoever runs this test can, or cannot.
        assert!(sender == its.pid || sender == std::process::id() as i32 && uid != 0, "{sender}");
        assert_eq!((came.length, came.strange), (2, false));
        let _ = beeline_shm::sys::close(came.descriptor.unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        // One that is not there any more is nobody to speak for.
        send_as(one.as_raw_fd(), b"z", None, its).unwrap();
        let sender = receive(two.as_raw_fd(), &mut bytes, |_| ()).unwrap().sender.unwrap().pid;
        assert_eq!(sender, std::process::id() as i32);
    }
}
