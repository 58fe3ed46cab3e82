//! Sending and receiving on lanes, and how a connection ends.
//!
//! # Errors in TCP's terms
//!
//! | what happened | `recv` after the data is read | `send` |
//! |---|---|---|
//! | peer shut down or closed, all of our bytes read | 0 | goes on; after a close the first one still succeeds, then `EPIPE` |
//! | peer closed with our bytes unread, or aborted | `ECONNRESET` once, then 0 | `ECONNRESET` once, then `EPIPE` |
//! | peer killed | as closed, judged by the cursors | the same |
//! | bridge killed | `ECONNRESET` once, then 0 | `ECONNRESET` once, then `EPIPE` |
//! | the peer broke the protocol | `ECONNRESET` once, then 0 | `ECONNRESET` once, then `EPIPE` |
//!
//! The anchor only ever says "gone"; what that means is computed from the fronts (`faults`).

mod ahead;
mod alone;
mod ancillary;
mod arm;
mod blocking;
mod call;
mod dead;
mod faults;
mod flagged;
mod loan;
mod low_water;
mod messages;
mod part;
mod peeked;
mod pipe;
mod pollers;
mod quiet;
mod readiness;
mod receive;
mod receiving;
mod send;
mod sendfile;
mod sending;
mod shutdown;
mod sleeps;
mod transfer;
mod turn;
mod urgent;
mod zerocopy;

pub(crate) use crate::anchor::Anchor;
pub(crate) use crate::calibrate::small_send_buffer;
pub use crate::ending::poison;
pub(crate) use crate::ending::{Next, SHUT_BOTH, hear, observe, tell_linger, tells_of_end};
pub(crate) use crate::side::{force_peer_look, reset};
pub(crate) use ahead::wish;
pub(crate) use alone::{Sleeper, Users, is_alone, may_have_bells};
pub(crate) use arm::{arm_for_room, arm_lane, arm_reader, await_end};
pub(crate) use faults::{fault, kernel_said, tells_nothing};
pub use flagged::{preadv2, pwritev2};
pub(crate) use low_water::{count_arrivals, low_water, set_low_water};
pub use messages::{recvmmsg, recvmsg, sendmmsg, sendmsg};
pub(crate) use part::with_part;
pub(crate) use pollers::{Poller, pollers};
pub(crate) use readiness::{
    ALWAYS, READABLE, WRITABLE, plainly_readable, poll_mask, rest_at, room_is_untold, unread_hint, writable_hint,
};
pub use receive::{read, read_the_long_way, readv, recv, recv_at_once, recv_the_long_way, recvfrom};
pub use send::{send, send_at_once, send_the_long_way, sendto, write, write_the_long_way, writev};
pub use sendfile::sendfile;
pub(crate) use shutdown::{ring_of_end, shutdown};
pub(crate) use sleeps::{PollSleep, alarm_poller, next_number, poller_sleeps};
pub use transfer::splice;
pub(crate) use urgent::{at_mark, own, set_inline, unread as unread_bytes};
pub(crate) use zerocopy::tells as tells_completions;

/// In the child of a `fork`: the threads that slept are not here.
pub(crate) fn reset_after_fork() {
    pollers::reset_after_fork();
    sleeps::reset_after_fork();
}
