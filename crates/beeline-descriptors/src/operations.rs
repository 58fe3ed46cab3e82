//! What the layers above do with a description: one table for each kind, as the kernel's `proto_ops`.
//!
//! A description leads to the table of what it became last ([`Desc::operations`]). A description knows neither
//! listeners nor epoll sets, nor how a lane is given back: that stands in the table, which the layer that makes such a
//! description stores with it.
//!
//! 1. The table is stored before the kind. It stays when a connection becomes TCP, or an orphan: what has to be given
//!    back at the end is still the lane's. So each operation looks for itself whether the description is of its kind,
//!    and a table that takes the place of a lane's has the same `retire`.
//! 2. Only cold paths come by here. Sends and receives know lanes, and are not called through a pointer.

use core::sync::atomic::Ordering::Relaxed;

use crate::desc::Desc;
use crate::static_ref::StaticRef;

/// Hidden descriptors whose readability means that of a listener: its door, and the set of clients that have not said
/// hello.
pub type FurtherFds = [Option<i32>; FURTHER_FDS];
/// How many a listener may have.
pub const FURTHER_FDS: usize = 2;

/// Whether a number that leads nowhere, and is about to be watched, turns out to be a listener that another program has
/// left to this one. Then it leads to a description.
pub type Adopt = fn(i32) -> bool;

/// How an attempt to begin again has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallback {
    /// The connection goes on over TCP.
    OverTcp,
    /// It goes on as it was: somebody has taken the hello, or will, or another thread is at it.
    Kept,
    /// It is lost.
    Lost,
}

/// See the module.
pub struct Operations {
    /// The last fd of this process that leads to the description is about to be closed. The caller holds
    /// `changing::changing`, or of a socket or a connection the change of that number.
    pub close: fn(&'static Desc),
    /// The last pin is gone of a description that a hidden number leads to, which no call needs any more. No lock may
    /// be held.
    pub end_lingering: fn(&'static Desc),
    /// Nothing of this process uses the lane any more, which is still mapped: it is given back.
    pub retire: fn(&'static Desc),
    /// The peer's end is closed, and nobody has taken the hello: the connection begins again over TCP, if it can. No
    /// lock may be held.
    pub begin_anew: fn(i32, &'static Desc) -> Fallback,
    /// A send looks whether there still is a peer: so may who knows of something that the anchor does not tell. No lock
    /// may be held.
    pub look_below: fn(&'static Desc),
    /// The app is going to wait for the description.
    pub before_watch: fn(&'static Desc),
    /// No set of this process is to have the description any more, whose last fd is about to be closed. No set may be
    /// locked.
    pub before_forget: fn(&'static Desc),
    /// The hidden descriptors whose readability means the description's own.
    pub further_fds: fn(&'static Desc) -> FurtherFds,
    /// Whether one of those, which the kernel calls readable, makes the description readable to the app.
    pub is_readable: fn(&'static Desc) -> bool,
    /// Whether they may make it readable, asked with a set locked: nothing changes that sets know of.
    pub may_be_readable: fn(&'static Desc) -> bool,
    /// Whether other processes may take what comes there.
    pub is_contended: fn(&'static Desc) -> bool,
}

impl Operations {
    /// Of a description that nobody has to be told of.
    pub const NONE: Operations = Operations {
        close: |_| {},
        end_lingering: |_| {},
        retire: |_| {},
        begin_anew: |_, _| Fallback::Lost,
        look_below: |_| {},
        before_watch: |_| {},
        before_forget: |_| {},
        further_fds: |_| [None; FURTHER_FDS],
        is_readable: |_| false,
        is_contended: |_| false,
        may_be_readable: |_| false,
    };
}

static NONE: Operations = Operations::NONE;

/// Where a description leads to its operations; to [`Operations::NONE`] when zeroed.
pub struct Table(StaticRef<Operations>);

impl Table {
    /// The operations.
    pub fn get(&self) -> &'static Operations {
        self.0.load(Relaxed).unwrap_or(&NONE)
    }

    /// Leads to `operations` from now on. Who sees the description's kind sees them, too: that is stored later.
    pub fn set(&self, operations: &'static Operations) {
        self.0.store(Some(operations), Relaxed);
    }
}
