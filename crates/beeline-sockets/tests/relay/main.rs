//! Relays: a program that holds a plain TCP socket cannot tell it from the connection that it stands for.

mod endings;
mod processes;
mod stage;
mod streams;
