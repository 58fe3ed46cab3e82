//! Too little of everything: descriptors, shared memory.

use super::{Case, Target};
use crate::child;
use anyhow::{Result, ensure};
use beeline_testkit::preload;
use beeline_testkit::watch::{Ending, Group};
use std::os::unix::process::CommandExt;
use std::time::Duration;

pub const CASES: &[Case] = &[
    Case { name: "thousand_connections_under_1024_descriptors", body: thousand_connections },
    Case { name: "twenty_thousand_connections_tried", body: twenty_thousand_connections },
    Case { name: "no_room_in_dev_shm", body: no_room_in_dev_shm },
];

fn limit_descriptors(command: &mut std::process::Command, count: u64) {
    let limit = libc::rlimit { rlim_cur: count, rlim_max: count };
    // SAFETY: setrlimit is async-signal-safe and gets a valid limit.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// A server and a client of which each may have 1,024 descriptors.
fn crowd(target: &Target, program: &str, kind: &str) -> Result<Ending> {
    let mut command = child::program(&format!("serve:{kind}"));
    preload::apply(&mut command, Some(&target.library));
    limit_descriptors(&mut command, 1024);
    let small = Target::from_command(&mut command, &target.library)?;
    let mut client = child::program(&format!("{program}:{}", small.address));
    preload::apply(&mut client, Some(&target.library));
    limit_descriptors(&mut client, 1024);
    Ok(Group::start(&mut client)?.finish(Duration::from_secs(60))?)
}

fn thousand_connections(target: &mut Target) -> Result<()> {
    // What a program can do over TCP under this limit it can do over Beeline: its hidden descriptors make room.
    let ending = crowd(target, "thousand", "epoll")?;
    ensure!(ending == Ending::Exit(0), "the client of a thousand connections ended with {ending:?}");
    Ok(())
}

fn twenty_thousand_connections(target: &mut Target) -> Result<()> {
    let ending = crowd(target, "twenty_thousand", "epoll")?;
    ensure!(ending == Ending::Exit(0), "the client of twenty thousand connections ended with {ending:?}");
    Ok(())
}

fn no_room_in_dev_shm(target: &mut Target) -> Result<()> {
    // Statistics have no room: everything else works.
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(());
    }
    let mut command = child::program(&format!("any_path:{}", target.address));
    preload::apply(&mut command, Some(&target.library));
    // SAFETY: plain system calls with NUL-terminated literals.
    unsafe {
        command.pre_exec(|| {
            let (tmpfs, place) = (c"tmpfs".as_ptr(), c"/dev/shm".as_ptr());
            let private = libc::MS_REC | libc::MS_PRIVATE;
            if libc::unshare(libc::CLONE_NEWNS) != 0
                || libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()) != 0
                || libc::mount(tmpfs, place, tmpfs, libc::MS_RDONLY, c"size=4k".as_ptr().cast()) != 0
            {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let ending = Group::start(&mut command)?.finish(super::PATIENCE)?;
    ensure!(ending == Ending::Exit(0), "a client without /dev/shm ended with {ending:?}");
    Ok(())
}
