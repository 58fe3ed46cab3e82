//! Who watches descriptions without holding them: epoll sets, which layers below them do not know.
//!
//! `epoll` registers its part before it makes the first set. Without a set there is nobody to be told of anything.

use core::sync::atomic::Ordering::{Acquire, Release};

use crate::desc::Desc;
use crate::static_ref::StaticRef;
use crate::table;

/// What is told of a description and a number that leads, or led, to it.
pub struct Watchers {
    /// The number is about to be closed, or to lead elsewhere.
    pub forget: fn(i32, &'static Desc),
    /// Nothing leads to the description any more, and no set takes it in.
    pub forget_last: fn(i32, &'static Desc),
    /// The description's state has changed in a way that the kernel may not tell. No lock of the description may be
    /// held.
    pub notify: fn(i32, &'static Desc),
    /// A call sleeps on the description by itself from now on, or another process may.
    pub disturb: fn(i32, &'static Desc),
    /// The file under the number is about to be replaced.
    pub take_out: fn(i32, &'static Desc),
    /// It has been replaced, and the description is what it will be.
    pub put_back: fn(i32, &'static Desc),
}

static WATCHERS: StaticRef<Watchers> = StaticRef::none();

/// From now on these are told.
pub fn register(watchers: &'static Watchers) {
    WATCHERS.store(Some(watchers), Release);
}

fn all() -> Option<&'static Watchers> {
    WATCHERS.load(Acquire)
}

/// See [`Watchers::forget`].
pub(crate) fn forget(fd: i32, desc: &'static Desc) {
    if let Some(watchers) = all() {
        (watchers.forget)(fd, desc);
    }
}

/// See [`Watchers::forget_last`].
pub(crate) fn forget_last(fd: i32, desc: &'static Desc) {
    if let Some(watchers) = all() {
        (watchers.forget_last)(fd, desc);
    }
}

/// See [`Watchers::notify`].
pub fn notify(fd: i32, desc: &'static Desc) {
    if let Some(watchers) = all() {
        (watchers.notify)(fd, desc);
    }
}

/// See [`Watchers::disturb`]. No lock of the description may be held.
pub fn disturb(fd: i32, desc: &'static Desc) {
    if let Some(watchers) = all() {
        (watchers.disturb)(fd, desc);
    }
}

/// Runs `replace`, which puts another file under all numbers of `desc`, of which `fd` is one, while no epoll set has
/// the kernel watch the old one. What was watched is watched of the new one afterwards. The caller holds
/// `changing::changing`, or the change of its only number; no lock of the description may be held.
pub fn while_out<R>(fd: i32, desc: &'static Desc, replace: impl FnOnce() -> R) -> R {
    table::each_fd(fd, desc, |fd| take_out(fd, desc));
    let result = replace();
    table::each_fd(fd, desc, |fd| put_back(fd, desc));
    result
}

/// See [`Watchers::take_out`].
fn take_out(fd: i32, desc: &'static Desc) {
    if let Some(watchers) = all() {
        (watchers.take_out)(fd, desc);
    }
}

/// See [`Watchers::put_back`].
fn put_back(fd: i32, desc: &'static Desc) {
    if let Some(watchers) = all() {
        (watchers.put_back)(fd, desc);
    }
}
