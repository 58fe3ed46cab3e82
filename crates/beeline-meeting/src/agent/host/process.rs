//! Whose a process is, by a descriptor of it.

use std::io::Read;

use beeline_shm::sys::call;

use crate::{Errno, kernel};

/// `struct pidfd_info` of `linux/pidfd.h`, in its first form (Linux 6.13).
#[derive(Default)]
#[repr(C)]
struct Info {
    wanted: u64,
    control_group: u64,
    pid: u32,
    group: u32,
    parent: u32,
    real_uid: u32,
    real_gid: u32,
    effective_uid: u32,
    effective_gid: u32,
    saved_uid: u32,
    saved_gid: u32,
    files_uid: u32,
    files_gid: u32,
    rest: u32,
}

/// `PIDFD_GET_INFO`, of those 64 bytes.
const GET_INFO: usize = 0xc040_ff0b;
const _: () = assert!(size_of::<Info>() == 64);

/// Whether all that a process does it does as this user: it could not act, nor go on to act, as another. `number` is
/// what the process is called here.
///
/// # Errors
/// `ESRCH` for a process that has ended.
pub fn is_wholly_of(process: i32, number: i32, user: u32) -> Result<bool, Errno> {
    let mut info = Info::default();
    // SAFETY: a live place of the size that the request says.
    let asked = unsafe { call(libc::SYS_ioctl, [process as usize, GET_INFO, (&raw mut info) as usize, 0, 0, 0]) };
    match asked {
        Ok(_) => Ok([info.effective_uid, info.saved_uid, info.files_uid].iter().all(|uid| *uid == user)),
        Err(Errno(libc::ENOTTY | libc::EINVAL)) => by_status(process, number, user),
        Err(errno) => Err(errno),
    }
}

/// The same before Linux 6.13.
fn by_status(process: i32, number: i32, user: u32) -> Result<bool, Errno> {
    let gone = Errno(libc::ESRCH);
    let mut text = std::string::String::new();
    let file = std::fs::File::open(std::format!("/proc/{number}/status")).map_err(|_| gone)?;
    file.take(1 << 16).read_to_string(&mut text).map_err(|_| gone)?;
    let line = text.lines().find_map(|line| line.strip_prefix("Uid:")).ok_or(gone)?;
    // Real, effective, saved, of files.
    let is_his = line.split_ascii_whitespace().skip(1).all(|uid| uid.parse() == Ok(user));
    // It was that process whose number this is, if it has not ended.
    let mut ended = [libc::pollfd { fd: process, events: libc::POLLIN, revents: 0 }];
    if kernel::poll_at_once(&mut ended)? == 0 { Ok(is_his) } else { Err(gone) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::host::own;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_process_is_its_users_and_one_that_has_ended_nobodys() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let number = child.id() as i32;
        // SAFETY: plain numbers.
        let process = unsafe { call(libc::SYS_pidfd_open, [number as usize, 0, 0, 0, 0, 0]) }.unwrap();
        let process = own(process as i32);
        // SAFETY: takes nothing, and cannot fail.
        let me = unsafe { libc::geteuid() };
        for ask in [is_wholly_of, by_status] {
            assert_eq!(ask(process.as_raw_fd(), number, me), Ok(true));
            assert_eq!(ask(process.as_raw_fd(), number, me.wrapping_add(1)), Ok(false));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for ask in [is_wholly_of, by_status] {
            assert_eq!(ask(process.as_raw_fd(), number, me), Err(Errno(libc::ESRCH)));
        }
    }
}
