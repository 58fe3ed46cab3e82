//! Who in a lobby has spoken, and takes its turn.

use beeline_shm::sys;

use super::kept::{self, Again};
use super::{Lobby, PENDING_MAX, Pending, is_welcome};
use crate::meet::hello_io::{self, Waiting};
use crate::meet::listener::Listener;
use crate::{Errno, kernel};

/// A client taken out of the lobby.
pub(in crate::meet) struct Spoken {
    /// Its anchor, under a number as accept(2) would give it.
    pub anchor: i32,
    /// What one has said that says hello again.
    pub again: Option<Again>,
}

/// Takes a client that says hello again, by the number that [`any_spoken`] has told, if nobody has taken it since.
///
/// # Errors
/// `EMFILE`; the client stays.
pub(in crate::meet) fn spoken_at(listener: &Listener, hidden: i32, flags: i32) -> Result<Option<Spoken>, Errno> {
    let _guard = listener.lock.lock();
    let lobby = &listener.lobby;
    let Some(end) = lobby.kept.of(hidden).filter(|end| !end.is_withdrawn()) else { return Ok(None) };
    // Another end may have got the number meanwhile, whose client is silent.
    take_if_said(lobby, end, hidden, flags)
}

/// Takes a client out of the lobby that has spoken. One that says hello again is heard as it is taken: whoever takes
/// over its end asks whether it may be served.
///
/// # Errors
/// `EMFILE`; the client stays.
pub(in crate::meet) fn spoken(listener: &Listener, flags: i32) -> Result<Option<Spoken>, Errno> {
    let unheard = |end: &kept::End| if end.is_withdrawn() { Waiting::Gone } else { Waiting::Message };
    let _guard = listener.lock.lock();
    let lobby = &listener.lobby;
    // One by one: to look at all of a crowd for each of them would take longer than to serve it.
    for _ in 0..=EVENTS_MAX {
        let taken = match first_spoken::<1>(lobby, unheard) {
            Look::Spoken(First::New(place)) => take_new(lobby, place, flags)?,
            Look::Spoken(First::Again(end)) => take_end(lobby, end, flags)?,
            Look::Others => None,
            Look::Nobody => break,
        };
        if taken.is_some() {
            return Ok(taken);
        }
    }
    Ok(None)
}

fn take_new(lobby: &Lobby, place: &Pending, flags: i32) -> Result<Option<Spoken>, Errno> {
    let Some(hidden) = place.anchor.get() else { return Ok(None) };
    let anchor = duplicate(hidden, flags)?;
    set_mode(anchor, flags, None);
    lobby.leave_place(place);
    Ok(Some(Spoken { anchor, again: None }))
}

fn take_end(lobby: &Lobby, end: &kept::End, flags: i32) -> Result<Option<Spoken>, Errno> {
    let Some(hidden) = end.anchor() else { return Ok(None) };
    let taken = take_if_said(lobby, end, hidden, flags)?;
    // A bell, mostly, of the connection before.
    if taken.is_none() && end.look() == Waiting::Gone {
        lobby.kept.drop_end(end, lobby.fd());
    }
    Ok(taken)
}

/// Takes a client that has said hello again. Where it has not, the end stays as it is, and so does its anchor's mode,
/// which the number shares.
fn take_if_said(lobby: &Lobby, end: &kept::End, hidden: i32, flags: i32) -> Result<Option<Spoken>, Errno> {
    let anchor = duplicate(hidden, flags)?;
    let is_nonblocking = end.is_nonblocking();
    let again = lobby.kept.take_if_said(end, lobby.fd());
    match again {
        Some(_) => set_mode(anchor, flags, is_nonblocking),
        None => {
            let _ = sys::close(anchor);
        }
    }
    Ok(again.map(|again| Spoken { anchor, again: Some(again) }))
}

/// A hidden anchor under a number as accept(2) would give it.
fn duplicate(hidden: i32, flags: i32) -> Result<i32, Errno> {
    kernel::duplicate(hidden, 0, flags & libc::SOCK_CLOEXEC != 0)
}

/// Gives an anchor the mode that accept(2) would give it. `is_nonblocking` is what is known of the one it has.
fn set_mode(anchor: i32, flags: i32, is_nonblocking: Option<bool>) {
    let wanted = flags & libc::SOCK_NONBLOCK != 0;
    if is_nonblocking != Some(wanted) {
        let _ = kernel::set_status_flags(anchor, if wanted { libc::O_NONBLOCK } else { 0 });
    }
}

/// Who in the lobby has spoken, if anybody has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::meet) enum Who {
    Nobody,
    New,
    /// One that says hello again, over the anchor of this hidden number.
    Again(i32),
}

/// Whether a client in the lobby has spoken, and which.
pub(in crate::meet) fn any_spoken(listener: &Listener) -> Who {
    if !listener.lobby.may_speak() {
        return Who::Nobody;
    }
    let _guard = listener.lock.lock();
    // All, or the order in which they came would change: the kernel puts behind the others whom it tells of.
    let heard = |end: &kept::End| match end.look() {
        Waiting::Message if !is_welcome(Some(end.user())) => Waiting::Gone,
        seen => seen,
    };
    match first_spoken::<EVENTS_MAX>(&listener.lobby, heard) {
        Look::Spoken(First::New(_)) => Who::New,
        Look::Spoken(First::Again(end)) => end.anchor().map_or(Who::Nobody, Who::Again),
        Look::Nobody | Look::Others => Who::Nobody,
    }
}

/// A client that has spoken.
enum First<'a> {
    New(&'a Pending),
    Again(&'a kept::End),
}

/// Members of the set.
const EVENTS_MAX: usize = PENDING_MAX + kept::ENDS_MAX;

/// What a look at some of those whom the kernel tells of has found.
enum Look<'a> {
    Spoken(First<'a>),
    /// The kernel tells of nobody.
    Nobody,
    /// Those looked at have nothing to say; there may be others.
    Others,
}

/// The first client that has spoken and may be served, among as many as `AT_ONCE`. Those that are gone, or that may not
/// be served, go. `look` tells that of ends that are kept. The caller holds the listener's lock.
fn first_spoken<const AT_ONCE: usize>(lobby: &Lobby, look: impl Fn(&kept::End) -> Waiting) -> Look<'_> {
    let Some(set) = lobby.fd().filter(|_| lobby.may_speak()) else { return Look::Nobody };
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; AT_ONCE];
    // SAFETY: live events of the number given.
    let count = unsafe { kernel::epoll_now(set, events.as_mut_ptr(), AT_ONCE as i32) }.unwrap_or(0);
    for event in events.iter().take(count) {
        let hidden = event.u64 as i32;
        if let Some(end) = lobby.kept.of(hidden) {
            match look(end) {
                Waiting::Silence => {}
                Waiting::Message => return Look::Spoken(First::Again(end)),
                Waiting::Gone => lobby.kept.drop_end(end, Some(set)),
            }
            continue;
        }
        let Some(place) = lobby.places.iter().find(|place| place.anchor.get() == Some(hidden)) else { continue };
        match hello_io::look_closely(hidden) {
            Waiting::Silence => {}
            Waiting::Message if is_welcome(place.user()) => return Look::Spoken(First::New(place)),
            // As one does that does not trust the door.
            Waiting::Message | Waiting::Gone => lobby.drop_client(place),
        }
    }
    if count == 0 { Look::Nobody } else { Look::Others }
}
