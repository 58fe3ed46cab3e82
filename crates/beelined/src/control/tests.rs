//! Bridges over loopback, in one process, driven step by step.
//!
//! Time is virtual: when no socket has news, the clock jumps to the next deadline. So a test of five seconds of
//! silence takes as long as its packets.

mod certificates;
mod hostile;
mod world;
