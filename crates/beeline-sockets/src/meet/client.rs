//! The client's part of a meeting, whatever stands behind the door: a lane that is offered, and the anchor under the
//! app's numbers.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{BEGIN_ARMED, End, LaneMemory, offer};
use beeline_stats::Reason;
use beeline_wire::ConnName;

use super::pool::{self, Offer, PooledLane};
use crate::desc::Desc;
use crate::kernel;
use crate::side::{SideState, state};
use crate::{hidden, io, kept, slots, table, watchers};

/// Fills the side and finds a lane for it, to be offered at the door of `cookie`.
pub(super) fn prepare(
    side: &SideState,
    desc: &Desc,
    name: &ConnName,
    cookie: u64,
    nonblocking: bool,
) -> Result<Offer, Reason> {
    let offer = pool::lane_of_name(cookie, name).map_or_else(|| pool::client_lane(cookie), Ok)?;
    fill(side, desc, name, nonblocking, offer.lane.memory());
    Ok(offer)
}

/// Fills the side and the lane, which is as new ([`LaneMemory::reset`]). A server arms its end itself, when it takes
/// the hello: what is there by then needs no bell.
pub(super) fn fill(side: &SideState, desc: &Desc, name: &ConnName, nonblocking: bool, memory: LaneMemory) {
    fill_side(side, desc, name, nonblocking);
    memory.read_wake(End::Client).store(BEGIN_ARMED, Relaxed);
}

/// Has the first bytes ring at a server that is a bridge, or that an agent finds.
pub(super) fn arm_server(memory: LaneMemory) {
    memory.read_wake(End::Server).store(BEGIN_ARMED, Relaxed);
}

/// Hands over what other threads have set on the socket since [`prepare`], where something was waited for. The caller
/// holds `changing::changing`, and installs next.
///
/// # Errors
/// What keeps the socket on TCP since then.
pub(super) fn catch_up(desc: &Desc, side: &SideState) -> Result<(), Reason> {
    if let Some(reason) = desc.draft.connectable.reason() {
        return Err(reason);
    }
    super::lane::carry_draft(&desc.draft, side);
    Ok(())
}

/// Puts the anchor in the TCP socket's place. `peer_pid` is the process at its other end, where that is known.
pub(super) fn install(
    fd: i32,
    desc: &'static Desc,
    anchor: i32,
    lane: &'static PooledLane,
    side: pool::Side,
    nonblocking: bool,
    peer_pid: Option<u32>,
) -> Result<(), Reason> {
    // A new one does not block; of one that was kept the last connection has decided.
    if nonblocking != (!lane.stands.is_again() || lane.stands.is_nonblocking()) {
        let _ = kernel::set_status_flags(anchor, if nonblocking { libc::O_NONBLOCK } else { 0 });
    }
    let owned = desc.draft.owned.load(Relaxed);
    if owned {
        super::owner::carry_owner(fd, anchor);
    }
    let is_done = watchers::while_out(fd, desc, || {
        let is_done = table::put_under(fd, desc, anchor);
        if is_done {
            super::lane::begin_lane(desc, anchor, lane, side, End::Client);
            desc.know_peer(peer_pid.unwrap_or(0));
            slots::open_slot(desc, peer_pid);
            if owned {
                io::own(fd);
            }
        }
        is_done
    });
    if is_done {
        return Ok(());
    }
    // The server finds a client that has left, unless it has taken it by now.
    let _ = offer::withdraw(lane.memory().offer());
    lane.spoil();
    pool::retire(lane, End::Client, false);
    side.retire(true);
    Err(Reason::Internal)
}

/// Whether connect(2) answers before there is a connection although the socket blocks: with a negative `SO_SNDTIMEO`.
pub(super) fn waits_for_nothing(desc: &Desc) -> bool {
    desc.draft.snd_timeout_ns.load(Relaxed) == kept::AT_ONCE_NS
}

fn fill_side(side: &SideState, desc: &Desc, name: &ConnName, nonblocking: bool) {
    super::lane::carry_draft(&desc.draft, side);
    side.holders.store(1, Relaxed);
    side.nonblock.store(u32::from(nonblocking), Relaxed);
    side.family.store(desc.family.load(Relaxed), Relaxed);
    side.local.set(name.client.address());
    side.remote.set(name.server.address());
    side.rx.begin_armed();
    if nonblocking || waits_for_nothing(desc) {
        side.mark(state::CONNECTING);
    }
}

/// A TCP socket once more, hidden, as it holds the address that the app chose. Closed unless a lane keeps it.
pub(super) struct Holder(i32);

impl Holder {
    /// That of an app which chose address or port; none for others.
    ///
    /// # Errors
    /// There is no number for it, or lanes have as many as they may.
    pub(super) fn of(fd: i32, is_chosen: bool) -> Result<Option<Self>, Reason> {
        if !is_chosen {
            return Ok(None);
        }
        if !pool::may_hold() {
            return Err(Reason::DescriptorsShort);
        }
        // Where there is no room above, any number is better than none.
        let twin = hidden::hidden_twin(fd).or_else(|| {
            let copy = kernel::duplicate(fd, 0, true).ok()?;
            hidden::hidden_add(copy);
            Some(copy)
        });
        twin.map(|twin| Some(Self(twin))).ok_or(Reason::DescriptorsShort)
    }

    /// Keeps it as long as the lane's connection lasts.
    pub(super) fn keep_with(self, lane: &PooledLane) {
        lane.hold(self.0);
        core::mem::forget(self);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        hidden::close_hidden(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desc::{Connectable, DESCS, Kind};
    use crate::options;

    #[test]
    fn what_is_set_while_another_thread_connects_reaches_the_lane_or_keeps_the_socket_on_tcp() {
        let desc = DESCS.take().unwrap();
        desc.begin(Kind::Tcp, -1, libc::AF_INET as u32, crate::forks());
        assert!(desc.draft.connectable.claim(Connectable::Free));
        let side = pool::side().unwrap();
        desc.draft.rcv_timeout_ns.store(7, Relaxed);
        assert_eq!(catch_up(desc, side.state), Ok(()));
        assert_eq!(side.state.rcv_timeout_ns.load(Relaxed), 7);
        options::block(desc, Reason::AsyncIo);
        options::block(desc, Reason::StdioDescriptor);
        assert_eq!(catch_up(desc, side.state), Err(Reason::AsyncIo), "the first");
        side.retire(false);
    }
}
