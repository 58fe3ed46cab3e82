//! Whether a listener is readable: what its hidden descriptors mean to the app.

use core::sync::atomic::Ordering::Relaxed;

use super::accept::{CLIENTS_MAX, next};
use super::hello_io::{self, Refusal, Waiting};
use super::listener::Listener;
use super::lobby::{self, Who, send_away};
use super::{retreat, trust, watched};
use crate::desc::Desc;
use crate::kernel::SockAddr;
use crate::{Errno, changing, kernel};

/// Whether the listener has a client at its door, after the kernel has called one of its hidden descriptors readable.
///
/// A non-blocking `accept` waits a moment for the hello itself, and a client that stays silent costs the app one
/// `EAGAIN`; taking clients from the door here would cost each connection some ten system calls. A blocking `accept`
/// would sleep on, so a listener that blocks is only called ready when a client has spoken. Where TCP's queue alone had
/// somebody, that is looked at before, as to take nobody from a door costs more.
#[must_use]
pub fn door_ready(desc: &'static Desc) -> bool {
    let Some(listener) = Listener::of(desc) else { return false };
    if watched::leaves_it(desc, listener) {
        return false;
    }
    let fd = desc.fd.load(Relaxed);
    let blocks = kernel::is_blocking(fd);
    let ready = match blocks {
        true => {
            let spoken = has_spoken(listener);
            if !spoken && listener.tcp_run.load(Relaxed) != 0 && kernel::poll_now(fd, libc::POLLIN) != 0 {
                watched::note_told(listener);
                return true;
            }
            spoken || let_in(desc, listener)
        }
        false => may_have_client(listener),
    };
    if ready {
        watched::note_told(listener);
        if blocks {
            listener.told.store(1, Relaxed);
        }
    }
    ready
}

/// Whether the listener may have one, for who must not let any in.
#[must_use]
pub fn door_may_be_ready(desc: &'static Desc) -> bool {
    Listener::of(desc).is_some_and(may_have_client)
}

/// Whether the door or the lobby of a listener that does not block has a client, who may not have spoken yet. What made
/// the lobby readable may be no client, but the end of one that was kept, or a bell that one has left.
fn may_have_client(listener: &Listener) -> bool {
    let lobby = &listener.lobby;
    !lobby.keeps_any()
        || lobby.is_occupied()
        || has_spoken(listener)
        || listener.door.get().is_some_and(|door| kernel::poll_now(door, libc::POLLIN) != 0)
}

/// Whether a client in the lobby has spoken. Whoever accepts takes one first that has said hello again.
fn has_spoken(listener: &Listener) -> bool {
    let who = lobby::any_spoken(listener);
    if let Who::Again(hidden) = who {
        listener.spoken.set(Some(hidden));
    }
    who != Who::Nobody
}

/// Lets clients into the lobby until there is one that has spoken.
fn let_in(desc: &'static Desc, listener: &'static Listener) -> bool {
    for _ in 0..CLIENTS_MAX {
        let (came, forks) = {
            let _changing = changing::changing();
            if !listener.is_of(desc) {
                return false;
            }
            // Whoever takes it asks for its name.
            let mut name = SockAddr::empty();
            (next(listener, &mut name, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK), crate::forks())
        };
        let anchor = match came {
            Ok(Some(anchor)) => anchor,
            Err(Errno(libc::EINVAL)) => {
                watched::give_up(desc, listener);
                return false;
            }
            // Waiting would not help: `accept` tells.
            Err(_) => return true,
            Ok(None) => {
                retreat::if_empty(desc, listener);
                return false;
            }
        };
        let user = trust::peer_uid(anchor);
        let waiting = match hello_io::look_closely(anchor) {
            Waiting::Silence if !lobby::is_welcome(user) => Waiting::Gone,
            Waiting::Silence if lobby::await_hello(desc, listener, anchor, user) => hello_io::look_closely(anchor),
            waiting => waiting,
        };
        match waiting {
            Waiting::Silence if listener.is_shared() => send_away(anchor, Refusal::Gone),
            Waiting::Gone => send_away(anchor, Refusal::Gone),
            Waiting::Silence | Waiting::Message => {
                let _changing = changing::changing();
                let is_there = listener.is_of(desc);
                // A child that was forked meanwhile has the anchor, too, and knows nothing of it.
                if !is_there || crate::forks() != forks {
                    send_away(anchor, Refusal::Gone);
                    if is_there { continue } else { return false }
                }
                let _guard = listener.lock.lock();
                if waiting == Waiting::Silence {
                    let _ = lobby::park(listener, anchor, user);
                } else if lobby::park_spoken(listener, anchor, user) {
                    return true;
                }
            }
        }
    }
    false
}
