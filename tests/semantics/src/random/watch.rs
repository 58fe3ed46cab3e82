//! Operations that ask what is ready.

use super::Calls;
use super::model::{Model, SETS};
use crate::traced::*;

const POLL_BITS: [i16; 6] =
    [libc::POLLIN, libc::POLLOUT, libc::POLLPRI, libc::POLLRDHUP, libc::POLLRDNORM, libc::POLLWRNORM];

impl Model {
    fn any_set(&mut self) -> Fd {
        self.sets[self.rng.below(SETS)]
    }

    /// One descriptor by `poll` or `select`.
    pub fn look_step(&mut self, fd: Fd) {
        match self.rng.below(6) {
            0 | 1 => {
                poll_now(fd);
            }
            2 => {
                let mut events = 0;
                for bit in POLL_BITS {
                    events |= if self.rng.chance(2) { bit } else { 0 };
                }
                poll(&[(fd, events)], 0);
            }
            3 => {
                ppoll(&[(fd, libc::POLLIN | libc::POLLOUT)], 0, None);
            }
            4 => {
                select(&[fd], &[fd], &[fd], 0);
            }
            _ => {
                let all = [fd];
                let mut part = || if self.rng.chance(2) { &all[..] } else { &[] };
                let (read, write, except) = (part(), part(), part());
                pselect(read, write, except, 0, None);
            }
        }
    }

    /// All connections and listeners in one call.
    pub fn all_step(&mut self) {
        let ends = self.open_ends();
        let ends = ends.iter().flat_map(|(slot, side)| &self.slots[*slot].ends[*side].fds);
        let mut fds: Vec<Fd> = ends.copied().collect();
        fds.extend(self.listeners.iter().map(|listener| listener.fd));
        if self.rng.chance(4) {
            select(&fds, &fds, &fds, 0);
        } else {
            let all = libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP;
            let fds: Vec<(Fd, i16)> = fds.into_iter().map(|fd| (fd, all)).collect();
            poll(&fds, 0);
        }
    }

    pub fn wait_step(&mut self) {
        let set = self.any_set();
        epoll_wait(set, 64, 0);
    }

    /// The sets themselves: as something to wait for, and their members that are listeners.
    pub fn sets_step(&mut self) {
        let set = self.any_set();
        match self.rng.below(5) {
            // After a fork, members may be another process's, and only the kernel's word about all of them is left.
            0 | 1 | 3 if self.forked => {}
            0 => {
                let fds: Vec<(Fd, i16)> = self.sets.iter().map(|set| (*set, libc::POLLIN | libc::POLLOUT)).collect();
                poll(&fds, 0);
            }
            1 => {
                select(&self.sets, &[], &[], 0);
            }
            2 => {
                let at = self.rng.below(self.listeners.len());
                let fd = self.listeners[at].fd;
                match self.rng.below(3) {
                    0 => epoll_del(set, fd),
                    // An edge of a listener may be told twice, by its queue and by its door.
                    _ => epoll_add(set, fd, libc::EPOLLIN),
                };
            }
            3 => {
                let inner = self.any_set();
                self.nested = true;
                match self.rng.below(3) {
                    0 => epoll_del(set, inner),
                    _ => epoll_add(set, inner, libc::EPOLLIN),
                };
            }
            _ => {
                let at = self.rng.below(SETS);
                close(self.sets[at]);
                self.sets[at] = epoll_create(self.sets[at].name);
            }
        }
    }

    /// A member of a set comes, changes or goes.
    pub fn control_step(&mut self, fd: Fd) {
        if self.calls == Calls::Data {
            return self.look_step(fd);
        }
        let set = self.any_set();
        let events = self.interest();
        match self.rng.below(10) {
            0..5 if self.calls == Calls::All && self.rng.chance(8) => {
                let allowed = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
                epoll_add(set, fd, events & allowed | libc::EPOLLEXCLUSIVE)
            }
            0..5 => epoll_add(set, fd, events),
            5..8 => epoll_mod(set, fd, events),
            _ => epoll_del(set, fd),
        };
    }

    pub fn interest(&mut self) -> i32 {
        let mut events = 0;
        for (bit, one_in) in [
            (libc::EPOLLIN, 1),
            (libc::EPOLLOUT, 2),
            (libc::EPOLLRDHUP, 2),
            (libc::EPOLLPRI, 8),
            (libc::EPOLLRDNORM, 8),
            (libc::EPOLLWRNORM, 8),
            (libc::EPOLLET, 2),
            (libc::EPOLLONESHOT, 6),
        ] {
            let told_at_once = bit == libc::EPOLLET || bit == libc::EPOLLONESHOT;
            if self.rng.chance(one_in) && (self.calls == Calls::All || !told_at_once) {
                events |= bit;
            }
        }
        if self.rng.chance(10) { events & !libc::EPOLLIN } else { events }
    }
}
