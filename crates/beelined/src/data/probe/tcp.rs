//! The way of TCP.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::Way;
use crate::control::message::Token;

/// A TCP connection.
pub struct TcpWay(TcpStream);

impl TcpWay {
    /// Connects, and shows the token.
    ///
    /// # Errors
    /// The kernel's.
    pub fn connect(to: SocketAddr, token: &Token, patience: Duration) -> io::Result<TcpWay> {
        let stream = TcpStream::connect_timeout(&to, patience)?;
        let mut way = TcpWay::new(stream)?;
        way.send(token.as_bytes(), Instant::now() + patience)?;
        Ok(way)
    }

    /// Over a connection that stands.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(stream: TcpStream) -> io::Result<TcpWay> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT_MOST))?;
        stream.set_write_timeout(Some(WAIT_MOST))?;
        Ok(TcpWay(stream))
    }
}

/// One system call waits so long at most before the clock is looked at: set once, so that none is made that a program
/// would not make.
const WAIT_MOST: Duration = Duration::from_millis(20);

/// What to do about an error: wait on, unless the time is over.
fn go_on(error: io::Error, until: Instant) -> io::Result<()> {
    match error.kind() {
        ErrorKind::Interrupted | ErrorKind::WouldBlock if Instant::now() < until => Ok(()),
        ErrorKind::Interrupted | ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
        _ => Err(error),
    }
}

impl Way for TcpWay {
    fn send(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.0.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) => go_on(error, until)?,
            }
        }
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8], until: Instant) -> io::Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.0.read(bytes.get_mut(filled..).unwrap_or_default()) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(error) => go_on(error, until)?,
            }
        }
        Ok(())
    }
}
