//! The bridge's door: open, left alone for a moment, or shut because clients are hostile.
//!
//! To close what a hostile client has sent takes a process of its own, and any user of the host may knock. Who does so
//! again and again has the door shut, for longer each time ([`bridge::has_hostile_clients`]): nobody is let in, those
//! that have come and not been served are sent away, and all go by TCP. The door keeps its name meanwhile. Before each
//! client is let in or heard that is asked, and those that leave together are closed together.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use beeline_meeting::bridge;
use nix::sys::epoll::EpollFlags;

use super::{Engine, Tag};
use crate::log;

impl Engine {
    /// Lets nobody in.
    pub(super) fn shut_door(&mut self) {
        let Some(door) = self.door.open() else { return };
        log::line("clients are hostile (docs/threat-model.md): the door is shut for a while");
        self.unwatch(door);
        let door = door.as_raw_fd();
        (self.door.is_shut, self.door.rests) = (true, false);
        let silent: Vec<RawFd> = self.silent.drain().map(|(fd, _)| fd).collect();
        silent.iter().for_each(|fd| self.unwatch_silent(*fd));
        bridge::shut(door, silent);
    }

    /// Leaves the door alone until the next care.
    pub(super) fn rest_door(&mut self) {
        if let Some(door) = self.door.open() {
            self.unwatch(door);
        }
        self.door.rests = true;
    }

    /// Watches the door again, or opens it anew if that is due.
    pub(super) fn care_for_door(&mut self, hostile: bool) {
        if self.door.is_shut && !hostile {
            // A socket that was shut down stays so, and two cannot have the name.
            self.door.socket = None;
            let Ok(door) = bridge::listen_for_clients() else { return };
            // SAFETY: nobody else owns it.
            self.door.socket = Some(unsafe { OwnedFd::from_raw_fd(door.give_away()) });
            (self.door.is_shut, self.door.rests) = (false, true);
            log::line("the door is open again");
        }
        if self.door.rests
            && let Some(door) = self.door.open()
        {
            self.door.rests = self.watch(door, EpollFlags::EPOLLIN, Tag::Door).is_err();
        }
    }
}
