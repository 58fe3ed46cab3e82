//! The calls of a program on its end, as the sockets make them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use beeline_lane::{Armed, Fault, Reader, Since, Sink, Source, Storage, Writer, flags, force_peer_look};
use loom::sync::Mutex;

use super::model::{Died, Holder};

/// What a call ended with.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Ended {
    Bytes(usize),
    Eof,
    Gone,
}

/// Most bytes for the reader's short way: fewer than some messages have.
const SMALL_BYTES: u32 = 3;

impl Holder {
    /// Runs `act` as the holder of the reading half; takes over from a holder that died.
    pub fn reading<T>(&self, act: impl FnOnce(&Reader<'_, &Holder>) -> T) -> T {
        self.locked(&self.side().rx_lock, |died| {
            let reader = Reader::new(self, self.end, &self.side().rx, &self.side().tx);
            if died {
                let _ = reader.recover(self);
            }
            act(&reader)
        })
    }

    /// As [`Holder::reading`], for the writing half.
    pub fn writing<T>(&self, act: impl FnOnce(&Writer<'_, &Holder>) -> T) -> T {
        self.locked(&self.side().tx_lock, |died| {
            let writer = Writer::new(self, self.end, &self.side().tx, &self.side().rx);
            if died {
                writer.recover().unwrap();
            }
            act(&writer)
        })
    }

    /// A robust lock: `act` learns whether the last holder died with it. (loom's own mutexes do not
    /// survive that.)
    pub fn locked<T>(&self, lock: &Mutex<bool>, act: impl FnOnce(bool) -> T) -> T {
        let mut died = lock.lock().unwrap();
        let result = catch_unwind(AssertUnwindSafe(|| act(*died)));
        *died = result.is_err();
        drop(died);
        result.unwrap_or_else(|reason| resume_unwind(reason))
    }

    /// Blocking `recv`.
    pub fn recv(&self, buffer: &mut [u8]) -> Ended {
        loop {
            let ended = self.reading(|reader| {
                // In this order, which is the peer's reversed: whoever sees the end has seen the flag, and
                // whoever sees the flag will see the last cursor.
                let gone = self.peer_is_gone();
                let finished = self.flags(self.end.peer()) & flags::FIN != 0;
                // As the sockets do: the short way first.
                let read = match reader.read_small(Sink::from(&mut *buffer), SMALL_BYTES, self) {
                    Ok(0) => reader.read(Sink::from(&mut *buffer), self),
                    small => small,
                };
                match read {
                    Ok(0) if finished => return Some(Ended::Eof),
                    Ok(0) if gone => return Some(Ended::Gone),
                    Ok(0) => {}
                    Ok(count) => return Some(Ended::Bytes(count)),
                    Err(fault) => panic!("{fault:?}"),
                }
                if self.alone {
                    assert!(matches!(reader.drain_bells(self), Ok(()) | Err(Fault::Gone)));
                }
                match reader.arm(Since::Read, self) {
                    // Behind the fence: the kernel may not tell of it.
                    Ok(Armed::Sleep) if !finished && self.is_over(self.end.peer()) => Some(Ended::Bytes(0)),
                    Ok(Armed::Sleep) => None,
                    Ok(Armed::Ready) | Err(Fault::Gone) => Some(Ended::Bytes(0)),
                    Err(fault) => panic!("{fault:?}"),
                }
            });
            match ended {
                Some(Ended::Bytes(0)) => {}
                Some(ended) => return ended,
                None => {
                    self.sleep_readable();
                    self.side().rx.note_bell();
                }
            }
        }
    }

    /// Blocking `recv` until the stream ends or `limit` bytes are there.
    pub fn recv_all(&self, limit: usize) -> (Vec<u8>, Option<Ended>) {
        let mut stream = Vec::new();
        while stream.len() < limit {
            let mut buffer = [0; 5];
            let room = buffer.len().min(limit - stream.len());
            match self.recv(&mut buffer[..room]) {
                Ended::Bytes(count) => stream.extend_from_slice(&buffer[..count]),
                ended => return (stream, Some(ended)),
            }
        }
        (stream, None)
    }

    /// Blocking `send` of all bytes, after `turn` of which the reader is to have its turn.
    pub fn send_in_turns(&self, bytes: &[u8], turn: u32) {
        let mut done = 0;
        while done < bytes.len() {
            let waits = self.writing(|writer| {
                done += writer.in_turns(turn).write(Source::from(&bytes[done..]), self).unwrap();
                done < bytes.len() && writer.ask_for_turn(turn)
            });
            if waits {
                self.sleep_for_turn();
            }
        }
    }

    /// Blocking `send` of all bytes; false when the peer is gone.
    pub fn send(&self, bytes: &[u8]) -> bool {
        let mut done = 0;
        while done < bytes.len() {
            let armed = self.writing(|writer| {
                // As the sockets do: the short way first.
                if writer.write_small(Source::from(&bytes[done..]), self) {
                    done = bytes.len();
                } else {
                    done += writer.write(Source::from(&bytes[done..]), self)?;
                }
                if done == bytes.len() {
                    return Ok(Armed::Ready);
                }
                writer.arm(self)
            });
            match armed {
                Ok(Armed::Ready) => {}
                Ok(Armed::Sleep) => {
                    self.sleep_for_room();
                    if self.peer_is_gone() {
                        return false;
                    }
                }
                Err(Fault::Gone) => return false,
                Err(fault) => panic!("{fault:?}"),
            }
        }
        true
    }

    /// Blocking `send` of an end that processes share: system calls are made when the lock is given back.
    pub fn send_beside_others(&self, bytes: &[u8]) -> bool {
        let mut source = Source::from(bytes);
        let unlocked = Writer::new(self, self.end, &self.side().tx, &self.side().rx);
        while !source.is_empty() {
            let before = source.len();
            assert_eq!(self.writing(|writer| writer.write_quietly(&mut source)), Ok(()));
            let told = if source.len() == before { Ok(()) } else { unlocked.tell_reader(self) };
            let armed = match told {
                Ok(()) if source.is_empty() => return true,
                Ok(()) => self.locked(&self.side().arm_lock, |_| unlocked.arm(self)),
                Err(fault) => Err(fault),
            };
            match armed {
                Ok(Armed::Ready) => {}
                Ok(Armed::Sleep) => self.sleep_for_room(),
                Err(Fault::Gone) => return false,
                Err(fault) => panic!("{fault:?}"),
            }
        }
        true
    }

    /// Sleeps until the kernel tells of room, and for a moment more where it tells of it whether there is any or not.
    fn sleep_for_room(&self) {
        self.sleep_writable();
        if self.reads_no_more(self.end.peer()) {
            self.nap();
        }
    }

    /// `shutdown(SHUT_WR)`, of which the kernel tells the peer.
    pub fn finish(&self) {
        self.writing(|_| self.say(flags::FIN));
        self.change(|me, _| me.half_closed = true);
    }

    /// `shutdown(2)`, as the sockets do it: [`flags::SHUT_RD`], [`flags::FIN`] or both are said one after the other,
    /// and the kernel hears of it when the lock is given back.
    pub fn shut(&self, what: u32) {
        let shuts = |half| what & half != 0;
        self.writing(|_| {
            for half in [flags::SHUT_RD, flags::FIN].into_iter().filter(|half| shuts(*half)) {
                self.say(half);
                force_peer_look(&self, self.end);
            }
        });
        self.change(|me, _| {
            me.half_closed |= shuts(flags::FIN);
            me.small &= !shuts(flags::FIN);
            me.reads_no_more |= shuts(flags::SHUT_RD);
        });
    }

    /// Says that no byte follows, or that the end is closed as well, and keeps the anchor as it is: a flag, a fence,
    /// and a bell for a peer that is armed.
    pub fn end_and_keep(&self, what: u32) {
        self.writing(|writer| {
            self.say(what);
            force_peer_look(&self, self.end);
            writer.tell_reader(self).unwrap();
        });
    }

    /// `shutdown(SHUT_WR)` of an end that stands: a bell tells a peer that stands, too, and the kernel any other.
    pub fn finish_standing(&self) {
        let is_told = self.writing(|writer| {
            self.say(flags::FIN);
            force_peer_look(&self, self.end);
            let stands = self.flags(self.end.peer()) & flags::STANDS != 0;
            stands && writer.tell_reader(self).is_ok()
        });
        if !is_told {
            self.change(|me, _| me.half_closed = true);
        }
    }

    /// Sleeps until the kernel tells that no byte follows, as a wait does that asks for none: the end stands no more.
    pub fn await_end_by_kernel(&self) {
        self.writing(|_| {
            self.unsay(flags::STANDS);
            self.full_fence();
        });
        if self.flags(self.end.peer()) & flags::FIN != 0 {
            // SHUT_RD here is SHUT_WR there.
            self.change(|_, peer| peer.half_closed = true);
        }
        self.sleep_until(|_, peer| peer.half_closed);
    }

    /// Sleeps until the peer has said that no byte follows, as a receive does.
    pub fn await_end(&self) {
        let is_over = || self.is_over(self.end.peer());
        loop {
            if is_over() {
                return;
            }
            let armed = self.reading(|reader| reader.arm(Since::Read, self)).unwrap();
            if armed == Armed::Sleep && !is_over() {
                self.sleep_readable();
            }
        }
    }

    /// The kernel closes the anchor: the last holder is gone.
    pub fn close(&self) {
        self.change(|me, peer| {
            me.closed = true;
            peer.edge = true;
        });
    }

    /// Runs `act`; false if the fuse burnt down meanwhile.
    pub fn lives_through(&self, act: impl FnOnce()) -> bool {
        match catch_unwind(AssertUnwindSafe(act)) {
            Ok(()) => true,
            Err(reason) if reason.is::<Died>() => {
                self.fuse.0.set(None);
                false
            }
            Err(reason) => resume_unwind(reason),
        }
    }
}
