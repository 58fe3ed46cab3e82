//! loom models of rings and wake protocol: who gets a lane that is offered ([`offers`]) or kept ([`seats`]), or a
//! message that is lent ([`loans`]), what arrives ([`streams`]), who wakes whom ([`sleepers`], [`company`]), what an
//! end that is shut says ([`shut`]), in which order news came ([`order`]) and what a killed process leaves behind
//! ([`deaths`]).
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p beeline-lane --test loom --release`
//!
//! loom runs each model under every interleaving with up to `LOOM_MAX_PREEMPTIONS` preemptions (each model
//! names its own bound), and every value that the C++ memory model lets a relaxed load return.
//!
//! The kernel is a [`model::Kernel`]: per end a number of queued bells, a plugged flag and a closed flag under one
//! lock, and a condition variable on which `poll(2)` sleeps. Like `poll`, a sleeper looks at the level
//! again when it is woken, so a bell that somebody took out meanwhile wakes nobody. A model in which a
//! thread sleeps for ever is a deadlock, which loom reports.
//!
//! Death is a [`model::Fuse`]: it burns down by one at each access to lane memory or kernel and then unwinds the
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![allow(unsafe_code)]

mod calls;
mod company;
mod deaths;
mod loans;
mod model;
mod offers;
mod order;
mod seats;
mod shut;
mod sleepers;
mod streams;

use beeline_lane::End;
use loom::sync::Arc;

use model::{Holder, Lane};

fn stream(range: std::ops::Range<u8>) -> Vec<u8> {
    range.collect()
}

/// Fills the client's ring before the threads start.
fn prefill(lane: &Arc<Lane>, bytes: u8) {
    let client = Holder::new(lane, End::Client);
    assert!(client.send(&stream(0..bytes)));
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(preemptions));
    builder.max_branches = 20_000;
    builder.check(model);
}
