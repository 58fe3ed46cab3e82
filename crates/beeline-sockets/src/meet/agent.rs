//! Meeting across network namespaces, through the host's agent.
//!
//! The kernel makes the TCP connection; then both ends learn from the agent that they hold its two ends, and go on over
//! a lane, before the first byte. `docs/design/0008-namespaces.md` has the rules, which the comments here cite by
//! number. The rooms: `client` and `server` (with `enroll`) are the two ends; what they have in common with the agent
//! is [`beeline_meeting::agent`]. Without an agent everything is as if this module were not there.

mod client;
mod enroll;
mod server;

use core::net::SocketAddr;

use beeline_lane::{End, flags};
use beeline_stats::tunables::rules::Body;
use beeline_stats::tunables::{Key, OptionType, Policy, option};
use beeline_stats::{Reason, Role};

use super::listener::Listener;
use super::pool::PooledLane;
use crate::desc::Desc;
use crate::side::state;
use crate::wait::Mode;
use crate::{ending, kernel, limits, linux, process};

pub(super) use client::{Unmet, attempt};
pub(super) use enroll::enroll;
pub(super) use server::came_over_tcp;

/// How an attempt to connect has ended, if it was one.
pub(super) enum Made {
    /// There is a lane.
    Lane {
        /// Whether the socket is non-blocking.
        nonblocking: bool,
    },
    /// The kernel was asked to connect, and this is its answer; why there is no lane.
    Answered(Reason, i32),
}

/// Whether clients from other namespaces may have lanes: under the conditions that hold for those at the door, which
/// hostile ones among them shut, too.
fn may_serve(listener: &Listener) -> bool {
    let is_at_door = listener.door.get().is_some() && listener.serves();
    let is_shut = listener.is_leaving() || limits::had_hostile_clients();
    is_at_door && !is_shut && crate::config().policy != Policy::Strict
}

/// Whether the TCP connection below a lane was cut, so that the lane has to end ("When a filter changes later").
///
/// Looked for now and then by who sends. Either end's probes tell its own holder, so whichever end sends will find it.
pub(crate) fn end_if_cut(desc: &'static Desc) {
    if desc.is_lane() && desc.side().is(state::CUTS) {
        look_at_holder(desc);
    }
}

#[cold]
fn look_at_holder(desc: &'static Desc) {
    let side = desc.side();
    if side.is(state::RESET | state::PEER_CLOSED | state::OFFERED) {
        return;
    }
    let Some(holder) = desc.pooled().and_then(PooledLane::holder) else { return };
    // A client's end cannot go back to TCP from here on, where it would have options that the program has not set.
    if desc.end() == End::Client && kernel::getsockopt(holder, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) != Ok(IDLE_S) {
        keep_alive(holder);
    }
    // A peer that has closed its end has closed its holder, too: that is CLOSE_WAIT here, and no cut.
    if kernel::tcp_state(holder) != Some(linux::TCP_CLOSE) || desc.lane().flags(desc.end().peer()) & flags::CLOSED != 0
    {
        return;
    }
    let errno = match kernel::getsockopt::<i32>(holder, libc::SOL_SOCKET, libc::SO_ERROR) {
        Ok(errno) if errno != 0 => errno,
        _ => libc::ECONNRESET,
    };
    ending::cut(desc, errno);
}

/// How the calls that make a connection wait: by the rule for it, else as the process does.
fn mode_of(role: Role, server: SocketAddr) -> Mode {
    fn said<T: OptionType>(rule: Option<&Body>, key: Key<T>) -> T {
        rule.and_then(|rule| key.read_word(rule.word(key.index()))).unwrap_or_else(|| crate::live(key))
    }
    let rule = process::rules().of(role, server);
    Mode::new(said(rule, option::wait), said(rule, option::spin_ns_max))
}

/// After how many seconds of silence below a lane it is looked whether anybody is still there.
const IDLE_S: i32 = 5;

/// Asks the kernel to find out when nobody can be reached through a TCP connection any more.
fn keep_alive(holder: i32) {
    let tcp = [(libc::TCP_KEEPIDLE, IDLE_S), (libc::TCP_KEEPINTVL, 2), (libc::TCP_KEEPCNT, 3)];
    for (name, value) in tcp {
        let _ = kernel::setsockopt(holder, libc::IPPROTO_TCP, name, &value);
    }
    let _ = kernel::setsockopt(holder, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1i32);
}
