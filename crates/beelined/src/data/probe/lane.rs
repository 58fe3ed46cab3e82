//! The way over a lane: an end of one, used as a program that does nothing else uses it.

use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use beeline_meeting::bridge::{Armed, Fault, LaneEnd, Readable, flags};
use beeline_wire::Verdict;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Way;

/// How long an end looks for bytes before it sleeps, where CPUs are not few: as the library does.
const SPIN: Duration = Duration::from_micros(20);

/// See the module.
pub struct LaneWay {
    lane: LaneEnd,
    spins: bool,
}

impl LaneWay {
    /// An end that may spin.
    #[must_use]
    pub fn new(lane: LaneEnd, spins: bool) -> LaneWay {
        LaneWay { lane, spins }
    }

    /// Waits for the bridge's answer, as a client does.
    ///
    /// # Errors
    /// The answer is no, or does not come; then the hello is withdrawn when the lane is closed.
    pub fn await_verdict(&self, until: Instant) -> io::Result<()> {
        let mut byte = [0];
        loop {
            match nix::sys::socket::recv(self.lane.anchor(), &mut byte, nix::sys::socket::MsgFlags::MSG_DONTWAIT) {
                Ok(1) if Verdict::from_byte(byte[0]) == Some(Verdict::Yes) => return Ok(()),
                Ok(_) => return Err(ErrorKind::ConnectionRefused.into()),
                Err(Errno::EAGAIN | Errno::EINTR) => _ = self.sleep(until)?,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Ends this end.
    pub fn close(self) {
        self.lane.say(flags::FIN | flags::CLOSED | if self.lane.is_taken() { 0 } else { flags::RESET });
        self.lane.retire();
    }

    /// Sleeps until something happens to the anchor.
    fn sleep(&self, until: Instant) -> io::Result<PollFlags> {
        let left = until.saturating_duration_since(Instant::now());
        // Rounded up: what is nearly over is not looked at again and again.
        let left_ms = u16::try_from(left.as_millis()).unwrap_or(u16::MAX).saturating_add(1);
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        // SAFETY: the lane owns its anchor, which stays open as long as this end.
        let anchor = unsafe { BorrowedFd::borrow_raw(self.lane.anchor()) };
        let mut polled = [PollFd::new(anchor, PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::from(left_ms)) {
            Ok(_) | Err(Errno::EINTR) => Ok(polled[0].revents().unwrap_or(PollFlags::empty())),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sleeps for a bell.
    fn await_bell(&self, until: Instant) -> io::Result<()> {
        let events = self.sleep(until)?;
        if events.contains(PollFlags::POLLIN) {
            self.lane.note_bell();
        }
        if self.lane.tells_of_end(u32::from(events.bits().cast_unsigned())) {
            return Err(ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }

    /// Bytes to read, or that there are none yet.
    fn look(&self) -> io::Result<Option<(u32, u32)>> {
        match self.lane.readable().map_err(broken)? {
            Readable::Bytes(0, _) if self.lane.peer_flags() & (flags::FIN | flags::CLOSED | flags::RESET) != 0 => {
                // It may have written between the two looks.
                match self.lane.readable().map_err(broken)? {
                    Readable::Bytes(count @ 1.., position) => Ok(Some((count, position))),
                    _ => Err(ErrorKind::UnexpectedEof.into()),
                }
            }
            Readable::Bytes(0, _) => Ok(None),
            Readable::Bytes(count, position) => Ok(Some((count, position))),
            Readable::Urgent => Err(ErrorKind::InvalidData.into()),
        }
    }
}

fn broken(_: Fault) -> io::Error {
    ErrorKind::ConnectionReset.into()
}

impl Way for LaneWay {
    fn send(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.lane.write(bytes).map_err(broken)?;
            bytes = bytes.get(written..).unwrap_or_default();
            // Taking the bells out is the reading side's; nothing is to be read while something is sent.
            if written == 0
                && self.lane.arm_reading().map_err(broken)? == Armed::Sleep
                && self.lane.arm_writing().map_err(broken)? == Armed::Sleep
            {
                self.await_bell(until)?;
            } else if written == 0 && Instant::now() >= until {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8], until: Instant) -> io::Result<()> {
        let mut filled = 0;
        let mut idle_since = None;
        while filled < bytes.len() {
            if let Some((count, position)) = self.look()? {
                let place = bytes.get_mut(filled..).unwrap_or_default();
                let count = place.len().min(count as usize);
                let place = place.get_mut(..count).unwrap_or_default();
                self.lane.copy_out(position, place);
                self.lane.consume(u32::try_from(count).unwrap_or(0)).map_err(broken)?;
                filled += count;
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            if self.spins && since.elapsed() < SPIN {
                std::hint::spin_loop();
            } else if self.lane.arm_reading().map_err(broken)? == Armed::Sleep {
                self.await_bell(until)?;
                idle_since = None;
            }
        }
        Ok(())
    }
}
