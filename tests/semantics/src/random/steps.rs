//! Which operation comes next.

use super::Calls;
use super::model::Model;
use crate::trace;
use crate::traced::*;
use beeline_testkit::sys;

/// asm-generic/sockios.h.
const SIOCATMARK: u64 = 0x8905;
/// linux/tcp.h.
const TCP_INQ: i32 = 36;

impl Model {
    /// The random operation with this number.
    pub fn step(&mut self, number: usize) {
        self.begin(number);
        match self.rng.below(100) {
            0..7 => self.open_step(),
            7..10 => self.accept_step(),
            10..14 => self.all_step(),
            14..26 if self.calls != Calls::Data => self.wait_step(),
            26..28 if self.calls != Calls::Data => self.sets_step(),
            choice => match self.any_end() {
                Some((slot, side, fd)) => self.end_step(choice, slot, side, fd),
                None => self.open_step(),
            },
        }
    }

    /// An operation on one descriptor.
    fn end_step(&mut self, choice: usize, slot: usize, side: usize, fd: Fd) {
        match choice {
            ..38 => self.control_step(fd),
            38..56 => self.send_step(slot, side, fd),
            56..74 => self.receive_step(slot, side, fd),
            74..78 => self.shut_step(slot, side, fd),
            78..81 => self.close_step(slot, side, fd),
            81..84 => self.dup_step(slot, side, fd),
            84 => self.replace_step(slot, side, fd),
            85..91 => self.look_step(fd),
            91..97 => self.ask_step(fd),
            97 | 98 => self.option_step(slot, side, fd),
            _ => self.fork_step(slot, side, fd),
        }
    }

    fn shut_step(&mut self, slot: usize, side: usize, fd: Fd) {
        let how = *self.rng.pick(&[libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_WR, libc::SHUT_RDWR]);
        if shutdown(fd, how).is_ok() {
            self.shut(slot, side, how);
        }
    }

    /// What a connection can be asked.
    fn ask_step(&mut self, fd: Fd) {
        match self.rng.below(9) {
            0 | 1 => {
                fionread(fd);
            }
            2 => {
                so_error(fd);
            }
            3 => trace!("getpeername({}) = {}", fd.name, sys::getpeername(fd.raw, 128).0),
            4 => trace!("getsockname({}) = {}", fd.name, sys::getsockname(fd.raw, 128).0),
            7 => {
                let mut at = -1;
                let ret = sys::ioctl(fd.raw, SIOCATMARK, &mut at);
                trace!("SIOCATMARK({}) = {ret} {at}", fd.name);
            }
            5 => trace!("tcpi_state({}) = {}", fd.name, tcp_state(fd)),
            6 => {
                option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT");
            }
            _ => {
                fcntl(fd, libc::F_GETFL, "F_GETFL", 0);
            }
        }
    }

    fn option_step(&mut self, slot: usize, side: usize, fd: Fd) {
        match self.rng.below(7) {
            0 => {
                let (on, seconds) = *self.rng.pick(&[(1, 0), (0, 0), (1, 2)]);
                if set_linger(fd, on, seconds).is_ok() {
                    self.end(slot, side).aborts = (on, seconds) == (1, 0);
                }
            }
            1 => {
                let bytes = *self.rng.pick(&[0, 1, 1, 2, 8, 100, 2000]);
                if set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT", bytes).is_ok() {
                    self.end(slot, side).low_water = bytes > 1;
                }
            }
            2 => {
                let inline = i32::from(self.rng.chance(2));
                set_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE", inline);
                let mut at_mark = 0;
                sys::ioctl(fd.raw, SIOCATMARK, &mut at_mark);
                if inline == 1 && at_mark == 1 {
                    // It can be read now, which the kernel's level-triggered sets are not told by that
                    // (`urgent/inline_at_the_mark_by_epoll`). By this they are.
                    let bytes = option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT");
                    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT", bytes);
                }
            }
            3 | 4 => {
                let on = i32::from(!self.rng.chance(4));
                set_option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, "SO_ZEROCOPY", on);
            }
            5 => {
                let on = i32::from(!self.rng.chance(4));
                set_option(fd, libc::IPPROTO_TCP, TCP_INQ, "TCP_INQ", on);
            }
            _ => {
                // Both ways of changing the mode, and back.
                let mut on = 0;
                let ret = sys::ioctl(fd.raw, libc::FIONBIO, &mut on);
                trace!("FIONBIO({}, 0) = {ret}", fd.name);
                let flags = fcntl(fd, libc::F_GETFL, "F_GETFL", 0);
                fcntl(fd, libc::F_SETFL, "F_SETFL", flags.value as i32 | libc::O_NONBLOCK);
            }
        }
    }
}
