//! Which listener on this host would take a connection?
//!
//! Two questions to the kernel: rtnetlink(7) says whether the destination is this host and from which address
//! a connection would come, sock_diag(7) which listener it would reach. Asking about a destination that is not
//! local would find a wildcard listener all the same, so the route always comes first.
//!
//! 1. A netlink socket lives for one question: it costs 2 us to make, there is none to guard from the app,
//!    and nobody else has ever seen its replies.
//! 2. An answer is remembered for [`REMEMBERED_NS`], so that a client that connects in a loop pays no round trip for
//!    each connection. It proves who owned the port that short time ago, which is enough for doors of our own user and
//!    of root; for any other door the question is asked again once the connection stands. Where a loopback address is
//!    counts for [`LOOPBACK_NS`], as its route is the kernel's own: of twenty processes that connect in turns each
//!    would else ask both questions each time.
//! 3. In an `SO_REUSEPORT` group the kernel picks the member by all four numbers of a connection. The answer
//!    does not tell that there is a group, so an address whose cookie differs from the one found before is
//!    taken for one and is not remembered for [`GROUP_NS`].
//! 4. Where the bridge has said no, it is not asked again for [`REFUSED_NS`].
//! 5. Where connections are short-lived, the bridge is left out ([`super::brief`]).
//! 6. Where connections to a loopback address are short-lived, and TCP makes those faster, they are left to it
//!    ([`super::paths`]).
//! 7. A listener at whose door nobody takes hellos gets none for a while ([`untaken`]).
//! 8. A door whose owner nobody here shares memory with, or trusts, is left alone for [`BARRED_NS`].
//! 9. What this process listens on, or closes of that, makes it forget everything. A bind changes no answer: who does
//!    not listen gets no connection.

mod afar;
mod holder;
mod netlink;
mod own;
mod tickets;
mod untaken;

use core::net::{IpAddr, SocketAddr};

use beeline_stats::Reason;
use beeline_wire::Endpoint;
use beeline_wire::diag::{ListenerQuery, LookupError, REPLY_BYTES_MAX};
use beeline_wire::route::{self, RouteError, RouteKind, RouteQuery};

use super::brief::{Brief, Life};
use super::paths::{Paths, Port};
use crate::kernel;
use crate::lock::Lock;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use netlink::{DATAGRAMS_MAX, Netlink};
use untaken::Untaken;

pub use tickets::{abandoned, begin, ended, failed};

pub use holder::{Holder, holder};

pub use own::is_local;

pub use afar::{Afar, afar, elsewhere, left_to_tcp, looked_again, note_room, note_unmet, source_for};

/// How long an answer counts.
const REMEMBERED_NS: u64 = 2_000_000;
/// How long "that address is on another host" counts. TCP is never wrong.
const ELSEWHERE_NS: u64 = 100_000_000;
/// How long "that loopback address is this host" counts.
const LOOPBACK_NS: u64 = 100_000_000;
/// How long a "no" of the bridge counts.
const REFUSED_NS: u64 = 2_000_000_000;
/// How long a door counts as one that is not to be entered.
const BARRED_NS: u64 = 1_000_000_000;
/// How long an address is known to be served by a group.
const GROUP_NS: u64 = 10_000_000_000;
const ENTRIES: usize = 16;
/// The loopback interface of every network namespace: `LOOPBACK_IFINDEX` of include/net/net_namespace.h.
const LOOPBACK: u32 = 1;

/// A listener as a client needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// `SO_COOKIE` of the listener.
    pub cookie: u64,
    /// Its owner.
    pub uid: u32,
    /// When that was so.
    pub known_ns: u64,
}

/// A destination on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Local {
    /// The address that a connection to it comes from.
    pub source: IpAddr,
}

/// Where a destination is.
#[derive(Clone, Copy)]
enum Place {
    Here(Local),
    /// On another host, reached from this address; or nowhere.
    Elsewhere(Option<IpAddr>),
}

#[derive(Clone, Copy)]
struct Entry {
    destination: SocketAddr,
    place: Place,
    /// 0: `place` is not known.
    routed_ns: u64,
    target: Option<Target>,
    group_until_ns: u64,
    /// No client finds a door there until then.
    doorless_until_ns: u64,
    /// The listener whose door is not to be entered, why, and until when.
    barred: Option<(u64, Reason, u64)>,
    /// Since when one of its clients asks anew whether that is so.
    asked_anew_ns: u64,
    /// The listener whose door somebody has tried again in vain; 0 for one on another host.
    vain_cookie: Option<u64>,
    /// Whether hellos are taken.
    untaken: Untaken,
    /// Why the bridge takes no connection there, until when.
    refused: Option<(Reason, u64)>,
    /// Why the agent brings nobody together with who is there, until when.
    unmet: Option<(Reason, u64)>,
    /// For how long that was because it had no room, the last time; 0 if it has had room since.
    full_ns: u64,
    /// How connections over the bridge or the agent have been used.
    brief: Brief,
    /// Why those that are left to TCP are, by the way that the last of the others took.
    left_as: Reason,
    /// How those over lanes and over TCP do, of each kind of [`Port`], and by which number tickets name the
    /// destination: an even one for those of the first kind, the next for those of the other.
    paths: [Paths; 2],
    number: u32,
    /// When it was last asked for, in questions.
    asked: u64,
}

impl Entry {
    /// Whether a client has just found that there is no door. When that is as old as it may be, one client asks anew,
    /// and the others go by it for as long again: of twenty that connect in turns each would else ask.
    fn is_known_doorless(&mut self, now_ns: u64) -> bool {
        let Some(target) = self.target else { return false };
        let until_ns = self.doorless_until_ns.min(target.known_ns.saturating_add(REMEMBERED_NS));
        if now_ns < until_ns {
            return true;
        }
        let somebody_asks = now_ns.saturating_sub(self.asked_anew_ns) < REMEMBERED_NS;
        if !somebody_asks {
            self.asked_anew_ns = now_ns;
        }
        somebody_asks && now_ns < until_ns.saturating_add(REMEMBERED_NS)
    }

    fn new(destination: SocketAddr) -> Entry {
        Entry {
            destination,
            place: Place::Elsewhere(None),
            routed_ns: 0,
            target: None,
            group_until_ns: 0,
            doorless_until_ns: 0,
            barred: None,
            asked_anew_ns: 0,
            vain_cookie: None,
            untaken: Untaken::NEW,
            refused: None,
            unmet: None,
            full_ns: 0,
            brief: Brief::default(),
            left_as: Reason::BridgeShortLived,
            paths: [Paths::of(Port::Kernels), Paths::of(Port::Programs)],
            number: NUMBER.fetch_add(2, Relaxed).max(2),
            asked: 0,
        }
    }

    /// The listener's, if it is on this host and known; else 0.
    fn cookie(&self) -> u64 {
        self.target.map_or(0, |target| target.cookie)
    }
}

struct Memory(UnsafeCell<[Option<Entry>; ENTRIES]>);

// SAFETY: only used under `LOCK`.
unsafe impl Sync for Memory {}

#[unsafe(link_section = ".fork.locked")]
static LOCK: Lock = Lock::new();
/// The next number, an even one. Some are never used.
static NUMBER: AtomicU32 = AtomicU32::new(2);
/// Questions for destinations; counted under `LOCK`.
static QUESTIONS: AtomicU64 = AtomicU64::new(1);
static MEMORY: Memory = Memory(UnsafeCell::new([None; ENTRIES]));

fn remembered<R>(f: impl FnOnce(&mut [Option<Entry>; ENTRIES]) -> R) -> R {
    let _guard = LOCK.lock();
    // SAFETY: the lock is held, and `f` cannot reach the memory in another way.
    f(unsafe { &mut *MEMORY.0.get() })
}

/// Forgets all answers: something of this process is listening now, or listens no more.
#[unsafe(link_section = ".text.fork")]
pub fn forget() {
    remembered(|entries| {
        for entry in entries.iter_mut().flatten() {
            entry.target = None;
            entry.doorless_until_ns = 0;
            entry.barred = None;
            entry.untaken.ask_again();
            entry.refused = None;
            entry.unmet = None;
        }
    });
}

/// In the child of a `fork`: nobody holds the lock.
pub fn reset_after_fork() {
    LOCK.reset();
}

/// Asks what is known of a destination.
fn recall<R>(destination: SocketAddr, ask: impl FnOnce(&Entry) -> R) -> Option<R> {
    remembered(|entries| asked_for(entries, destination).map(|entry| ask(entry)))
}

/// What is known of a destination, which is not the next to be forgotten then.
fn asked_for(entries: &mut [Option<Entry>; ENTRIES], destination: SocketAddr) -> Option<&mut Entry> {
    let entry = entries.iter_mut().flatten().find(|entry| entry.destination == destination)?;
    entry.asked = QUESTIONS.fetch_add(1, Relaxed);
    Some(entry)
}

fn change(destination: SocketAddr, change: impl FnOnce(&mut Entry)) {
    remembered(|entries| {
        if let Some(entry) = known_or_new(entries, destination) {
            change(entry);
            entry.asked = QUESTIONS.fetch_add(1, Relaxed);
        }
    });
}

/// What is known of a destination; else it takes the place of the one that was not asked for the longest. Apart, as an
/// entry is much for the stack of a small thread that connects.
#[inline(never)]
fn known_or_new(entries: &mut [Option<Entry>; ENTRIES], destination: SocketAddr) -> Option<&mut Entry> {
    let is_it = |slot: &Option<Entry>| slot.as_ref().is_some_and(|entry| entry.destination == destination);
    let age = |slot: &Option<Entry>| slot.as_ref().map_or(0, |entry| entry.asked);
    let place = match entries.iter().position(is_it) {
        Some(known) => known,
        None => (0..ENTRIES).min_by_key(|index| entries.get(*index).map_or(0, age))?,
    };
    let slot = entries.get_mut(place)?;
    if !is_it(slot) {
        *slot = Some(Entry::new(destination));
    }
    slot.as_mut()
}

/// Whether `destination` is this host, and from where it would be reached.
///
/// # Errors
/// [`Reason::NotLocal`] or [`Reason::LookupFailed`].
pub(super) fn local(destination: SocketAddr) -> Result<Local, Reason> {
    match place(destination)? {
        Place::Here(local) => Ok(local),
        Place::Elsewhere(_) => Err(Reason::NotLocal),
    }
}

/// Notes how a connection over the bridge or the agent was used; and why the next ones are left to TCP, if they are.
pub fn note_life(destination: SocketAddr, life: Life, left_as: Reason) {
    change(destination, |entry| {
        entry.left_as = left_as;
        entry.brief.ended(life, kernel::now_ns());
    });
}

/// Notes that the bridge takes no connection to a destination.
pub fn note_refused(destination: SocketAddr, reason: Reason) {
    let until_ns = kernel::now_ns().saturating_add(REFUSED_NS);
    change(destination, |entry| entry.refused = Some((reason, until_ns)));
}

fn place(destination: SocketAddr) -> Result<Place, Reason> {
    let now = kernel::now_ns();
    let routed = recall(destination, |entry| (entry.place, entry.routed_ns));
    if let Some((place, routed_ns)) = routed.filter(|(_, routed_ns)| *routed_ns != 0) {
        let lasts = match place {
            Place::Here(_) if destination.ip().to_canonical().is_loopback() => LOOPBACK_NS,
            Place::Here(_) => REMEMBERED_NS,
            Place::Elsewhere(_) => ELSEWHERE_NS,
        };
        if now.saturating_sub(routed_ns) < lasts {
            return Ok(place);
        }
    }
    let place = ask_route(destination)?;
    change(destination, |entry| {
        (entry.place, entry.routed_ns) = (place, now);
        if matches!(place, Place::Here(_)) {
            // What was known was of a place that had this address before.
            entry.brief = Brief::default();
        }
    });
    Ok(place)
}

/// The listener that would take a connection from `source`, perhaps by an answer that is a little old.
///
/// # Errors
/// The reason why there is none.
pub fn listener(destination: SocketAddr, source: SocketAddr) -> Result<Target, Reason> {
    if let Some(target) = recall(destination, |entry| entry.target).flatten()
        && kernel::now_ns().saturating_sub(target.known_ns) < REMEMBERED_NS
    {
        return Ok(target);
    }
    listener_now(destination, source)
}

/// The listener that would take a connection from `source` right now.
///
/// # Errors
/// The reason why there is none.
pub(super) fn listener_now(destination: SocketAddr, source: SocketAddr) -> Result<Target, Reason> {
    let known_ns = kernel::now_ns();
    let found = ask_listener(destination, source)?;
    let target = Target { cookie: found.cookie, uid: found.uid, known_ns };
    if found.interface != 0 {
        return Err(Reason::ListenerUnsupported);
    }
    change(destination, |entry| {
        if entry.target.is_some_and(|before| before.cookie != target.cookie) {
            if known_ns >= entry.group_until_ns {
                entry.untaken = Untaken::NEW;
            }
            entry.group_until_ns = known_ns.saturating_add(GROUP_NS);
        }
        // In a group the answer is kept only to compare the next one with: it is too old already.
        let known_ns = if known_ns < entry.group_until_ns { 0 } else { known_ns };
        entry.target = Some(Target { known_ns, ..target });
    });
    Ok(target)
}

/// Whether several listeners share the destination's port, as clients have found of late.
#[must_use]
pub fn is_shared(destination: SocketAddr) -> bool {
    recall(destination, |entry| entry.group_until_ns).is_some_and(|until_ns| kernel::now_ns() < until_ns)
}

/// Whether a client has just found that there is no door.
pub fn is_doorless(destination: SocketAddr, cookie: u64) -> bool {
    why_not_enter(destination, cookie) == Some(Reason::NoDoor)
}

/// Why a client does not enter this listener's door, as one has just found.
pub fn why_not_enter(destination: SocketAddr, cookie: u64) -> Option<Reason> {
    let now_ns = kernel::now_ns();
    let why = |entry: &Entry| {
        let is_it = entry.target.is_some_and(|target| target.cookie == cookie);
        if is_it && now_ns < entry.doorless_until_ns {
            return Some(Reason::NoDoor);
        }
        let barred = entry.barred.filter(|(whose, _, until_ns)| *whose == cookie && now_ns < *until_ns);
        barred.map(|(_, reason, _)| reason)
    };
    recall(destination, why).flatten()
}

/// Notes why this listener's door is not to be entered.
pub fn note_barred(destination: SocketAddr, cookie: u64, reason: Reason) {
    let until_ns = kernel::now_ns().saturating_add(BARRED_NS);
    change(destination, |entry| entry.barred = Some((cookie, reason, until_ns)));
}

/// Whether a client has just found that who listens there has no door: nothing else is to be asked then.
pub fn is_known_doorless(destination: SocketAddr) -> bool {
    let now_ns = kernel::now_ns();
    remembered(|entries| asked_for(entries, destination).is_some_and(|entry| entry.is_known_doorless(now_ns)))
}

/// Notes that a client found no door; or that what was remembered led nowhere.
pub fn note_doorless(destination: SocketAddr) {
    let until = kernel::now_ns().saturating_add(REMEMBERED_NS);
    change(destination, |entry| entry.doorless_until_ns = until);
}

/// Lets the next client look whether there is a door by now.
pub fn forget_doorless(destination: SocketAddr) {
    change(destination, |entry| entry.doorless_until_ns = 0);
}

/// Whether a connection that begins now says no hello, because nobody takes any there. Asked once for each.
pub fn is_untaken(destination: SocketAddr) -> bool {
    SUSPECTED.load(Relaxed)
        && untaken_at(destination, |untaken| untaken.decide_to_leave(kernel::now_ns())).unwrap_or(false)
}

/// Notes that nobody took a hello that was said then.
pub fn note_untaken(destination: SocketAddr, said_ns: u64) {
    SUSPECTED.store(true, Relaxed);
    change(destination, |entry| entry.untaken.found(said_ns, kernel::now_ns()));
}

/// Whether nobody took a hello somewhere.
static SUSPECTED: AtomicBool = AtomicBool::new(false);

/// Notes that somebody has taken a hello.
pub fn note_taken(destination: SocketAddr) {
    if SUSPECTED.load(Relaxed) {
        let _ = untaken_at(destination, Untaken::taken);
    }
}

fn untaken_at<R>(destination: SocketAddr, f: impl FnOnce(&mut Untaken) -> R) -> Option<R> {
    remembered(|entries| asked_for(entries, destination).map(|entry| f(&mut entry.untaken)))
}

/// Whether TCP's queue of the listener that would take a connection from `source` has no room.
pub fn is_crowded(destination: SocketAddr, source: SocketAddr) -> bool {
    ask_listener(destination, source).is_ok_and(|listener| listener.is_full())
}

/// Whether another user than `owner`, whose listener had this cookie, listens there now. A connection from that port of
/// `source` may stand, of which the kernel would speak instead: so none is named.
pub fn has_changed_hands(destination: SocketAddr, source: SocketAddr, cookie: u64, owner: u32) -> bool {
    let source = SocketAddr::new(source.ip(), 0);
    ask_listener(destination, source).is_ok_and(|now| now.cookie != cookie && now.uid != owner)
}

/// Whether the door of who listens there now was tried again in vain.
pub fn was_in_vain(destination: SocketAddr) -> bool {
    recall(destination, |entry| entry.vain_cookie == Some(entry.cookie())) == Some(true)
}

/// Whether root listens there, as far as is known.
pub fn is_roots(destination: SocketAddr) -> bool {
    recall(destination, |entry| entry.target.is_some_and(|target| target.uid == 0)) == Some(true)
}

/// Notes that a client has tried again in vain.
pub fn note_in_vain(destination: SocketAddr) {
    change(destination, |entry| entry.vain_cookie = Some(entry.cookie()));
}

#[inline(never)]
fn ask_route(destination: SocketAddr) -> Result<Place, Reason> {
    let query = RouteQuery::new(destination);
    let mut socket = Netlink::open(libc::NETLINK_ROUTE)?;
    socket.send(query.encode(Netlink::SEQUENCE).as_bytes())?;
    let mut buffer = [0; route::REPLY_BYTES_MAX];
    for _ in 0..DATAGRAMS_MAX {
        match query.decode(socket.receive(&mut buffer)?, Netlink::SEQUENCE, socket.port_id) {
            Ok(route) if route.kind == RouteKind::Local => {
                // A local route without a preferred source is reached from the destination itself.
                let source = route.source.unwrap_or_else(|| Endpoint::new(destination).address().ip());
                return Ok(Place::Here(Local { source }));
            }
            Ok(route) if route.kind == RouteKind::Unicast => return Ok(Place::Elsewhere(route.source)),
            // No route is an answer, too: the kernel's connect will say so.
            Ok(_) | Err(RouteError::Refused(_)) => return Ok(Place::Elsewhere(None)),
            Err(RouteError::Unanswered) => {}
            Err(RouteError::Malformed) => break,
        }
    }
    Err(Reason::LookupFailed)
}

#[inline(never)]
fn ask_listener(destination: SocketAddr, source: SocketAddr) -> Result<beeline_wire::diag::Listener, Reason> {
    let mut query = ListenerQuery::new(destination, Some(source));
    let ip = destination.ip().to_canonical();
    if ip.is_ipv4() || ip.is_loopback() {
        // What comes from this host comes by it, whosever address it is for; over IPv6 to another address by the
        // interface that has that.
        query = query.on_interface(LOOPBACK);
    }
    let mut socket = Netlink::open(libc::NETLINK_SOCK_DIAG)?;
    socket.send(&query.encode(Netlink::SEQUENCE))?;
    let mut buffer = [0; REPLY_BYTES_MAX];
    for _ in 0..DATAGRAMS_MAX {
        match query.decode(socket.receive(&mut buffer)?, Netlink::SEQUENCE, socket.port_id) {
            Ok(listener) => return Ok(listener),
            Err(LookupError::Refused(libc::ENOENT) | LookupError::NotListening(_)) => return Err(Reason::NoListener),
            Err(LookupError::Refused(libc::EPERM | libc::EACCES)) => return Err(Reason::SystemCallDenied),
            Err(LookupError::Unanswered) => {}
            Err(LookupError::Refused(_) | LookupError::Malformed) => break,
        }
    }
    Err(Reason::LookupFailed)
}

#[cfg(test)]
mod tests;
