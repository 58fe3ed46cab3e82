//! The operations.

use super::Calls;
use super::model::{Connection, End, Model, SETS, UNREAD_MAX};
use crate::trace;
use crate::traced::*;
use beeline_testkit::rng::fill_stream;
use beeline_testkit::sys::{self, Pieces};

const SIZES: [usize; 12] = [1, 2, 3, 7, 8, 16, 63, 64, 100, 1000, 1500, 4000];

impl Model {
    /// One random operation.
    pub fn step(&mut self, number: usize) {
        let open = self.open_ends();
        if open.is_empty()
            || (self.rng.chance(12) && self.slots.iter().any(|slot| !slot.ends[0].is_open() && !slot.ends[1].is_open()))
        {
            return self.open_connection();
        }
        let (slot, side) = *self.rng.pick(&open);
        let fd = self.any_fd(slot, side);
        match self.rng.below(100) {
            0..24 => self.send_step(slot, side, fd),
            24..46 => self.receive_step(slot, side, fd),
            46..49 => self.shut_step(slot, side, fd),
            49..52 => self.close_step(slot, side),
            52..55 => self.dup_step(slot, side, fd),
            55..63 => {
                poll_now(fd);
            }
            63..66 => {
                select(&[fd], &[fd], &[fd], 0);
            }
            66..88 if self.calls == Calls::Data => self.receive_step(slot, side, fd),
            66..76 => self.control_step(fd),
            76..88 => {
                let set = self.sets[self.rng.below(SETS)];
                epoll_wait(set, 64, 0);
            }
            88..91 => {
                fionread(fd);
            }
            91..94 => {
                so_error(fd);
            }
            94 => {
                trace!("getpeername({}) = {}", fd.name, sys::getpeername(fd.raw, 128).0);
            }
            95 => {
                trace!("getsockname({}) = {}", fd.name, sys::getsockname(fd.raw, 128).0);
            }
            96 => {
                set_linger(fd, 1, 0);
                self.slots[slot].ends[side].aborts = true;
            }
            97 => {
                fcntl(fd, libc::F_GETFL, "F_GETFL", 0);
            }
            98 => self.poll_all(),
            _ => self.replace_step(slot, side, fd),
        }
        if number % 16 == 15 {
            self.poll_all();
        }
    }

    fn open_connection(&mut self) {
        let Some(slot) = self.slots.iter().position(|slot| !slot.ends[0].is_open() && !slot.ends[1].is_open()) else {
            return;
        };
        let (client_name, server_name) = (self.name(0), self.name(1));
        let (client, server) = self.variant.blocking_pair_on(self.listener, client_name, server_name);
        for fd in [client, server] {
            sys::set_nonblocking(fd.raw, true);
            // Or small segments would wait for delayed acknowledgements.
            sys::setsockopt(fd.raw, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1_i32.to_ne_bytes());
        }
        trace!("open {client_name} {server_name}");
        let end = |fd| End { fds: vec![fd], ..End::default() };
        self.slots[slot] = Connection { ends: [end(client), end(server)] };
    }

    fn data(&mut self, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        fill_stream(77, self.position, &mut data);
        self.position += length as u64;
        data
    }

    fn send_step(&mut self, slot: usize, side: usize, fd: Fd) {
        let room = UNREAD_MAX.saturating_sub(self.slots[slot].ends[1 - side].unread);
        let length = match self.rng.below(20) {
            0 => 0,
            _ => (*self.rng.pick(&SIZES)).min(room),
        };
        let data = self.data(length);
        let cut = self.rng.below(length + 1);
        let ret = match self.rng.below(8) {
            0 => writev_quiet(fd, &data, cut),
            1 => sendmsg(fd, &[&data[..cut], b"", &data[cut..]], libc::MSG_NOSIGNAL),
            2 => send(fd, &data, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT),
            _ => send(fd, &data, libc::MSG_NOSIGNAL),
        };
        self.sent(slot, side, ret.size());
    }

    fn receive_step(&mut self, slot: usize, side: usize, fd: Fd) {
        let length = match self.rng.below(10) {
            0 => 0,
            1..4 => 20_000,
            _ => *self.rng.pick(&SIZES),
        };
        let cut = self.rng.below(length + 1);
        let count = match self.rng.below(12) {
            0 => readv(fd, &[cut as i64, 0, (length - cut) as i64]).size(),
            1 => recvmsg(fd, &[cut as i64, (length - cut) as i64], 0).size(),
            2 | 3 => {
                recv(fd, length, libc::MSG_PEEK);
                0
            }
            4 => recv(fd, length, libc::MSG_WAITALL).len(),
            5 => {
                let mut buffer = vec![0; length];
                let ret = sys::recv(fd.raw, &mut buffer, libc::MSG_TRUNC);
                trace!("recv({}, {length}, TRUNC) = {ret}", fd.name);
                ret.size()
            }
            6 | 7 => read(fd, length).len(),
            _ => recv(fd, length, 0).len(),
        };
        self.received(slot, side, count);
    }

    fn shut_step(&mut self, slot: usize, side: usize, fd: Fd) {
        let how = *self.rng.pick(&[libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_WR, libc::SHUT_RDWR]);
        if shutdown(fd, how).is_ok() {
            self.shut(slot, side, how);
        }
    }

    fn close_step(&mut self, slot: usize, side: usize) {
        let at = self.rng.below(self.slots[slot].ends[side].fds.len());
        let fd = self.slots[slot].ends[side].fds.remove(at);
        close(fd);
        if !self.slots[slot].ends[side].is_open() {
            self.closed(slot, side);
        }
    }

    fn dup_step(&mut self, slot: usize, side: usize, fd: Fd) {
        if self.slots[slot].ends[side].fds.len() >= 3 {
            return;
        }
        let name = self.name(side);
        let twin = dup(fd, name);
        self.slots[slot].ends[side].fds.push(twin);
    }

    /// `dup2` of one descriptor over another: what lay there is closed.
    fn replace_step(&mut self, slot: usize, side: usize, fd: Fd) {
        let open = self.open_ends();
        let (other_slot, other_side) = *self.rng.pick(&open);
        let target = self.any_fd(other_slot, other_side);
        if target.raw == fd.raw {
            return;
        }
        let ret = sys::dup2(fd.raw, target.raw);
        let name = self.name(side);
        trace!("dup2({} over {} -> {name}) = {}", fd.name, target.name, ret.is_ok());
        let end = &mut self.slots[other_slot].ends[other_side];
        end.fds.retain(|other| other.raw != target.raw);
        let gone = !end.is_open();
        self.slots[slot].ends[side].fds.push(Fd::new(target.raw, name));
        if gone {
            self.closed(other_slot, other_side);
        }
    }

    fn control_step(&mut self, fd: Fd) {
        let set = self.sets[self.rng.below(SETS)];
        let mut events = 0;
        for (bit, one_in) in [
            (libc::EPOLLIN, 1),
            (libc::EPOLLOUT, 2),
            (libc::EPOLLRDHUP, 2),
            (libc::EPOLLET, 2),
            (libc::EPOLLONESHOT, 6),
        ] {
            let told_at_once = bit == libc::EPOLLET || bit == libc::EPOLLONESHOT;
            if self.rng.chance(one_in) && (self.calls == Calls::All || !told_at_once) {
                events |= bit;
            }
        }
        match self.rng.below(10) {
            0..5 => epoll_add(set, fd, events),
            5..8 => epoll_mod(set, fd, events),
            _ => epoll_del(set, fd),
        };
    }

    fn poll_all(&mut self) {
        let all = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
        let fds: Vec<(Fd, i16)> = self
            .open_ends()
            .iter()
            .flat_map(|(slot, side)| self.slots[*slot].ends[*side].fds.iter().map(|fd| (*fd, all)))
            .collect();
        poll(&fds, 0);
    }
}

/// `writev` without SIGPIPE, which the process of a sequence ignores.
fn writev_quiet(fd: Fd, data: &[u8], cut: usize) -> sys::Ret {
    let pieces = Pieces::of_data(&[&data[..cut], &data[cut..]]);
    let ret = sys::writev(fd.raw, &pieces);
    trace!("writev({}, {}) = {ret}", fd.name, data.len());
    ret
}
