//! Memory load: copies memory of one NUMA node on a CPU of another, until it is told to end. Bound to the node, since
//! the kernel would soon bring the memory of a busy program to where it runs.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::libc::{MPOL_BIND, SYS_set_mempolicy, c_ulong, syscall};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;

use super::events::{Event, Outcome, tell};
use crate::worker::args::WorkerArgs;

/// More than a cache holds.
const BLOCK_BYTES: usize = 64 << 20;
const NODES_MAX: u32 = 1024;

pub fn drive(args: &WorkerArgs) -> Result<Outcome> {
    if let Some(node) = args.memory_node {
        bind_memory(node)?;
    }
    let source = vec![1u8; BLOCK_BYTES];
    let mut target = vec![2u8; BLOCK_BYTES];
    tell(&Event::At { point: "loading".into() })?;
    let begin = Instant::now();
    let mut copied = 0u64;
    while !is_told()? {
        target.copy_from_slice(black_box(&source));
        black_box(&mut target);
        copied += BLOCK_BYTES as u64;
    }
    Ok(Outcome::of("bytes_per_second", copied as f64 / begin.elapsed().as_secs_f64(), Vec::new()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bound_to_a_node_that_is_there_only() {
        std::thread::spawn(|| bind_memory(0).unwrap()).join().unwrap();
        assert!(bind_memory(NODES_MAX - 1).is_err());
        assert!(bind_memory(NODES_MAX).is_err());
    }
}
