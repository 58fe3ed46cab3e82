//! What a program has put into a ring of liburing's, and whether it is about descriptors of ours.
//!
//! The layouts are those of liburing.h (of 2.3; liburing keeps them for programs that were compiled before) and of
//! linux/io_uring.h.

use beeline_sockets::desc::Kind;
use beeline_sockets::{in_first_page, table};
use libc::{c_int, c_uint};

/// `struct io_uring_params`, as far as it is read.
#[repr(C)]
pub struct Parameters {
    sizes: [u32; 2],
    flags: u32,
}

/// `struct io_uring`: the side that submits comes first.
#[repr(C)]
pub struct Ring {
    kernels_head: *mut c_uint,
    kernels_tail: *mut c_uint,
    mask: *const c_uint,
    rest_of_kernels: [*mut c_uint; 4],
    entries: *const Entry,
    /// Entries up to `tail` are filled in; those from `head` on are not yet handed over.
    head: c_uint,
    tail: c_uint,
    rest_of_submissions: [usize; 4],
    completions: [usize; 11],
    flags: c_uint,
    fd: c_int,
}

/// `struct io_uring_sqe`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    operation: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    length: u32,
    more_flags: u32,
    data: u64,
    buffer: u16,
    personality: u16,
    other_fd: i32,
    padding: [u64; 2],
}

/// Flags of rings whose entries lie where they are looked for, and which the kernel reads when it is told to: all but
/// `SQPOLL`, `SQE128`, and those that are not known yet.
const SEEN_INTO: u32 = {
    // IOPOLL, CQSIZE, CLAMP, ATTACH_WQ, R_DISABLED, SUBMIT_ALL, COOP_TASKRUN, TASKRUN_FLAG, CQE32, SINGLE_ISSUER,
    // DEFER_TASKRUN, NO_SQARRAY
    1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 16
};

/// Whether what is submitted to a ring with these flags can be looked at first.
pub fn is_seen_into(flags: u32) -> bool {
    flags & !SEEN_INTO == 0
}

/// The flags of a ring that is to be made; none if the pointer is wild.
///
/// # Safety
/// `parameters` must be a `struct io_uring_params`, unless it lies in the first page, which is never mapped.
pub unsafe fn flags_of(parameters: *const Parameters) -> Option<u32> {
    if in_first_page(parameters as usize) {
        return None;
    }
    // SAFETY: the caller guarantees it. The alignment is the program's affair.
    Some(unsafe { (&raw const (*parameters).flags).read_unaligned() })
}

/// A ring has been made that is seen into.
///
/// # Safety
/// `ring` must be one that liburing has made.
pub unsafe fn note(ring: *const Ring) {
    // SAFETY: the caller guarantees it.
    beeline_sockets::life::know_ring(unsafe { (*ring).fd });
}

/// Whether all descriptors that what is about to be submitted is about are such ones.
///
/// # Safety
/// `ring` must be a `struct io_uring` that liburing has made, and that no other thread fills at this moment: as for
/// io_uring_submit(3).
pub unsafe fn spares(ring: *const Ring, is_such: fn(i32) -> bool) -> bool {
    // SAFETY: the caller guarantees it.
    let ring = unsafe { &*ring };
    // SAFETY: liburing keeps a pointer to the number of entries less one.
    let mask = unsafe { *ring.mask };
    // What was handed over before and not taken is submitted again.
    // SAFETY: liburing keeps a pointer to the kernel's count, which the kernel moves on.
    let head = unsafe { ring.kernels_head.read_volatile() };
    let waiting = ring.tail.wrapping_sub(head).min(mask.wrapping_add(1));
    (0..waiting).all(|index| {
        let place = head.wrapping_add(index) & mask;
        // SAFETY: there are `mask + 1` entries, and those up to the tail are filled in.
        let entry = unsafe { ring.entries.add(place as usize).read() };
        // SAFETY: an entry that the program is submitting.
        unsafe { entry.spares(is_such) }
    })
}

/// Whether these descriptors are all such ones.
///
/// # Safety
/// `files` must point to `count` numbers, or be null.
pub unsafe fn are(files: *const c_int, count: c_uint, is_such: fn(i32) -> bool) -> bool {
    if files.is_null() {
        return true;
    }
    // SAFETY: the caller guarantees it.
    (0..count as usize).all(|index| is_such(unsafe { files.add(index).read_unaligned() }))
}

/// Whether an operation of io_uring_register(2) takes descriptors for files.
pub fn registers_files(operation: c_uint) -> bool {
    // IORING_REGISTER_FILES, FILES_UPDATE, FILES2, FILES_UPDATE2, and those with a registered ring (1 << 31).
    matches!(operation & !(1 << 31), 2 | 6 | 13 | 14)
}

/// # Safety
/// `message` must be a header, unless it lies in the first page.
unsafe fn has_control(message: *const libc::msghdr) -> bool {
    // SAFETY: the caller guarantees it.
    !in_first_page(message as usize) && unsafe { (&raw const (*message).msg_controllen).read_unaligned() } != 0
}

/// Whether a descriptor is the kernel's alone.
pub fn is_theirs(fd: i32) -> bool {
    table::get(fd).is_none()
}

/// Whether a descriptor is what the kernel takes it for, once nothing is accelerated any more.
pub fn is_no_lane(fd: i32) -> bool {
    table::get(fd).is_none_or(|desc| matches!(desc.kind(), Kind::Tcp | Kind::Listener))
}

/// Whether an operation has something else where others have their descriptor: a count, a family of addresses, a
/// process, flags, or nothing.
fn keeps_no_descriptor(operation: u8) -> bool {
    // IORING_OP_*: PROVIDE_BUFFERS, REMOVE_BUFFERS, SETXATTR, GETXATTR, SOCKET, WAITID, FUTEX_WAIT, FUTEX_WAKE,
    // FUTEX_WAITV, PIPE
    matches!(operation, 31 | 32 | 42 | 44 | 45 | 50..=53 | 62)
}

impl Entry {
    /// Whether this is about such descriptors alone.
    ///
    /// # Safety
    /// The entry must be one that the kernel may be given.
    unsafe fn spares(&self, is_such: fn(i32) -> bool) -> bool {
        /// `IOSQE_FIXED_FILE` and `SPLICE_F_FD_IN_FIXED`: the number is a place among registered files.
        const FIXED: u8 = 1;
        const OTHER_FIXED: u32 = 1 << 31;
        // IORING_OP_*
        const SENDMSG: u8 = 9;
        const RECVMSG: u8 = 10;
        const SENDMSG_ZC: u8 = 48;
        const FILES_UPDATE: u8 = 20;
        const EPOLL_CTL: u8 = 29;
        const SPLICE: u8 = 30;
        const TEE: u8 = 33;
        let first = self.flags & FIXED != 0 || keeps_no_descriptor(self.operation) || is_such(self.fd);
        let second = match self.operation {
            SPLICE | TEE => self.more_flags & OTHER_FIXED != 0 || is_such(self.other_fd),
            EPOLL_CTL => is_such(self.offset as i32),
            // Control data may carry descriptors.
            // SAFETY: the header that the kernel is to read.
            SENDMSG | RECVMSG | SENDMSG_ZC => unsafe { !has_control(self.address as *const libc::msghdr) },
            // SAFETY: the numbers that the kernel is to read.
            FILES_UPDATE => unsafe { are(self.address as *const c_int, self.length, is_such) },
            _ => true,
        };
        first && second
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};

    #[test]
    fn layouts_are_those_of_the_headers() {
        assert_eq!(size_of::<Entry>(), 64);
        assert_eq!((offset_of!(Entry, fd), offset_of!(Entry, more_flags), offset_of!(Entry, other_fd)), (4, 28, 44));
        assert_eq!((offset_of!(Ring, mask), offset_of!(Ring, entries)), (16, 56));
        assert_eq!((offset_of!(Ring, head), offset_of!(Ring, tail), offset_of!(Ring, fd)), (64, 68, 196));
        assert_eq!(offset_of!(Parameters, flags), 8);
    }

    #[test]
    fn numbers_that_are_no_descriptors_are_nobodys() {
        fn is_of_nobody(_: i32) -> bool {
            false
        }
        let spares = |operation, flags| {
            // SAFETY: all-zero is a valid value of this plain C struct.
            let entry = Entry { operation, flags, ..unsafe { core::mem::zeroed() } };
            // SAFETY: what it points to lies in the first page, or is empty.
            unsafe { entry.spares(is_of_nobody) }
        };
        let others = [31, 32, 42, 44, 45, 50, 51, 52, 53, 62];
        assert!((0..=u8::MAX).all(|operation| spares(operation, 0) == others.contains(&operation)));
        assert!(spares(27, 1), "a place among registered files");
    }

    #[test]
    fn rings_that_the_kernel_reads_by_itself_are_not_seen_into() {
        const SQPOLL: u32 = 1 << 1;
        const SQE128: u32 = 1 << 10;
        assert!(is_seen_into(0) && is_seen_into(1 << 4));
        assert!(!is_seen_into(SQPOLL) && !is_seen_into(SQE128) && !is_seen_into(1 << 20));
    }
}
