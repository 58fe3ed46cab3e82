//! Whether the kernel may refuse a page of shared memory (`vm.overcommit_memory`, proc_sys_vm(5)).
//!
//! A memory file is as long as it says at once, and takes memory page by page, as they are touched first. Where the
//! sysctl is 2 each page is counted then, for the whole host, and refused beyond its limit (`CommitLimit` in
//! /proc/meminfo), whoever has promised himself the rest (`shmem_inode_acct_blocks` in Linux mm/shmem.c). What is
//! refused to a mapping is a SIGBUS: in a `send` that comes to a fresh page of its ring, or in a `recv` from a page
//! that the peer has punched out. Space that was allocated beforehand would not help against such a peer, and be whole
//! rings for each lane.
//!
//! Where it is 0 or 1 no page is refused so. When there is no memory left the kernel ends a process, which may be any.

use crate::proc;

/// Whether it may, at the moment. Not known to it may where /proc does not tell.
pub(super) fn is_strict() -> bool {
    let mut buffer = [0; 16];
    proc::read(c"/proc/sys/vm/overcommit_memory", &mut buffer).is_some_and(says_strict)
}

fn says_strict(text: &[u8]) -> bool {
    proc::numbers(text).next() == Some(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_is_strict() {
        let says = ["2\n", "2", "0\n", "1\n", "20\n", "12\n", "", "\n", "x"].map(|text| says_strict(text.as_bytes()));
        assert_eq!(says, [true, true, false, false, false, false, false, false, false]);
    }
}
