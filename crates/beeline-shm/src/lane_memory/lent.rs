//! What a writer lends its reader: bytes that stay in the writer's own memory, for the reader to fetch from there.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::LaneMemory;
use super::layout::{CHALLENGE, End, FETCHED, LENT, LOAN, WANTED, wake_line};
use crate::buffer::Sink;
use crate::sys::{Errno, call};

/// Bytes in a writer's own memory, and where there the number stands by which a reader knows that it looks at that
/// memory: a copy of the reader's challenge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lent {
    /// Where the bytes begin.
    pub address: u64,
    /// How many there are.
    pub length: u64,
    /// Where the number stands.
    pub proof_address: u64,
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
        let [address, length, proof_address] =
            [0, 1, 2].map(|index| self.word64(wake_line(end) + LENT + 8 * index).load(Ordering::Relaxed));
        Lent { address, length, proof_address }
    }

    /// Says what `end` lends, before the word about it.
    pub fn set_lent(&self, end: End, lent: Lent) {
        let Lent { address, length, proof_address } = lent;
        for (index, value) in [address, length, proof_address].into_iter().enumerate() {
            self.word64(wake_line(end) + LENT + 8 * index).store(value, Ordering::Relaxed);
        }
    }

    /// The number that `end`, as a reader, wants to find as the proof; said before how much it waits for.
    #[must_use]
    pub fn challenge(&self, end: End) -> &AtomicU64 {
        self.word64(wake_line(end) + CHALLENGE)
    }

    /// How many bytes of what `end` lends its peer has fetched; said before the word about it.
    #[must_use]
    pub fn fetched(&self, end: End) -> &AtomicU64 {
        self.word64(wake_line(end) + FETCHED)
    }
}

/// Fetches what the process `pid` has lent, as much of it as there is room for, by `process_vm_readv(2)`. Where the
/// proof is not `challenge` nothing is written. The proof is read once more in one look with the bytes, so that these
/// are of the program whose proof it is. Returns how many bytes that were; 0 if the proof is another one, or not all
/// of it could be read: then the room may hold some.
///
/// # Errors
/// Those of process_vm_readv(2): `EPERM` where the kernel does not allow it, `ENOSYS` where it is left out.
pub fn fetch(pid: i32, lent: Lent, challenge: u64, room: Sink<'_>) -> Result<usize, Errno> {
    const PROOF_BYTES: usize = size_of::<u64>();
    let length = room.len().min(usize::try_from(lent.length).unwrap_or(usize::MAX));
    let proof = AtomicU64::new(0);
    let part = |address: usize, length| libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length };
    let here = [part(proof.as_ptr().addr(), PROOF_BYTES), part(room.pointer().addr(), length)];
    let there = [part(lent.proof_address as usize, PROOF_BYTES), part(lent.address as usize, length)];
    let read = |parts: usize| {
        let args = [pid as usize, here.as_ptr() as usize, parts, there.as_ptr() as usize, parts, 0];
        // SAFETY: the kernel writes into a live local and into the room, which is writable for its length. What the
        // peer has said is only where it reads in the peer's memory.
        unsafe { call(libc::SYS_process_vm_readv, args) }
    };
    if read(1)? != PROOF_BYTES || proof.load(Ordering::Relaxed) != challenge {
        return Ok(0);
    }
    let is_whole = read(2)? == PROOF_BYTES + length && proof.load(Ordering::Relaxed) == challenge;
    Ok(if is_whole { length } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_fetched_by_its_proof_alone() {
        let bytes: std::vec::Vec<u8> = (0..50_000_u32).map(|index| (index % 251) as u8).collect();
        let challenge = 0x1234_5678_9abc_def0_u64;
        let proof = challenge;
        let lent = Lent {
            address: bytes.as_ptr().addr() as u64,
            length: bytes.len() as u64,
            proof_address: (&raw const proof).addr() as u64,
        };
        let pid = crate::sys::getpid() as i32;
        let mut room = std::vec![0; 60_000];
        assert_eq!(fetch(pid, lent, challenge, Sink::from(&mut room[..])), Ok(50_000));
        assert_eq!(room[..50_000], bytes[..]);
        assert_eq!(fetch(pid, lent, challenge, Sink::from(&mut room[..100])), Ok(100));
        room.fill(0);
        assert_eq!(fetch(pid, lent, challenge + 1, Sink::from(&mut room[..])), Ok(0));
        assert!(room.iter().all(|byte| *byte == 0), "nothing was written");
        // In the middle of it nothing is mapped.
        assert_eq!(fetch(pid, Lent { address: u64::MAX - 4096, ..lent }, challenge, Sink::from(&mut room[..])), Ok(0));
        let nowhere = Lent { proof_address: 16, ..lent };
        assert_eq!(fetch(pid, nowhere, challenge, Sink::from(&mut room[..])), Err(Errno(libc::EFAULT)));
        assert_eq!(fetch(i32::MAX, lent, challenge, Sink::from(&mut room[..])), Err(Errno(libc::ESRCH)));
    }
}
