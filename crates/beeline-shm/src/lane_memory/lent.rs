//! What a writer lends its reader: bytes that stay in the writer's own memory, for the reader to fetch from there.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::LaneMemory;
use super::layout::{End, FETCHED, LENT, LOAN, WANTED, wake_line};
use crate::buffer::Sink;
use crate::sys::{Errno, call};

/// Bytes in a writer's own memory, and the number by which a reader knows that it looks at that memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lent {
    /// Where the bytes begin.
    pub address: u64,
    /// How many there are.
    pub length: u64,
    /// Where the number stands.
    pub proof_address: u64,
    /// The number.
    pub proof: u64,
}

impl LaneMemory {
    /// How many bytes `end`, as a reader, waits for and would fetch; 0 if it does not wait. A hint.
    #[must_use]
    pub fn wanted(&self, end: End) -> &AtomicU32 {
        self.word32(wake_line(end) + WANTED)
    }

    /// The word about what `end`, as a writer, lends: see the lane protocol.
    #[must_use]
    #[inline]
    pub fn loan(&self, end: End) -> &AtomicU32 {
        self.word32(wake_line(end) + LOAN)
    }

    /// What `end` lends; hostile.
    #[must_use]
    pub fn lent(&self, end: End) -> Lent {
        let [address, length, proof_address, proof] =
            [0, 1, 2, 3].map(|index| self.word64(wake_line(end) + LENT + 8 * index).load(Ordering::Relaxed));
        Lent { address, length, proof_address, proof }
    }

    /// Says what `end` lends, before the word about it.
    pub fn set_lent(&self, end: End, lent: Lent) {
        let Lent { address, length, proof_address, proof } = lent;
        for (index, value) in [address, length, proof_address, proof].into_iter().enumerate() {
            self.word64(wake_line(end) + LENT + 8 * index).store(value, Ordering::Relaxed);
        }
    }

    /// How many bytes of what `end` lends its peer has fetched; said before the word about it.
    #[must_use]
    pub fn fetched(&self, end: End) -> &AtomicU64 {
        self.word64(wake_line(end) + FETCHED)
    }
}

/// Fetches what the process `pid` has lent, as much of it as there is room for, by `process_vm_readv(2)`. All of it and
/// the proof are read in one look at that process's memory, so that it is of the program whose proof it is. Returns how
/// many bytes that were; 0 if the proof is another one, or not all of it could be read: then the room holds anything.
///
/// # Errors
/// Those of process_vm_readv(2): `EPERM` where the kernel does not allow it, `ENOSYS` where it is left out.
pub fn fetch(pid: i32, lent: Lent, room: Sink<'_>) -> Result<usize, Errno> {
    const PROOF_BYTES: usize = size_of::<u64>();
    let length = room.len().min(usize::try_from(lent.length).unwrap_or(usize::MAX));
    let mut proof = 0_u64;
    let part = |address: usize, length| libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length };
    let here = [part((&raw mut proof).addr(), PROOF_BYTES), part(room.pointer().addr(), length)];
    let there = [part(lent.proof_address as usize, PROOF_BYTES), part(lent.address as usize, length)];
    let args = [pid as usize, here.as_ptr() as usize, here.len(), there.as_ptr() as usize, there.len(), 0];
    // SAFETY: the kernel writes into a live local and into the room, which is writable for its length. What the peer
    // has said is only where it reads in the peer's memory.
    let read = unsafe { call(libc::SYS_process_vm_readv, args) }?;
    // SAFETY: a live local, which the kernel has written.
    let found = unsafe { (&raw const proof).read_volatile() };
    Ok(if read == PROOF_BYTES + length && found == lent.proof { length } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_fetched_by_its_proof_alone() {
        let bytes: std::vec::Vec<u8> = (0..50_000_u32).map(|index| (index % 251) as u8).collect();
        let proof = 0x1234_5678_9abc_def0_u64;
        let lent = Lent {
            address: bytes.as_ptr().addr() as u64,
            length: bytes.len() as u64,
            proof_address: (&raw const proof).addr() as u64,
            proof,
        };
        let pid = crate::sys::getpid() as i32;
        let mut room = std::vec![0; 60_000];
        assert_eq!(fetch(pid, lent, Sink::from(&mut room[..])), Ok(50_000));
        assert_eq!(room[..50_000], bytes[..]);
        assert_eq!(fetch(pid, lent, Sink::from(&mut room[..100])), Ok(100));
        assert_eq!(fetch(pid, Lent { proof: proof + 1, ..lent }, Sink::from(&mut room[..])), Ok(0));
        // In the middle of it nothing is mapped.
        assert_eq!(fetch(pid, Lent { address: u64::MAX - 4096, ..lent }, Sink::from(&mut room[..])), Ok(0));
        assert_eq!(fetch(pid, Lent { proof_address: 16, ..lent }, Sink::from(&mut room[..])), Err(Errno(libc::EFAULT)));
        assert_eq!(fetch(i32::MAX, lent, Sink::from(&mut room[..])), Err(Errno(libc::ESRCH)));
    }
}
