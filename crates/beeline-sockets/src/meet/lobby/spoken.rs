//! Who in a lobby has spoken, and takes its turn.

use super::{Lobby, PENDING_MAX, Pending, is_welcome, kept};
use crate::meet::hello_io::{self, Waiting};
use crate::meet::listener::Listener;
use crate::meet::pool::PooledLane;
use crate::meet::trust;
use crate::{Errno, kernel};

/// A client taken out of the lobby.
pub(in crate::meet) struct Spoken {
    /// Its anchor, under a number as accept(2) would give it.
    pub anchor: i32,
    /// The lane of one that says hello again.
    pub again: Option<&'static PooledLane>,
}

/// Takes a client out of the lobby that has spoken.
///
/// # Errors
/// `EMFILE`; the client stays.
pub(in crate::meet) fn spoken(listener: &Listener, flags: i32) -> Result<Option<Spoken>, Errno> {
    let _guard = listener.lock.lock();
    let lobby = &listener.lobby;
    let Some(first) = first_spoken(lobby) else { return Ok(None) };
    let hidden = match first {
        First::New(place) => place.anchor.get(),
        First::Again(end) => end.anchor(),
    };
    let Some(hidden) = hidden else { return Ok(None) };
    let command = if flags & libc::SOCK_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    let anchor = kernel::fcntl(hidden, command, 0)? as i32;
    let again = match first {
        First::New(place) => {
            lobby.drop_client(place);
            None
        }
        First::Again(end) => lobby.kept.take(end, lobby.set.get()),
    };
    let mode = if flags & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
    let _ = kernel::fcntl(anchor, libc::F_SETFL, mode as usize);
    Ok(Some(Spoken { anchor, again }))
}

/// Whether a client in the lobby has spoken.
pub(in crate::meet) fn any_spoken(listener: &Listener) -> bool {
    if !listener.lobby.may_speak() {
        return false;
    }
    let _guard = listener.lock.lock();
    first_spoken(&listener.lobby).is_some()
}

/// A client that has spoken.
enum First<'a> {
    New(&'a Pending),
    Again(&'a kept::End),
}

/// The first client that has spoken and may be served. Those that are gone, or that may not be served, go. The
/// caller holds the listener's lock.
fn first_spoken(lobby: &Lobby) -> Option<First<'_>> {
    let set = lobby.set.get()?;
    if !lobby.may_speak() {
        return None;
    }
    // Whoever has spoken is not hidden behind others who are gone.
    const ALL: usize = PENDING_MAX + kept::ENDS_MAX;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; ALL];
    // SAFETY: live events of the number given.
    let count = unsafe { kernel::epoll_now(set, events.as_mut_ptr(), ALL as i32) }.unwrap_or(0);
    for event in events.iter().take(count) {
        let hidden = event.u64 as i32;
        if let Some(end) = lobby.kept.of(hidden) {
            match end.look() {
                Waiting::Silence => {}
                Waiting::Message if is_welcome(Some(end.user())) => return Some(First::Again(end)),
                Waiting::Message | Waiting::Gone => lobby.kept.drop_end(end, Some(set)),
            }
            continue;
        }
        let Some(place) = lobby.places.iter().find(|place| place.anchor.get() == Some(hidden)) else { continue };
        match hello_io::look_closely(hidden) {
            Waiting::Silence => {}
            Waiting::Message if is_welcome(trust::peer_uid(hidden)) => return Some(First::New(place)),
            // As one does that does not trust the door.
            Waiting::Message | Waiting::Gone => lobby.drop_client(place),
        }
    }
    None
}
