//! Life in the app's process: start, options, forks, and what happens to fd numbers.
//!
//! [`start`] runs once, from the library's constructor or from the first call that makes something of
//! ours, whichever is earlier: another library's constructor may open sockets before ours has run.

mod actions;
mod adopt;
mod cleared;
mod code;
mod commands;
mod control;
pub mod environment;
mod fds;
mod fork;
mod handover;
pub mod image;
mod leaving;
mod listeners;
pub mod objects;
mod open_fds;
mod pairs;
mod refusal;
pub(crate) mod relay;
mod rights;
mod rings;
mod sandbox;
mod sets;
mod start;
mod stranger;
mod text;

pub use crate::changing::{Changing, changing};
pub use crate::hidden::{hidden_add, hidden_remove, is_hidden};
pub use crate::process::{FORKS, VFORKS, config, count_spawn, forks, is_guest_of_parent};
pub use actions::{Actions, list_begins, list_closes, list_names};
pub use code::{allow_lanes, code_is_loaded, loads};
pub use commands::one_command;
pub use control::{fcntl, ioctl, sockatmark};
pub use fds::{close, close_range, closefrom, dup, dup2, dup3};
pub use fork::{
    around_clone_prepare, around_fork, around_fork_child, around_fork_parent, around_fork_prepare, around_strange_copy,
    before_strange_copy, forked, frees_locks, leave, leave_but,
};
pub use handover::{Loan, after_spawn, before_exec, before_spawn, exec_failed};
pub(crate) use listeners::adopt_listener;
pub use refusal::refusal;
pub use relay::{demote_number, has_left_lanes, leave_lanes};
pub use rights::{passes_sockets, receive, receive_many, send, send_many};
pub use rings::know_ring;
pub use sandbox::{before_filter, before_limit};
pub use sets::bits_looked_at;
pub use start::{look, may_accelerate, start};
pub(crate) use stranger::demote_if_stream;
pub use stranger::give_to_stream;
