//! How two ends meet: sockets, listeners and their doors, connecting and accepting.
//!
//! # The protocol of a connection
//!
//! ```text
//! client                                             server
//! ------                                             ------
//!                                                    listen: door made, shut
//!                                                    first accept, poll, epoll_ctl: door open
//! which listener would take it? (sock_diag)
//! anchor bound to the connection's name
//! anchor connected to the listener's door
//! whose door is it? (SO_PEERCRED, sock_diag)
//! lane made or taken from the pool
//! hello, with the lane's memfd          ---------->
//! anchor put under the app's fd
//! the app writes into the ring                       accept: name, user, hello, lane checked
//!                                       <----------  TAKEN: from now on nothing changes any more
//! ```
//!
//! Until the hello is sent, any failure leaves the app's TCP socket as it was, and the kernel connects it.
//! Between hello and TAKEN the server's death or refusal shows on the anchor, and the client begins again over
//! TCP with what lies in its ring ([`late_fallback`]): since the hello was not taken, nobody has read a byte of
//! it. After TAKEN the connection lives and dies with the lane.
//!
//! # Rooms
//!
//! What two ends need to find each other without knowing descriptions is a crate of its own, `beeline-meeting`. Here
//! `lane` makes a description a lane; `listener`, `listening`, `door`, `lobby`, `arrivals`, `sleepers`, `accept`,
//! `accepting`, `readable`, `accept_lock`, `servers`, `admit`, `watched`, `untended` and `reset` are the server's part;
//! `connect`, `connecting`, `client`, `retry`, `bridged`, `offers` and `late` the client's, `counted` is what becomes
//! of both in a program that has left lanes. `retreat` and `release` give way where the program needs what is ours,
//! `sockets` are what is not connected yet, `owner` carries over who gets a connection's signals, `fork` is what all of
//! this does at one. `agent` is how both ends meet across network namespaces, `standing` how two that have met are
//! spared all that, `seats` how one of a crowd is.
//!
//! # Locks
//!
//! A change (`changing`) is under way while fds change their meaning: a client's of its one number, if no other leads
//! to the socket, from before it enters the door until the anchor has its place in the table; a server's of all. So a
//! `fork` copies no half-made connection. Then a listener's lock, then a description's, then the innermost ones of
//! `lookup` and `pool`. Nothing is waited for with any of them held: every call that is made then returns at once.

mod accept;
mod accept_lock;
mod accepting;
mod admit;
pub(crate) mod agent;
mod arrivals;
mod bridged;
mod client;
mod connect;
mod connecting;
mod counted;
mod door;
mod fork;
mod lane;
mod late;
mod listener;
mod listening;
mod lobby;
mod offers;
mod owner;
mod readable;
mod release;
mod reset;
mod retreat;
mod retry;
mod seats;
mod servers;
mod sleepers;
mod sockets;
mod standing;
mod untended;
mod watched;

// What knows no descriptions keeps its names here.
use beeline_meeting::{
    brief, claims, greeting, hello_io, lookup, pool, ports, reserve, route, strangers, taking, trust,
};

pub(crate) use accept::accept;
pub(crate) use connect::connect;
pub(crate) use counted::{accept4 as accept4_counted, connect as connect_counted};
pub(crate) use fork::{purge_pools, purge_pools_again, reset_after_fork, send_visitors_on};
pub use lane::begin_bare;
pub(crate) use lane::{adopt_lane, close_lane, spoil_lane};
pub(crate) use late::carry_options;
pub use late::{before_close, late_fallback};
pub(crate) use listening::{
    adopt_now, leave_door_if_blocked, leave_doors, leave_doors_of_group, listen, listens, note_reuse_of_port,
    reuses_port, shutdown_listener, stop_serving,
};
pub(crate) use lookup::{Holder, holder};
pub(crate) use offers::{before_end, before_fork, before_passing, changing_to_share};
pub(crate) use owner::carry_owner;
pub(crate) use release::with_room;
pub(crate) use retreat::{descriptor_limit_changes, from_all_doors as retreat_from_doors};
pub(crate) use sockets::{bind, socket};
pub use sockets::{getpeername, getsockname};
pub use trust::may_share;
pub(crate) use watched::{is_listener, pass_on};
