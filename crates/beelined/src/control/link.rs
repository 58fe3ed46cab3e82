//! A socket, with or without TLS: plain bytes on this side, whatever it takes on the other. Nothing here blocks.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use super::end::End;

/// What one read takes at most, so that one peer cannot keep the bridge from the others.
const READ_BYTES_MAX: usize = 64 * 1024;

/// What TLS may hold of what we said.
const TLS_BYTES_MAX: usize = 64 * 1024;

/// A connection's transport.
pub struct Link {
    socket: TcpStream,
    tls: Option<rustls::Connection>,
}

/// What a read has brought, beside bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Whether there can be more.
    pub ending: Ending,
    /// How many bytes came over the wire: TLS has some of its own.
    pub wire_bytes: usize,
}

/// Whether there can be more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// There may be more.
    Open,
    /// The other end has said its last.
    Over,
}

impl Link {
    /// Over a socket that does not block.
    pub fn new(socket: TcpStream, mut tls: Option<rustls::Connection>) -> Self {
        if let Some(tls) = &mut tls {
            tls.set_buffer_limit(Some(TLS_BYTES_MAX));
        }
        Self { socket, tls }
    }

    /// Whether the keys have not been proven yet.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// The certificate whose key the other end has proven to have.
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        self.tls.as_ref()?.peer_certificates()?.first().map(|certificate| certificate.as_ref())
    }

    /// Whether a connection that was begun stands; an error if it failed.
    pub fn finish_connecting(&mut self) -> Result<bool, End> {
        if let Some(error) = self.socket.take_error()? {
            return Err(error.into());
        }
        match self.socket.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts what has arrived behind what is in `bytes`.
    pub fn read(&mut self, bytes: &mut Vec<u8>) -> Result<Arrival, End> {
        let Some(tls) = &mut self.tls else {
            let before = bytes.len();
            let ending = read_some(&mut self.socket, bytes)?;
            return Ok(Arrival { ending, wire_bytes: bytes.len() - before });
        };
        let mut wire_bytes = 0;
        let mut ending = Ending::Open;
        while wire_bytes < READ_BYTES_MAX && ending == Ending::Open {
            match tls.read_tls(&mut self.socket) {
                Ok(0) => ending = Ending::Over,
                Ok(more) => wire_bytes += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            if let Err(error) = tls.process_new_packets() {
                // The other end learns why, if it still listens: rustls has prepared the alert.
                let _ = tls.write_tls(&mut self.socket);
                return Err(error.into());
            }
            if read_some(&mut tls.reader(), bytes)? == Ending::Over {
                ending = Ending::Over;
            }
        }
        Ok(Arrival { ending, wire_bytes })
    }

    /// Takes from the front of `outbox` what can be sent now.
    pub fn write(&mut self, outbox: &mut Vec<u8>) -> Result<(), End> {
        let Some(tls) = &mut self.tls else {
            return write_some(&mut self.socket, outbox).map_err(End::from);
        };
        loop {
            while tls.wants_write() {
                match tls.write_tls(&mut self.socket) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.into()),
                }
            }
            // Nothing of ours is said to somebody who has not proven who they are.
            if tls.is_handshaking() || outbox.is_empty() {
                return Ok(());
            }
            let taken = tls.writer().write(outbox)?;
            outbox.drain(..taken);
        }
    }

    /// Whether it waits for room to send.
    pub fn wants_to_write(&self, outbox: &[u8]) -> bool {
        match &self.tls {
            Some(tls) => tls.wants_write() || (!tls.is_handshaking() && !outbox.is_empty()),
            None => !outbox.is_empty(),
        }
    }

    /// Says the last of what can be said; the other end can still be read.
    pub fn close(&mut self, outbox: &mut Vec<u8>) {
        // Whoever does not take it now hears nothing: an ending connection waits for nobody.
        let _ = self.write(outbox);
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = self.write(&mut Vec::new());
        }
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn read_some(source: &mut impl Read, bytes: &mut Vec<u8>) -> Result<Ending, End> {
    let mut buffer = [0; 16 * 1024];
    let mut taken = 0;
    while taken < READ_BYTES_MAX {
        match source.read(&mut buffer) {
            Ok(0) => return Ok(Ending::Over),
            Ok(count) => {
                taken += count;
                bytes.extend_from_slice(&buffer[..count]);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // TLS that ends without its own goodbye was cut; messages carry their lengths, so nothing is mistaken.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Ending::Over),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Ending::Open)
}

fn write_some(socket: &mut TcpStream, outbox: &mut Vec<u8>) -> io::Result<()> {
    while !outbox.is_empty() {
        match socket.write(outbox) {
            Ok(taken) => {
                outbox.drain(..taken);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
