//! Asynchronous input and output, which uses descriptors past every hook.
//!
//! 1. POSIX's (aio(7)): threads of libc read and write by calls of their own. A connection that such a request names
//!    goes over to a relay first; where another thread sleeps on it the request fails with EAGAIN, as it does where
//!    resources are short.
//! 2. The kernel's (io_submit(2)), by number or through libaio, which is assembly: as with rings of io_uring
//!    ([`super::rings`]), a program that submits something about a socket or an epoll set of ours has no lanes from
//!    then on. It means files nearly always: those cost a look. A program that brings a libaio of its own does not come
//!    here; `beeline_sockets::life` finds it by its text.

use beeline_sockets::{Outcome, in_first_page, life};
use beeline_stats::Reason;
use libc::{aiocb, c_int, c_long, c_void};

use super::rings::{self, is_no_lane, is_theirs};
use crate::real::{fail, hooks};

hooks! {
    fn aio_read | aio_read64 | aio_write | aio_write64: (request: *mut aiocb) -> c_int [] => before(request);

    fn lio_listio | lio_listio64: (mode: c_int, requests: *const *mut aiocb, count: c_int, event: *mut c_void) -> c_int [] =>
        before_all(requests, count);
}

/// Before libc takes a request.
///
/// # Safety
/// `request` must be one, unless it lies in the first page, which is never mapped.
unsafe fn before(request: *const aiocb) -> Outcome {
    if in_first_page(request as usize) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller guarantees it.
    let fd = unsafe { (*request).aio_fildes };
    if life::demote_number(fd).is_err() {
        return Outcome::fail(libc::EAGAIN);
    }
    life::refusal(fd).map_or(Outcome::Kernel, Outcome::Fail)
}

/// The same for a list of requests, some of which may be empty or missing.
///
/// # Safety
/// `requests` must point to `count` pointers, unless it lies in the first page; see [`before`] for these.
unsafe fn before_all(requests: *const *mut aiocb, count: c_int) -> Outcome {
    if in_first_page(requests as usize) {
        return Outcome::Kernel;
    }
    for index in 0..count.max(0) as usize {
        // SAFETY: the caller guarantees it.
        let request = unsafe { *requests.add(index) };
        // SAFETY: as above.
        if in_first_page(request as usize) || unsafe { (*request).aio_lio_opcode } == libc::LIO_NOP {
            continue;
        }
        // SAFETY: as above.
        if let failed @ Outcome::Fail(_) = unsafe { before(request) } {
            return failed;
        }
    }
    Outcome::Kernel
}

/// `struct iocb` of linux/aio_abi.h, and of libaio.h on 64-bit machines.
#[repr(C)]
pub(super) struct Request {
    data: u64,
    key_and_flags: [u32; 2],
    operation: u16,
    priority: i16,
    fd: i32,
    rest: [u64; 5],
}

const _: () = assert!(size_of::<Request>() == 64 && core::mem::offset_of!(Request, fd) == 20);

/// Whether what is handed to io_submit(2) may be: see [`rings::may_be_submitted`].
///
/// # Safety
/// `requests` must point to `count` pointers to requests; those in the first page are the kernel's to refuse.
pub(super) unsafe fn may_be_submitted(requests: *const *const Request, count: c_long) -> bool {
    let spares = |is_such: fn(i32) -> bool| {
        in_first_page(requests as usize)
            || (0..count.max(0) as usize).all(|index| {
                // SAFETY: the caller guarantees it. The alignment is the program's affair.
                unsafe {
                    let request = requests.add(index).read_unaligned();
                    in_first_page(request as usize) || is_such((&raw const (*request).fd).read_unaligned())
                }
            })
    };
    spares(is_theirs) || rings::may_go_past_us(Reason::RawSystemCalls) || spares(is_no_lane)
}

/// io_submit(2) by number.
///
/// # Safety
/// As for io_submit(2).
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn refuses(count: usize, requests: usize) -> bool {
    // SAFETY: the caller guarantees it.
    if unsafe { may_be_submitted(requests as _, count as c_long) } {
        return false;
    }
    fail(libc::EAGAIN);
    true
}
