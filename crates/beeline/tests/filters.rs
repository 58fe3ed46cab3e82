//! `beeline run` under filters of system calls, as service managers set them up.

#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::process::CommandExt;
use std::process::Output;

use common::{beeline, harmless_library, stderr, stdout};

/// What a filter answers a call with: seccomp(2).
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const DENY: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

/// The third argument of calls.
const PROTOCOL: u32 = std::mem::offset_of!(libc::seccomp_data, args) as u32 + 2 * size_of::<u64>() as u32;

/// A program that shows its options, behind a filter that answers one call so, where it has this third argument if one
/// is told, and lets all others pass.
fn under_filter(answer: u32, call: libc::c_long, protocol: Option<libc::c_int>) -> Output {
    let code = |code: u32| u16::try_from(code).unwrap();
    let load = code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS);
    let jump = code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    let answers = code(libc::BPF_RET | libc::BPF_K);
    let step = |code, skipped, k| libc::sock_filter { code, jt: 0, jf: skipped, k };
    let (skipped, third) = match protocol {
        Some(protocol) => (3, vec![step(load, 0, PROTOCOL), step(jump, 1, protocol.cast_unsigned())]),
        None => (1, Vec::new()),
    };
    let begin = [step(load, 0, 0), step(jump, skipped, u32::try_from(call).unwrap())];
    let end = [step(answers, 0, answer), step(answers, 0, libc::SECCOMP_RET_ALLOW)];
    let mut program = [&begin[..], &third, &end].concat();
    let mut command = beeline();
    command.args(["run", "--library"]).arg(harmless_library()).args(["sh", "-c", "echo $BEELINE_OPTIONS:$LD_PRELOAD"]);
    // SAFETY: the child only makes two system calls, with memory of its own.
    unsafe {
        command.pre_exec(move || {
            let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
            let set = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0;
            if set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    command.output().unwrap()
}

/// What `beeline run` says of the filters that this test is under, and one more.
fn one_more() -> String {
    let status = std::fs::read("/proc/self/status").unwrap();
    format!("filters_tried={}:{}\n", beeline_stats::filters_in(&status).unwrap() + 1, harmless_library().display())
}

#[test]
fn what_lets_lanes_calls_pass_or_denies_them_is_told_to_the_library() {
    for (answer, call) in [(KILL, libc::SYS_reboot), (DENY, libc::SYS_memfd_create), (DENY, libc::SYS_clone3)] {
        let output = under_filter(answer, call, None);
        assert_eq!(stdout(&output), one_more(), "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn where_programs_are_ended_for_lanes_calls_the_call_is_named_and_the_library_left_out() {
    for (call, protocol, name) in [
        (libc::SYS_memfd_create, None, "memfd_create"),
        (libc::SYS_socketpair, None, "socketpair"),
        (libc::SYS_socket, Some(libc::NETLINK_SOCK_DIAG), "socket"),
    ] {
        let output = under_filter(KILL, call, protocol);
        assert_eq!(stdout(&output), ":\n");
        let warning = format!("a filter of system calls ends programs for `{name}`, which lanes need");
        assert!(stderr(&output).contains(&warning), "{}", stderr(&output));
        assert!(output.status.success());
    }
}
