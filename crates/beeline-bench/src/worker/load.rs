//! Memory load: copies memory on a CPU until it is told to end. Where a node is named, all of the memory is that
//! node's: bound to it, since the kernel would soon bring the memory of a busy program to where it runs, and looked at,
//! before and after.
//!
//! With its CPU on one node and its memory on another, each byte that is copied crosses the link between the two twice
//! at least: read, and written back.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::libc::{MPOL_BIND, SYS_get_mempolicy, SYS_getcpu, SYS_set_mempolicy, c_int, c_uint, c_ulong, c_void, syscall};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;

use super::events::{Event, Outcome, tell};
use crate::worker::args::WorkerArgs;

/// More than a cache holds.
const BLOCK_BYTES: usize = 64 << 20;
const NODES_MAX: u32 = 1024;
/// Of `get_mempolicy(2)`: not the policy, but the node that an address is of (linux/mempolicy.h).
const MPOL_F_NODE: c_ulong = 1;
const MPOL_F_ADDR: c_ulong = 2;
/// The smallest page there is; of larger ones several places are looked at.
const PAGE_BYTES: usize = 4096;

pub fn drive(args: &WorkerArgs) -> Result<Outcome> {
    if let Some(node) = args.memory_node {
        bind_memory(node)?;
    }
    let source = vec![1u8; BLOCK_BYTES];
    let mut target = vec![2u8; BLOCK_BYTES];
    let look = |target: &[u8]| args.memory_node.map_or(Ok(()), |node| check(node, &[&source, target]));
    look(&target)?;
    tell(&Event::At { point: "loading".into() })?;
    let begin = Instant::now();
    let mut copied = 0u64;
    while !is_told()? {
        target.copy_from_slice(black_box(&source));
        black_box(&mut target);
        copied += BLOCK_BYTES as u64;
    }
    let mut outcome = Outcome::of("bytes_per_second", copied as f64 / begin.elapsed().as_secs_f64(), Vec::new());
    look(&target)?;
    outcome.values.insert("cpu_node".into(), f64::from(own_node()?));
    outcome.values.extend(args.memory_node.map(|node| ("memory_node".to_owned(), f64::from(node))));
    Ok(outcome)
}

/// Whether the conductor has said something, or is gone.
fn is_told() -> Result<bool> {
    let input = std::io::stdin();
    let ready = poll(&mut [PollFd::new(input.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO)?;
    Ok(ready > 0)
}

/// From now on this process gets memory of the node only.
fn bind_memory(node: u32) -> Result<()> {
    ensure!(node < NODES_MAX, "there is no NUMA node {node}");
    let mut mask = [0 as c_ulong; (NODES_MAX / c_ulong::BITS) as usize];
    mask[(node / c_ulong::BITS) as usize] = 1 << (node % c_ulong::BITS);
    // The kernel takes one bit less than it is told.
    let bits = c_ulong::from(NODES_MAX) + 1;
    // SAFETY: the mask is an array of NODES_MAX bits, and the kernel only reads it during the call.
    let result = unsafe { syscall(SYS_set_mempolicy, MPOL_BIND, mask.as_ptr(), bits) };
    nix::errno::Errno::result(result).with_context(|| format!("cannot take memory of node {node}"))?;
    Ok(())
}

/// Whether all of the memory is where it was bound to.
fn check(node: u32, blocks: &[&[u8]]) -> Result<()> {
    for block in blocks {
        let elsewhere = pages_elsewhere(node, block)?;
        ensure!(elsewhere == 0, "{elsewhere} pages of the load's memory are not of node {node}, to which it was bound");
    }
    Ok(())
}

/// How many pages of a block are of another node.
fn pages_elsewhere(node: u32, block: &[u8]) -> Result<usize> {
    let mut count = 0;
    for page in block.chunks(PAGE_BYTES) {
        let mut found: c_int = -1;
        let no_mask = std::ptr::null_mut::<c_ulong>();
        let address = page.as_ptr().cast::<c_void>();
        // SAFETY: the kernel writes one integer, which outlives the call; without a mask it writes no other. The
        // address is only looked up.
        let result = unsafe {
            syscall(SYS_get_mempolicy, &raw mut found, no_mask, 0 as c_ulong, address, MPOL_F_NODE | MPOL_F_ADDR)
        };
        nix::errno::Errno::result(result).context("the kernel does not tell where memory is")?;
        count += usize::from(u32::try_from(found) != Ok(node));
    }
    Ok(count)
}

/// The node of the CPU that this thread is on.
fn own_node() -> Result<u32> {
    let (mut cpu, mut node): (c_uint, c_uint) = (0, 0);
    // SAFETY: the kernel writes two integers, which outlive the call; it has not used the third argument since Linux
    // 2.6.24.
    let result = unsafe { syscall(SYS_getcpu, &raw mut cpu, &raw mut node, std::ptr::null_mut::<c_void>()) };
    nix::errno::Errno::result(result).context("the kernel does not tell on which node this is")?;
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bound_to_a_node_that_is_there_only() {
        std::thread::spawn(|| bind_memory(0).unwrap()).join().unwrap();
        assert!(bind_memory(NODES_MAX - 1).is_err());
        assert!(bind_memory(NODES_MAX).is_err());
    }

    #[test]
    fn memory_that_is_elsewhere_than_it_should_be_is_seen() {
        let block = std::thread::spawn(|| {
            bind_memory(0).unwrap();
            vec![1u8; 64 * PAGE_BYTES]
        });
        let block = block.join().unwrap();
        assert_eq!(pages_elsewhere(0, &block).unwrap(), 0);
        assert_eq!(pages_elsewhere(1, &block).unwrap(), 64);
        assert!(check(0, &[&block]).is_ok());
        let error = check(1, &[&block]).unwrap_err().to_string();
        assert!(error.starts_with("64 pages") && error.contains("node 1"), "{error}");
    }
}
