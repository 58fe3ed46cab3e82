//! libfabric for the bridge: connected endpoints, messages, remote reads and writes, on any fabric it drives.
//!
//! [`ports`] finds the fabric ports of this host, [`Rail::open`] opens one. A rail has one listener, any number of
//! endpoints, memory regions, one event queue (connections) and one completion queue (operations), each with an fd to
//! sleep on. The same code runs on `verbs` (InfiniBand, RoCE, iWARP) and on `tcp` (any network).
//!
//! # Rules
//!
//! 1. **One event loop drives a rail.** Every call that reaches libfabric takes `&mut Rail` (`FI_THREAD_DOMAIN`).
//!    Nothing here starts a thread or blocks.
//! 2. **Sleeping**: poll both queues until they give nothing, then ask [`Rail::may_sleep`]; only after a yes wait
//!    for the two fds. After the fds rang, poll both: some providers (`tcp`) only move when they are polled.
//! 3. **Buffers in flight are the provider's.** A receive buffer is posted, or in one [`Message`], never both; a
//!    message that is not recycled is one receive less. A send is copied into a buffer of the endpoint (or into the
//!    provider, when it is short) before the call returns. Part of a region that an operation uses is not protected
//!    from other writers: it is memory that others write, and reads as such. A message for which no buffer is posted
//!    waits, but over iWARP it ends the connection: who sends must know how many there are.
//! 4. **Every operation that was taken completes once**, in order among the operations of one endpoint that go the same
//!    way. [`Posted::Full`] is not an error: nothing happened, poll and post again.
//! 5. **Order**: on one endpoint a message is received after all writes that were posted before it have been placed
//!    in the receiver's memory (`FI_ORDER_SAW`; ports without it are not listed), and messages arrive in order.
//!    Nothing is promised of the order within a write, so nobody may poll written memory for the end of it.
//! 6. **When an endpoint goes down** ([`Event::Down`], once) nothing more can be posted on it, its operations complete
//!    as failed, and messages that came before can still be polled. It stays until [`Rail::close`], which gives up what
//!    is left in flight. Close it soon: where hardware found the fault, only then does the peer hear of it. After
//!    `close` the provider touches no memory for that endpoint, and no write of its peer can land.
//! 7. **A region's memory is freed by us, not by its owner**: the rail holds it by `Arc`. [`Rail::close_region`]
//!    takes the key away, after which a peer that still uses it loses its connection;
//!    [`Event::RegionClosed`] says that nothing can touch the memory any more, late writes included.
//! 8. Where libfabric refuses to close an object, the memory that it may still use is leaked, and the error told.
//! 9. The registration cache of libfabric is switched off: it would keep closed regions open to the peer, and patch
//!    libc (`shim.c`).
//!
//! All `unsafe` is at two edges: `handles` (calls of C) and `memory` (bytes that others change), and where `rail`
//! promises the first that the second stays.

mod address;
mod discover;
mod error;
mod ffi;
mod handles;
mod memory;
mod rail;
mod sysfs;

pub use discover::{Filter, PROVIDERS, Port, ports};
pub use error::{Error, Failure};
pub use handles::Posted;
pub use memory::{Mapping, Memory};
pub use rail::{
    Access, Completion, Down, EndpointId, Event, Flags, Kind, Message, Options, PRIVATE_DATA_BYTES_MAX, Rail, RegionId,
    Remote, Request, Slice,
};
pub use sysfs::PciAddress;
