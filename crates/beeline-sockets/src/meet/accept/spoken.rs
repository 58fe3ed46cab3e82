//! Accepting those who wait in the lobby ([`super::super::lobby`]) and have spoken.

use core::sync::atomic::Ordering::Relaxed;

use super::{LOBBY_RUN, refuse};
use crate::meet::accepting::Accepting;
use crate::meet::admit::{take, take_again};
use crate::meet::hello_io::Refusal;
use crate::meet::lobby::{self, Again, send_away};
use crate::meet::seats;
use crate::wait::peers_are_near;
use crate::{Errno, changing, kernel};

/// Takes a client that one of a crowd has put aside, and that has spoken: nobody else finds it.
pub(super) fn put_aside(call: &mut Accepting) -> Result<Option<i32>, Errno> {
    match call.listener.lobby.is_occupied() && call.listener.is_shared() {
        true => from_lobby(call),
        false => Ok(None),
    }
}

/// Takes a client that says hello again, and that the app was told of: all queues were looked at then.
pub(super) fn told_of(call: &mut Accepting) -> Result<Option<i32>, Errno> {
    let listener = call.listener;
    // Looked at before, as most accepts find none.
    let told = listener.spoken.get().and_then(|_| listener.spoken.take());
    let Some(hidden) = told.filter(|_| listener.from_lobby.load(Relaxed) < LOBBY_RUN) else { return Ok(None) };
    let accepted = from_end(call, hidden)?;
    if accepted.is_some() {
        listener.from_lobby.fetch_add(1, Relaxed);
    }
    Ok(accepted)
}

/// Takes the client that has claimed this process, over an end whose anchor has this hidden number; or gives the end
/// up, if the client has not said hello yet and no other thread waits for it.
pub(super) fn claimed_by(call: &mut Accepting, hidden: i32) -> Result<Option<i32>, Errno> {
    /// A client that runs says hello within some microseconds of its claim.
    const LOOKS: usize = 16;
    let has_spoken = || kernel::poll_now(hidden, libc::POLLIN) != 0;
    if !has_spoken() && !peers_are_near() {
        let _ = (0..LOOKS).any(|_| has_spoken());
    }
    let accepted = from_end(call, hidden)?;
    if accepted.is_none() {
        seats::give_up(call.listener, hidden);
    }
    Ok(accepted)
}

/// Takes the client that says hello again over the end whose anchor has this hidden number.
fn from_end(call: &mut Accepting, hidden: i32) -> Result<Option<i32>, Errno> {
    let (anchor, taken) = {
        let _changing = changing::changing();
        let Some(lobby::Spoken { anchor, again }) = lobby::spoken_at(call.listener, hidden, call.flags)? else {
            return Ok(None);
        };
        (anchor, take_spoken(call, anchor, again))
    };
    took_spoken(call, anchor, taken)
}

/// Takes one of the clients that were silent when they came and have spoken since.
pub(super) fn from_lobby(call: &mut Accepting) -> Result<Option<i32>, Errno> {
    loop {
        let (anchor, taken) = {
            let _changing = changing::changing();
            let Some(lobby::Spoken { anchor, again }) = lobby::spoken(call.listener, call.flags)? else {
                note_owed(call);
                return Ok(None);
            };
            (anchor, take_spoken(call, anchor, again))
        };
        if let Some(accepted) = took_spoken(call, anchor, taken)? {
            return Ok(Some(accepted));
        }
    }
}

/// Makes a connection of a client out of the lobby. The caller holds `changing::changing`.
fn take_spoken(call: &mut Accepting, anchor: i32, again: Option<Again>) -> Result<(), Refusal> {
    match again {
        Some(again) => take_again(call, anchor, again),
        None => take(call, anchor),
    }
}

/// What the app gets for such a client; nothing for one that was sent away. If the app was told of that one, on a
/// listener that blocks, it is owed the connection that the client begins over TCP instead.
fn took_spoken(call: &mut Accepting, anchor: i32, taken: Result<(), Refusal>) -> Result<Option<i32>, Errno> {
    match taken {
        Ok(()) => {
            call.listener.told.store(0, Relaxed);
            Ok(Some(anchor))
        }
        Err(refusal @ Refusal::Poison(_)) => {
            call.listener.told.store(0, Relaxed);
            refuse(call, anchor, refusal).map(Some)
        }
        Err(refusal) => {
            send_away(anchor, refusal);
            note_owed(call);
            Ok(None)
        }
    }
}

/// The client that the app was told of, if it was, has just taken its hello back, or is told to.
fn note_owed(call: &mut Accepting) {
    /// A client that runs takes some ten microseconds for it.
    const OWED_NS: u64 = 100_000_000;
    let told = &call.listener.told;
    if told.load(Relaxed) != 0 && told.swap(0, Relaxed) != 0 {
        call.owed_until_ns = kernel::now_ns().saturating_add(OWED_NS);
    }
}
