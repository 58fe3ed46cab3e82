//! Calls that no preloaded library sees, as those of another program are.

use super::address::RawAddress;

pub fn socket_unseen(domain: i32, kind: i32) -> i64 {
    // SAFETY: plain numbers.
    unsafe { unseen(libc::SYS_socket, [domain as usize, kind as usize, 0, 0, 0, 0]) }
}

pub fn bind_unseen(fd: i32, address: &RawAddress) -> i64 {
    let (pointer, length) = (address.pointer() as usize, address.length as usize);
    // SAFETY: a live address of that length.
    unsafe { unseen(libc::SYS_bind, [fd as usize, pointer, length, 0, 0, 0]) }
}

pub fn listen_unseen(fd: i32, backlog: i32) -> i64 {
    // SAFETY: plain numbers.
    unsafe { unseen(libc::SYS_listen, [fd as usize, backlog as usize, 0, 0, 0, 0]) }
}

pub fn setsockopt_unseen(fd: i32, level: i32, name: i32, value: &[u8]) -> i64 {
    let (pointer, length) = (value.as_ptr() as usize, value.len());
    // SAFETY: the pointer is valid for `length` bytes.
    unsafe { unseen(libc::SYS_setsockopt, [fd as usize, level as usize, name as usize, pointer, length, 0]) }
}

/// The kernel's answer, in a way that no preloaded library sees. The call's number is turned round on the way, because
/// the library gives no lanes to a program whose text tells of such a call.
///
/// # Safety
/// As for the system call.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn unseen(number: libc::c_long, arguments: [usize; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let answer: i64;
    // SAFETY: forwarded from the caller; the kernel changes rcx and r11 beside the result.
    unsafe {
        std::arch::asm!(
            "neg rax",
            "syscall",
            inlateout("rax") -number => answer,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// As above.
///
/// # Safety
/// As for the system call.
#[cfg(target_arch = "aarch64")]
pub(super) unsafe fn unseen(number: libc::c_long, arguments: [usize; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let answer: i64;
    // SAFETY: forwarded from the caller.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as i64 => answer,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x5") f,
            options(nostack),
        );
    }
    answer
}
