//! Operations that make and end connections and descriptors.

use super::Calls;
use super::model::{End, Model, SETS, wait_until};
use crate::trace;
use crate::traced::*;
use beeline_testkit::sys;

/// Duplicates of one end at the same time.
const FDS_MAX: usize = 3;

impl Model {
    /// A new connection, accepted at once or left in the listener's queue.
    pub fn open_step(&mut self) {
        let from = self.rng.below(super::model::SLOTS);
        let count = self.slots.len();
        let Some(slot) = (from..from + count).map(|slot| slot % count).find(|slot| self.slots[*slot].is_free()) else {
            return self.all_step();
        };
        let at = self.rng.below(self.listeners.len());
        let (listener, variant) = (self.listeners[at].fd, self.listeners[at].variant);
        let name = self.name('c');
        let client = variant.named_client(name);
        let patient = self.rng.chance(2);
        if !patient {
            sys::set_nonblocking(client.raw, true);
        }
        if self.calls != Calls::Data && self.rng.chance(4) {
            let (set, events) = (self.sets[self.rng.below(SETS)], self.interest());
            epoll_add(set, client, events);
        }
        connect(client, &variant.address_of(listener));
        let queued = self.listeners[at].queue.len();
        self.slots[slot].ends = [End { fds: vec![client], ..End::default() }, End { pending: true, ..End::default() }];
        self.settle(slot);
        // The queue is in order only if the client has arrived in it.
        if queued == 0 && !wait_until(|| is_readable(listener)) {
            self.vain += 1;
        }
        sys::set_nonblocking(client.raw, true);
        // Or small segments would wait for delayed acknowledgements.
        sys::setsockopt(client.raw, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1_i32.to_ne_bytes());
        self.listeners[at].queue.push_back(slot);
        if self.rng.chance(3) {
            connect(client, &variant.address_of(listener));
        }
        if !self.rng.chance(3) {
            self.accept_from(at);
        }
    }

    pub fn accept_step(&mut self) {
        let at = self.rng.below(self.listeners.len());
        self.accept_from(at);
    }

    fn accept_from(&mut self, at: usize) {
        let name = self.name('s');
        let flags = *self.rng.pick(&[0, libc::SOCK_NONBLOCK, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC]);
        let server = accept4(self.listeners[at].fd, flags, name);
        if server.raw < 0 {
            return;
        }
        crate::trace::write_note(format_args!("pair"));
        fcntl(server, libc::F_GETFL, "F_GETFL", 0);
        sys::set_nonblocking(server.raw, true);
        sys::setsockopt(server.raw, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1_i32.to_ne_bytes());
        if let Some(slot) = self.listeners[at].queue.pop_front() {
            let end = self.end(slot, 1);
            end.pending = false;
            end.fds.push(server);
            self.settle(slot);
        }
    }

    pub fn close_step(&mut self, slot: usize, side: usize, fd: Fd) {
        self.end(slot, side).fds.retain(|other| other.raw != fd.raw);
        close(fd);
        if !self.end(slot, side).is_open() {
            self.closed(slot, side);
        }
    }

    pub fn dup_step(&mut self, slot: usize, side: usize, fd: Fd) {
        if self.end(slot, side).fds.len() >= FDS_MAX {
            return self.close_step(slot, side, fd);
        }
        let name = self.name(if side == 0 { 'c' } else { 's' });
        let twin = match self.rng.below(2) {
            0 => dup(fd, name),
            _ => {
                let ret = sys::fcntl(fd.raw, libc::F_DUPFD_CLOEXEC, 40);
                trace!("F_DUPFD_CLOEXEC({} -> {name}) = {}", fd.name, ret.is_ok());
                Fd::new(ret.value as i32, name)
            }
        };
        self.end(slot, side).fds.push(twin);
    }

    /// `dup2` or `dup3` of one descriptor over another: what lay there is closed.
    pub fn replace_step(&mut self, slot: usize, side: usize, fd: Fd) {
        let Some((other_slot, other_side, target)) = self.any_end() else { return };
        if target.raw == fd.raw {
            return;
        }
        let ret = match self.rng.below(2) {
            0 => sys::dup2(fd.raw, target.raw),
            _ => sys::dup3(fd.raw, target.raw, libc::O_CLOEXEC),
        };
        let name = self.name(if side == 0 { 'c' } else { 's' });
        trace!("dup2({} over {} -> {name}) = {}", fd.name, target.name, ret.is_ok());
        let end = self.end(other_slot, other_side);
        end.fds.retain(|other| other.raw != target.raw);
        let gone = !end.is_open();
        self.end(slot, side).fds.push(Fd::new(target.raw, name));
        if gone {
            self.closed(other_slot, other_side);
        }
    }

    /// A child that holds all connections does one thing with one of them, and ends.
    pub fn fork_step(&mut self, slot: usize, side: usize, fd: Fd) {
        if self.nested {
            return;
        }
        self.forked = true;
        let choice = self.rng.below(4);
        let (data, length) = (self.outgoing(slot, side), self.demand());
        let how = *self.rng.pick(&[libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR]);
        let (ret, [reader, writer]) = sys::pipe2(libc::O_CLOEXEC);
        assert!(ret.is_ok(), "pipe2: {ret}");
        let child = sys::fork(|| {
            let count = match choice {
                0 => send(fd, &data, libc::MSG_NOSIGNAL).size(),
                1 => recv(fd, length, 0).len(),
                2 => usize::from(shutdown(fd, how).is_ok()),
                _ => {
                    poll_now(fd);
                    0
                }
            };
            sys::write(writer, &count.to_ne_bytes());
            0
        });
        trace!("fork: {}", sys::wait_for(child));
        let mut told = [0; size_of::<usize>()];
        sys::read(reader, &mut told);
        sys::close(reader);
        sys::close(writer);
        match (choice, usize::from_ne_bytes(told)) {
            (0, count) => self.sent(slot, side, count),
            (1, count) => self.received(slot, side, count),
            (2, 1) => self.shut(slot, side, how),
            _ => {}
        }
    }
}

fn is_readable(fd: Fd) -> bool {
    let mut entry = [libc::pollfd { fd: fd.raw, events: libc::POLLIN, revents: 0 }];
    sys::poll(&mut entry, 0);
    entry[0].revents != 0
}
