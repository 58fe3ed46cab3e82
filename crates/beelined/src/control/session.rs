//! The protocol of one control connection: bytes and time in, messages and bytes out. It does no I/O.
//!
//! 1. Each end's first frame is its hello. Before it nothing else counts, except `bye`.
//! 2. A hello of another version ends the connection, whatever else it holds.
//! 3. Any frame is a sign of life. Once a second there is a ping; who is silent for the timeout is gone. The same
//!    timeout holds for the first hello.
//! 4. What arrives is paid for from a budget that fills with time: who sends more than any bridge would is cut off. So
//!    is who lets more than a bounded number of bytes wait for them.

use std::time::{Duration, Instant};

use super::end::End;
use super::frame;
use super::message::{Bye, Frame, Hello, Message, Ping, VERSION, shortened};

/// How often there is a ping.
pub const PING_INTERVAL: Duration = Duration::from_secs(1);

/// The most that waits to be sent.
pub const OUTBOX_BYTES_MAX: usize = 512 * 1024;

/// What may come at once: two full frames, or this many small ones.
const BURST: f64 = 256.0 * FRAME_COST;
/// What may come in a second, on and on.
const RATE: f64 = 64.0 * FRAME_COST;
/// A frame costs its bytes, and this for the work it makes.
const FRAME_COST: f64 = 1024.0;

/// One connection's state.
#[derive(Debug)]
pub struct Session {
    reader: frame::Reader,
    outbox: Vec<u8>,
    greeted: bool,
    heard: Instant,
    timeout: Duration,
    next_ping: Instant,
    pings: u64,
    pinged: Instant,
    round_trip: Option<Duration>,
    budget: f64,
    budget_at: Instant,
}

/// What the other end said that is for others than the session.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// Who it is; always first.
    Hello(Box<Hello>),
    /// Something for the engine.
    Message(Message),
}

impl Session {
    /// A session that begins now.
    pub fn new(now: Instant, timeout: Duration) -> Self {
        Self {
            reader: frame::Reader::default(),
            outbox: Vec::new(),
            greeted: false,
            heard: now,
            timeout,
            next_ping: now + PING_INTERVAL,
            pings: 0,
            pinged: now,
            round_trip: None,
            budget: BURST,
            budget_at: now,
        }
    }

    /// Takes bytes that have arrived. [`Self::next_heard`] says what they mean.
    pub fn receive(&mut self, bytes: &[u8], now: Instant) -> Result<(), End> {
        self.reader.push(bytes);
        self.spend(bytes.len() as f64, now)
    }

    /// The next thing that was said, if all of it has arrived.
    pub fn next_heard(&mut self, now: Instant) -> Result<Option<Heard>, End> {
        while let Some(body) = self.reader.next_body()? {
            if !self.greeted
                && let Some(version) = Frame::hello_version(body)
                && version != VERSION
            {
                return Err(End::Version(version));
            }
            let frame = Frame::decode(body).map_err(End::Malformed)?;
            self.heard = now;
            self.spend(FRAME_COST, now)?;
            if let Some(heard) = self.take(frame, now)? {
                return Ok(Some(heard));
            }
        }
        Ok(None)
    }

    fn take(&mut self, frame: Frame, now: Instant) -> Result<Option<Heard>, End> {
        match frame {
            Frame::Bye(Bye { why }) => Err(End::Bye(why)),
            Frame::Hello(hello) if !self.greeted => {
                self.greeted = true;
                Ok(Some(Heard::Hello(Box::new(hello))))
            }
            Frame::Hello(_) => Err(End::OutOfTurn("a second hello")),
            _ if !self.greeted => Err(End::OutOfTurn("something before the hello")),
            Frame::Ping(ping) => self.send(&Frame::Pong(ping)).map(|()| None),
            Frame::Pong(Ping { n }) => {
                // An answer to an older question is late, one to a question that was never asked is made up.
                if n == 0 || n > self.pings {
                    return Err(End::OutOfTurn("an answer to no question"));
                }
                if n == self.pings {
                    self.round_trip = Some(now.saturating_duration_since(self.pinged));
                }
                Ok(None)
            }
            Frame::Rails(rails) => Ok(Some(Heard::Message(Message::Rails(rails)))),
            Frame::LinkDown(down) => Ok(Some(Heard::Message(Message::LinkDown(down)))),
            Frame::Leaving(leaving) => Ok(Some(Heard::Message(Message::Leaving(leaving)))),
        }
    }

    /// Takes from the budget.
    pub fn spend(&mut self, cost: f64, now: Instant) -> Result<(), End> {
        let elapsed = now.saturating_duration_since(self.budget_at).as_secs_f64();
        self.budget_at = now;
        self.budget = (self.budget + elapsed * RATE).min(BURST) - cost;
        if self.budget < 0.0 { Err(End::Flood) } else { Ok(()) }
    }

    /// Queues a frame.
    pub fn send(&mut self, frame: &Frame) -> Result<(), End> {
        if self.outbox.len() > OUTBOX_BYTES_MAX {
            return Err(End::NotReading);
        }
        // Frames of our own that are too long were refused where they were made (`Control::announce_rails`).
        if frame::write(&mut self.outbox, &frame.encode()) { Ok(()) } else { Err(End::OutOfTurn("too long to send")) }
    }

    /// Queues the last frame.
    pub fn say_bye(&mut self, why: &End) {
        let bye = Frame::Bye(Bye { why: shortened(why.to_string()) });
        frame::write(&mut self.outbox, &bye.encode());
    }

    /// What waits to be sent. The caller takes from its front what it could send.
    pub fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.outbox
    }

    /// Does what is due at this time.
    pub fn tick(&mut self, now: Instant) -> Result<(), End> {
        if now >= self.silent_at() {
            return Err(if self.greeted { End::Silent } else { End::Slow });
        }
        if now >= self.next_ping {
            self.next_ping = now + PING_INTERVAL;
            // Before their hello the other end may not have ours, and there is a deadline anyway.
            if self.greeted {
                self.pings += 1;
                self.pinged = now;
                self.send(&Frame::Ping(Ping { n: self.pings }))?;
            }
        }
        Ok(())
    }

    /// When something will be due.
    pub fn deadline(&self) -> Instant {
        self.next_ping.min(self.silent_at())
    }

    fn silent_at(&self) -> Instant {
        self.heard + self.timeout
    }

    /// How long the last question took.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }
}

#[cfg(test)]
mod tests;
