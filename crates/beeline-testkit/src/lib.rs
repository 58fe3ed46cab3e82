//! Test machinery shared by Beeline's tests; never part of the product.
//!
//! - [`sys`]: the socket API as a program sees it. Each function is exactly one call of libc, dynamically linked, so
//!   that a preloaded library sees what it would see from a C program; nothing is retried and nothing is hidden.
//! - [`preload`]: where `libbeeline.so` is and how a child process gets it.
//! - [`hostile`]: a raw client of a door that breaks the rules.
//! - [`statistics`]: what the library counted about a process.
//! - [`watch`]: children in process groups of their own, with a deadline after which the whole group is killed.
//! - [`rng`]: small seeded random numbers and the byte patterns whose integrity is checked by hash.

pub mod hostile;
pub mod preload;
pub mod rng;
pub mod statistics;
pub mod sys;
pub mod watch;
