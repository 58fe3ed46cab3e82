//! Taking over connections that another program has lent ([`super::handover`]).
//!
//! What comes with an anchor is checked like a peer's input and grants nothing that the descriptors do not:
//!
//! 1. Memory files must carry our seals, live on tmpfs, have the right size, and have been made by a user with whom
//!    we may share memory. The side must be of this build's layout.
//! 2. The side must name this anchor by its cookie and the lane's file by its identity.
//! 3. Only then the loan is taken; without one the end is left alone.
//! 4. A thread that `execve` ended may have held a lock of the side or been in the middle of an operation: both
//!    directions are brought up to date before the first use. A lock that seems to be held by this very thread is a
//!    dead one's. What another process is at work with is left to that: it has seen what a dead thread left there.
//!
//! An anchor that cannot be taken over becomes an orphan ([`crate::orphan`]). Parts that belong to no anchor are given
//! back, with their loan, unless that may be another program's (rule 7 of [`super::handover`]).
//!
//! A program may inherit thousands of ends. So what comes with one is sorted by what it is found by ([`Key`]), which is
//! read once; of the few that a message brings, whose order is the app's, all are looked at.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{End, Fault, LaneMemory, Since};
use beeline_shm::memfd::FileId;
use beeline_shm::{RING_BYTES_MAX, RING_BYTES_MIN};
use beeline_shm::{SideMemory, memfd, sys};

use super::handover::{by_cookie, end_loan};
use super::open_fds;
use crate::desc::{DESCS, Desc, Kind};
use crate::side::{MAGIC, SideState, state};
use crate::{io, kernel, meet, orphan, process, table};

/// Descriptors that are looked at without memory from the kernel.
const FEW: usize = 64;

/// Naps for which the other holders of an end are waited for: one that is stopped in its work holds nobody up.
const NAPS: u32 = 20;

/// A descriptor that may belong to an end.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub fd: i32,
    what: What,
    used: bool,
}

#[derive(Clone, Copy)]
enum What {
    Unknown,
    /// An end's anchor, by its cookie.
    Anchor(u64),
    /// A side, mapped, by the cookie of its anchor.
    Side(u64, &'static SideState),
    /// A sealed file.
    Memory(FileId),
    /// Another socket, by its cookie.
    Socket(u64),
}

/// What a part is found by: its kind, and one or two numbers.
type Key = (u8, u64, u64);

impl Part {
    /// No descriptor at all.
    pub(super) const NONE: Part = Part { fd: -1, what: What::Unknown, used: false };

    /// Finds out what `fd` is.
    pub(super) fn of(fd: i32) -> Part {
        Part { fd, what: classify(fd), used: false }
    }

    /// Whether it came with an anchor: the app must not see it.
    pub(super) fn is_ours(&self) -> bool {
        self.used
    }

    pub(super) fn side(&self) -> Option<&'static SideState> {
        if let What::Side(_, side) = self.what { Some(side) } else { None }
    }

    fn key(&self) -> Key {
        match self.what {
            What::Unknown => (0, 0, 0),
            What::Anchor(cookie) => (1, cookie, 0),
            What::Side(cookie, _) => key_of_side(cookie),
            What::Memory(id) => key_of_memory(id),
            What::Socket(cookie) => key_of_socket(cookie),
        }
    }
}

fn key_of_side(cookie: u64) -> Key {
    (2, cookie, 0)
}

fn key_of_memory(id: FileId) -> Key {
    (3, id.device, id.inode)
}

fn key_of_socket(cookie: u64) -> Key {
    (4, cookie, 0)
}

fn classify(fd: i32) -> What {
    if memfd::check_seals(fd).is_ok() {
        let Ok((id, _)) = memfd::identify(fd) else { return What::Unknown };
        let as_side = |side: &'static SideState| What::Side(side.origin.anchor_cookie.load(Relaxed), side);
        return side_at(fd).map_or(What::Memory(id), as_side);
    }
    if !orphan::is_anchor(fd) {
        return What::Unknown;
    }
    cookie_of(fd).map_or(What::Unknown, What::Anchor)
}

fn cookie_of(fd: i32) -> Option<u64> {
    kernel::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE).ok()
}

/// Maps the side in `fd`, if it is one.
fn side_at(fd: i32) -> Option<&'static SideState> {
    if !is_trusted(fd) {
        return None;
    }
    let page = SideMemory::adopt(fd).ok()?;
    // SAFETY: a side consists of atomics only and is valid whatever its bytes are; it is unmapped in `unmap` and
    // when the pool retires it.
    let side = unsafe { page.as_ref::<SideState>() };
    if side.origin.magic.load(Relaxed) == MAGIC {
        return Some(side);
    }
    // SAFETY: nobody has the reference any more.
    unsafe { page.unmap() };
    None
}

fn unmap(side: &'static SideState) {
    // SAFETY: mapped by `side_at`, and no description has taken it.
    unsafe { SideMemory::from_address(core::ptr::from_ref(side) as usize).unmap() };
}

fn is_trusted(fd: i32) -> bool {
    memfd::owner(fd).is_ok_and(meet::may_share)
}

/// Takes over what the process has inherited over `execve`.
pub(super) fn inherited() {
    let mut count = 0usize;
    open_fds::each(|_| count = count.saturating_add(1));
    if count <= FEW {
        let mut parts = [Part::NONE; FEW];
        return inherit(&mut parts);
    }
    // Other threads may open some meanwhile; what was inherited comes first, as its numbers are lower.
    let Ok(memory) = sys::map_private(count.saturating_mul(size_of::<Part>())) else { return };
    let parts = memory.cast::<Part>();
    for index in 0..count {
        // SAFETY: within the fresh mapping, which is page-aligned.
        unsafe { parts.add(index).write(Part::NONE) };
    }
    // SAFETY: as many as were written, and nobody else knows of them.
    inherit(unsafe { core::slice::from_raw_parts_mut(parts, count) });
    // SAFETY: the slice is not used any more.
    unsafe { sys::unmap(memory, count.saturating_mul(size_of::<Part>())) };
}

fn inherit(parts: &mut [Part]) {
    let mut places = parts.iter_mut();
    open_fds::each(|fd| {
        if let Some(place) = places.next() {
            *place = Part::of(fd);
        }
    });
    sort(parts);
    adopt_all(parts, Came::WithProgram);
    for part in parts.iter().filter(|part| part.is_ours()) {
        let _ = sys::close(part.fd);
    }
}

/// Sorts parts by their keys, those of one key by their numbers.
fn sort(parts: &mut [Part]) {
    if parts.iter().filter_map(Part::side).any(|side| side.origin.holder_cookie.load(Relaxed) != 0) {
        for part in parts.iter_mut().filter(|part| matches!(part.what, What::Unknown) && part.fd >= 0) {
            part.what = cookie_of(part.fd).map_or(What::Unknown, What::Socket);
        }
    }
    parts.sort_unstable_by_key(|part| (part.key(), part.fd));
}

/// How parts have come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// By `execve`: what was inheritable just then, perhaps for another program. They are sorted, and nothing of ours
    /// was there before.
    WithProgram,
    /// In a message, with the anchor that they belong to.
    InMessage,
}

/// Takes over all ends among `parts`. Anchors stay under their numbers; the other parts that are ours are marked as
/// used and can be closed. The caller holds [`super::changing`], or there is no other thread.
pub(super) fn adopt_all(parts: &mut [Part], came: Came) {
    for index in 0..parts.len() {
        if let Some(&Part { fd, what: What::Anchor(cookie), .. }) = parts.get(index) {
            let known = match came {
                Came::InMessage => by_cookie(fd),
                Came::WithProgram => adopted_before(parts, index, cookie),
            };
            if let Some(known) = known {
                // One more number for an end that is here already. The loan that came with it, if any, is returned
                // below.
                let _ = table::set(fd, Some(known));
            } else if adopt(fd, cookie, parts, came).is_none() {
                orphan::mark(fd);
            }
        }
    }
    for index in 0..parts.len() {
        let Some(side) = parts.get(index).filter(|part| !part.used).and_then(Part::side) else { continue };
        // Of one that may be meant for another program that was started then, it stays.
        if came == Came::InMessage || !side.is(state::MIXED) {
            end_loan(side, true);
        }
        mark_used(parts, index);
        if let Some(lane) = find_lane(parts, side, came) {
            mark_used(parts, lane);
        }
        if let Some(holder) = find_holder(parts, side, came) {
            mark_used(parts, holder);
        }
        unmap(side);
    }
}

fn mark_used(parts: &mut [Part], index: usize) {
    if let Some(part) = parts.get_mut(index) {
        part.used = true;
    }
}

/// The end that the number before this one, in their order, was found to lead to, if it is the same anchor's.
fn adopted_before(parts: &[Part], index: usize, cookie: u64) -> Option<&'static Desc> {
    let before = parts.get(index.checked_sub(1)?)?;
    let is_same = matches!(before.what, What::Anchor(other) if other == cookie);
    table::get(before.fd).filter(|desc| is_same && desc.is_lane())
}

/// Where parts with this key are.
fn places(parts: &[Part], key: Key, came: Came) -> Range<usize> {
    if came == Came::InMessage {
        return 0..parts.len();
    }
    parts.partition_point(|part| part.key() < key)..parts.partition_point(|part| part.key() <= key)
}

/// The first unused part at these places that `is_wanted`.
fn find(parts: &[Part], mut places: Range<usize>, is_wanted: impl Fn(&Part) -> bool) -> Option<usize> {
    places.find(|&index| parts.get(index).is_some_and(|part| !part.used && is_wanted(part)))
}

fn find_side(parts: &[Part], cookie: u64, came: Came) -> Option<usize> {
    let is_its = |part: &Part| matches!(part.what, What::Side(anchor, _) if anchor == cookie);
    find(parts, places(parts, key_of_side(cookie), came), is_its)
}

fn find_lane(parts: &[Part], side: &SideState, came: Came) -> Option<usize> {
    let origin = &side.origin;
    let wanted = FileId { device: origin.lane_device.load(Relaxed), inode: origin.lane_inode.load(Relaxed) };
    let is_its = |part: &Part| matches!(part.what, What::Memory(id) if id == wanted);
    find(parts, places(parts, key_of_memory(wanted), came), is_its)
}

fn find_holder(parts: &[Part], side: &SideState, came: Came) -> Option<usize> {
    let wanted = side.origin.holder_cookie.load(Relaxed);
    if wanted == 0 {
        return None;
    }
    let is_its = |part: &Part| match part.what {
        What::Unknown => cookie_of(part.fd) == Some(wanted),
        What::Socket(cookie) => cookie == wanted,
        _ => false,
    };
    find(parts, places(parts, key_of_socket(wanted), came), is_its)
}

/// Takes over the end whose anchor is `fd`.
fn adopt(fd: i32, cookie: u64, parts: &mut [Part], came: Came) -> Option<&'static Desc> {
    let side_index = find_side(parts, cookie, came)?;
    let side_part = parts.get(side_index).copied()?;
    let side = side_part.side()?;
    let lane_index = find_lane(parts, side, came)?;
    let holder_index = find_holder(parts, side, came);
    let lane_part = parts.get(lane_index).copied()?;
    let ring_bytes = side.origin.ring_bytes.load(Relaxed);
    if !is_trusted(lane_part.fd)
        || !ring_bytes.is_power_of_two()
        || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes)
    {
        return None;
    }
    let (memory, id) = LaneMemory::adopt(lane_part.fd, ring_bytes).ok()?;
    // A loan that is taken counts: what else is needed comes first. So does the list: to a relay that finds neither a
    // loan nor anybody there, nobody can come.
    let desc = DESCS.take().filter(|desc| {
        side.join(process::identity());
        let is_lent = side.take_loan();
        if !is_lent {
            side.leave(process::identity());
            DESCS.give(desc);
        }
        is_lent
    });
    let Some(desc) = desc else {
        // SAFETY: the fresh mapping has no user.
        unsafe { memory.unmap() };
        return None;
    };
    for index in [Some(side_index), Some(lane_index), holder_index].into_iter().flatten() {
        mark_used(parts, index);
    }
    let holder = holder_index.and_then(|index| parts.get(index)).map(|part| part.fd);
    install(desc, fd, side, memory, id, [side_part.fd, lane_part.fd], holder)
}

/// Makes `desc` the end. The descriptors of the parts are copied to hidden ones.
fn install(
    desc: &'static Desc,
    fd: i32,
    side: &'static SideState,
    memory: LaneMemory,
    id: FileId,
    [side_fd, lane_fd]: [i32; 2],
    holder: Option<i32>,
) -> Option<&'static Desc> {
    let end = if side.origin.end.load(Relaxed) == 0 { End::Client } else { End::Server };
    desc.begin(Kind::Tcp, fd, side.family.load(Relaxed), crate::forks());
    if table::set(fd, Some(desc)).is_err() {
        desc.give_if_unused();
        side.leave(process::identity());
        // SAFETY: the fresh mapping has no user.
        unsafe { memory.unmap() };
        return None;
    }
    side.tx_lock.disown();
    side.rx_lock.disown();
    side.arm_lock.disown();
    meet::adopt_lane(desc, memory, id, side, [side_fd, lane_fd], holder, end);
    desc.shared.store(true, Relaxed);
    bring_up_to_date(fd, desc);
    Some(desc)
}

fn bring_up_to_date(fd: i32, desc: &'static Desc) {
    let goes_on = |naps| naps < NAPS;
    let sound = desc.await_tx(goes_on).ok().is_none_or(|guard| guard.writer().recover().is_ok());
    let anchor = io::Anchor(fd);
    let sound = sound
        && desc.await_rx(goes_on).ok().is_none_or(|guard| {
            let reader = guard.reader();
            // For what knows nothing of lanes, as an epoll set that the last program kept: the kernel tells of what
            // comes next.
            let armed = || reader.arm(Since::Tail(reader.tail()), &anchor);
            matches!(reader.recover(&anchor).and_then(|()| armed()), Ok(_) | Err(Fault::Gone))
        });
    if !sound {
        io::poison(desc, beeline_stats::Poison::CursorBeyondRing);
    }
}
