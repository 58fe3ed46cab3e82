//! What a relay does when there is nothing to move: it spins for a while, then sleeps (rules 6 to 8 of [`super`]).

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{Armed, Fault, Since, flags};
use beeline_shm::sys::call;

use super::{ANCHOR, Moved, Pump, SOCKET, State};
use crate::wait::is_near;
use crate::wait::looks::{Look, Looks};
use crate::{Errno, kernel};

impl Pump {
    /// Looks again and again for a while, if that has paid lately.
    pub(super) fn spin(&mut self) -> Moved {
        /// Looks at the ring between two at the socket.
        const LOOKS: u32 = 16;
        let shown = |end| self.relay.lane.cpu(end).load(Relaxed);
        if is_near(shown(self.relay.end.peer()), shown(self.relay.end)) == Some(true) {
            return Moved::Nothing;
        }
        let looks = Looks { least_ns: 1_000, probe_ns: 4_000, most_ns: self.relay.spin_ns_max };
        let skip = || {
            self.skipped = self.skipped.wrapping_add(1);
            self.skipped.wrapping_sub(1)
        };
        let Some(budget_ns) = looks.grant(self.spin_ns, skip) else { return Moved::Nothing };
        let (lane, peer, head) = (self.relay.lane, self.relay.end.peer(), self.relay.side.rx.head());
        let (moved, next_ns) = looks.spin(budget_ns, now_ns, || {
            for _ in 0..LOOKS {
                if lane.cursor(peer).tail != head && !self.socket_full {
                    break;
                }
                core::hint::spin_loop();
            }
            match self.turn() {
                Moved::Nothing => Look::Nothing,
                moved => Look::Something(moved),
            }
        });
        self.spin_ns = next_ns;
        moved.unwrap_or(Moved::Nothing)
    }

    /// Sleeps until there is something to do.
    pub(super) fn sleep(&mut self) -> Moved {
        if self.outward == State::Open && !self.socket_full {
            match self.reader().arm(Since::Read, &self.bells()) {
                Ok(Armed::Ready) => return Moved::Some,
                // Of a peer that keeps its anchor the kernel tells no end.
                Ok(Armed::Sleep) if self.peer_flags() & (flags::FIN | flags::CLOSED) != 0 => return Moved::Some,
                Ok(Armed::Sleep) => {}
                Err(fault) => return self.faulted(fault),
            }
        }
        let free = self.writer().free();
        if self.inward == State::Open && self.ring_full && free != Ok(0) {
            // The peer has read since the last turn, and will not say so: it was not asked to. Nor will the socket.
            return Moved::Some;
        }
        if self.inward == State::Open && free == Ok(0) {
            match self.writer().arm(&self.bells()) {
                Ok(Armed::Ready) => return Moved::Some,
                // The kernel tells of room there whether there is any or not.
                Ok(Armed::Sleep) if self.peer_flags() & flags::SHUT_RD != 0 => kernel::sleep_ms(),
                Ok(Armed::Sleep) => {}
                Err(fault) => return self.faulted(fault),
            }
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        let timeout = self.sleep_ms() as usize;
        let args = [self.relay.set as usize, events.as_mut_ptr() as usize, events.len(), timeout, 0, 8];
        // SAFETY: room for as many events; no mask.
        let woken = unsafe { call(libc::SYS_epoll_pwait, args) };
        self.relay.lane.cpu(self.relay.end).store(kernel::cpu().wrapping_add(1), Relaxed);
        let count = match woken {
            Ok(0) => {
                self.look_around();
                return Moved::Some;
            }
            Ok(count) => count,
            Err(Errno(libc::EINTR)) => return Moved::Some,
            Err(_) => return Moved::Reset,
        };
        for event in events.iter().take(count) {
            let (what, happened) = (event.u64, event.events as i32);
            if what == ANCHOR {
                self.anchor_said(happened);
            } else if what != SOCKET {
                self.relay.attendance.heard(what, self.relay.side);
            } else if happened & (libc::EPOLLERR | libc::EPOLLHUP) != 0 && self.socket_is_reset() {
                return self.drain_socket();
            } else if happened & libc::EPOLLOUT != 0 {
                self.socket_full = false;
            }
        }
        Moved::Some
    }

    /// Nothing has happened for as long as a sleep lasts.
    #[cold]
    fn look_around(&mut self) {
        match self.relay.attendance.is_open() {
            true => self.relay.attendance.look(self.relay.side),
            false => self.look_for_program(),
        }
    }

    fn anchor_said(&mut self, happened: i32) {
        if happened & libc::EPOLLIN != 0 {
            self.relay.side.rx.note_bell();
        }
        // An anchor with both halves shut down, by either end, looks like a dead one. Then nothing is left to learn.
        let said = self.peer_flags();
        let shut = said & flags::FIN != 0 && (self.inward == State::Over || said & flags::SHUT_RD != 0);
        if happened & (libc::EPOLLHUP | libc::EPOLLERR) != 0 && !shut {
            self.peer_gone = true;
        }
    }

    /// Whether the other end of the socket has gone without the usual words.
    fn socket_is_reset(&self) -> bool {
        kernel::getsockopt::<i32>(self.relay.socket, libc::SOL_SOCKET, libc::SO_ERROR).is_ok_and(|error| error != 0)
    }

    #[cold]
    fn faulted(&mut self, fault: Fault) -> Moved {
        if fault != Fault::Gone || self.peer_gone {
            return Moved::Reset;
        }
        self.peer_gone = true;
        Moved::Some
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds, by the system call: what the vDSO's form needs may be unmapped.
fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let args = [libc::CLOCK_MONOTONIC as usize, (&raw mut now) as usize, 0, 0, 0, 0];
    // SAFETY: a live timespec.
    let _ = unsafe { call(libc::SYS_clock_gettime, args) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
