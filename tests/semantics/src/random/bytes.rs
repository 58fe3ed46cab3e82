//! Operations that move bytes.

use super::model::{Model, UNREAD_MAX};
use crate::trace;
use crate::traced::*;
use beeline_testkit::rng::fill_stream;
use beeline_testkit::sys::{self, Pieces};

const SIZES: [usize; 12] = [1, 2, 3, 7, 8, 16, 63, 64, 100, 1000, 1500, 4000];

/// An address that no program has mapped.
const NOWHERE: usize = 0x10;

impl Model {
    /// The next `length` bytes of the stream that all sends take theirs from.
    pub fn data(&mut self, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        fill_stream(77, self.position, &mut data);
        self.position += length as u64;
        data
    }

    /// Data for a send on this end.
    pub fn outgoing(&mut self, slot: usize, side: usize) -> Vec<u8> {
        let room = UNREAD_MAX.saturating_sub(self.slots[slot].ends[1 - side].unread);
        let length = match self.rng.below(20) {
            0 => 0,
            _ => (*self.rng.pick(&SIZES)).min(room),
        };
        self.data(length)
    }

    /// How many bytes a receive asks for.
    pub fn demand(&mut self) -> usize {
        match self.rng.below(10) {
            0 => 0,
            1..4 => 20_000,
            _ => *self.rng.pick(&SIZES),
        }
    }

    pub fn send_step(&mut self, slot: usize, side: usize, fd: Fd) {
        let data = self.outgoing(slot, side);
        let cut = self.rng.below(data.len() + 1);
        let (front, back) = data.split_at(cut);
        let ret = match self.rng.below(16) {
            0 => {
                let ret = sys::writev(fd.raw, &Pieces::of_data(&[front, back]));
                trace!("writev({}, {}) = {ret}", fd.name, data.len());
                ret
            }
            1 => sendmsg(fd, &[front, b"", back], libc::MSG_NOSIGNAL),
            2 => send(fd, &data, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT),
            3 => return self.send_messages(slot, side, fd, front, back),
            4 => {
                trace!("send({}, nowhere) = {}", fd.name, sys::send_at(fd.raw, NOWHERE, 5, libc::MSG_NOSIGNAL));
                return;
            }
            5 => write(fd, &data),
            8 if !data.is_empty() && self.slots[slot].ends[1 - side].takes_urgent_data() => {
                self.end(slot, 1 - side).urgent = true;
                send(fd, &data, libc::MSG_OOB | libc::MSG_NOSIGNAL)
            }
            6 => {
                let file = sys::file_with(&data);
                let ret = sys::sendfile(fd.raw, file, None, data.len());
                trace!("sendfile({}, {}) = {ret}", fd.name, data.len());
                sys::close(file);
                ret
            }
            7 => {
                let (_, [reader, writer]) = sys::pipe2(libc::O_CLOEXEC);
                sys::write(writer, &data);
                let ret = sys::splice(reader, None, fd.raw, None, data.len(), libc::SPLICE_F_NONBLOCK);
                trace!("splice({} bytes to {}) = {ret}", data.len(), fd.name);
                sys::close(reader);
                sys::close(writer);
                ret
            }
            9 | 10 => {
                let ret = send(fd, &data, libc::MSG_NOSIGNAL | libc::MSG_ZEROCOPY);
                self.sent(slot, side, ret.size());
                return self.await_complete(slot, side, fd, ret.size());
            }
            _ => send(fd, &data, libc::MSG_NOSIGNAL),
        };
        self.sent(slot, side, ret.size());
    }

    fn send_messages(&mut self, slot: usize, side: usize, fd: Fd, front: &[u8], back: &[u8]) {
        let mut messages = [Pieces::of_data(&[front]), Pieces::of_data(&[back])];
        let (ret, lengths) = sys::sendmmsg(fd.raw, &mut messages, libc::MSG_NOSIGNAL);
        let count: u32 = lengths.iter().take(ret.size()).sum();
        trace!("sendmmsg({}, {} {}) = {ret} {count}", fd.name, front.len(), back.len());
        self.sent(slot, side, count as usize);
    }

    fn receive_with_room(&self, fd: Fd, length: usize, room: usize, flags: i32) -> usize {
        let (ret, got) = sys::recvmsg_with_room(fd.raw, length, room, flags);
        let told = match ret.is_ok() {
            true => format!("{} flags={} {:?}", shown(&got.data), sys::message_flags_name(got.flags), got.control),
            false => String::new(),
        };
        let flags = sys::message_flags_name(flags);
        trace!("recvmsg({}, {length}, {room}, {flags}) = {ret} {told}", fd.name);
        ret.size()
    }

    pub fn receive_step(&mut self, slot: usize, side: usize, fd: Fd) {
        let length = self.demand();
        let cut = self.rng.below(length + 1);
        let lengths = [cut as i64, (length - cut) as i64];
        let count = match self.rng.below(26) {
            0 => readv(fd, &[lengths[0], 0, lengths[1]]).size(),
            1 => recvmsg(fd, &lengths, 0).size(),
            2 | 3 => {
                let more = *self.rng.pick(&[0, 0, libc::MSG_TRUNC, libc::MSG_WAITALL, libc::MSG_DONTWAIT]);
                recv(fd, length, libc::MSG_PEEK | more);
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
            8 => {
                let mut messages = [Pieces::of_lengths(&lengths[..1]), Pieces::of_lengths(&lengths[1..])];
                let (ret, lengths) = sys::recvmmsg(fd.raw, &mut messages, 0, -1);
                let lengths = &lengths[..ret.size()];
                trace!("recvmmsg({}, {cut} {}) = {ret} {lengths:?}", fd.name, length - cut);
                lengths.iter().sum::<u32>() as usize
            }
            9 => {
                let mut buffer = vec![0; length];
                let (ret, address) = sys::recvfrom(fd.raw, &mut buffer, libc::MSG_DONTWAIT);
                trace!("recvfrom({}, {length}) = {ret} {} address {address}", fd.name, shown(&buffer[..ret.size()]));
                ret.size()
            }
            // Half of what passing an urgent byte does happens before the kernel finds that it has nowhere to go on to.
            10 if !self.slots[slot].ends[side].urgent => {
                trace!("recv({}, nowhere) = {}", fd.name, sys::recv_at(fd.raw, NOWHERE, 5, libc::MSG_DONTWAIT));
                0
            }
            22 | 23 => {
                let room = *self.rng.pick(&[0, 8, 16, 18, 20, 24, 64]);
                self.receive_with_room(fd, length, room, *[0, libc::MSG_DONTWAIT].get(cut % 2).unwrap_or(&0))
            }
            24 | 25 => {
                let room = *self.rng.pick(&[0, 8, 16, 40, 48, 64, 200]);
                self.receive_with_room(fd, length, room, libc::MSG_ERRQUEUE)
            }
            13 | 14 => {
                let flags = *self.rng.pick(&[0, 0, libc::MSG_PEEK, libc::MSG_DONTWAIT]);
                let taken = recv(fd, length.min(2), libc::MSG_OOB | flags).len();
                if flags & libc::MSG_PEEK == 0 { taken } else { 0 }
            }
            // On kernel TCP an urgent byte ends a splice even where it is in line.
            12 if !self.slots[slot].ends[side].urgent => {
                let (_, [reader, writer]) = sys::pipe2(libc::O_CLOEXEC);
                // A pipe holds sixteen segments, however short: so few bytes always fit.
                let length = length.min(16);
                let ret = sys::splice(fd.raw, None, writer, None, length, libc::SPLICE_F_NONBLOCK);
                let mut data = vec![0; ret.size()];
                sys::read(reader, &mut data);
                trace!("splice({} to pipe, {length}) = {ret} {}", fd.name, shown(&data));
                sys::close(reader);
                sys::close(writer);
                ret.size()
            }
            11 if self.has_news(slot, side) => {
                sys::set_nonblocking(fd.raw, false);
                let count = recv(fd, length, 0).len();
                sys::set_nonblocking(fd.raw, true);
                count
            }
            _ => recv(fd, length, 0).len(),
        };
        self.received(slot, side, count);
    }
}
