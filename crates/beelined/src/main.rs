//! `beelined`: the daemon, and the commands that set it up and ask it.

fn main() {}
