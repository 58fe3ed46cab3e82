//! The server with one epoll loop: listener and connections in one level-triggered set, each `recv` answered with the
//! same bytes.

use std::net::TcpStream;

use anyhow::{Context, Result};

use super::events::Outcome;
use crate::poller::Poller;
use crate::socket::{Listener, receive, send_small};
use crate::worker::args::WorkerArgs;

const LISTENER: u64 = u64::MAX;

/// Serves until so many connections as expected have come and gone.
pub fn serve(args: &WorkerArgs, listener: &Listener) -> Result<Outcome> {
    listener.set_nonblocking()?;
    let mut poller = Poller::new(256)?;
    poller.add(listener, LISTENER)?;
    // By token: to look a connection up must cost nothing beside the trip that is measured.
    let mut streams: Vec<Option<TcpStream>> = Vec::with_capacity(args.connections);
    let (mut open, mut replies) = (0usize, 0u64);
    let mut buffer = vec![0; args.message_bytes];
    loop {
        let ready = poller.wait()?;
        for i in 0..ready {
            let token = poller.token(i);
            if token == LISTENER {
                while let Some(stream) = accept(listener)? {
                    stream.set_nonblocking(true)?;
                    poller.add(&stream, streams.len() as u64)?;
                    streams.push(Some(stream));
                    open += 1;
                }
                continue;
            }
            let place = streams.get_mut(token as usize).context("an event of no connection")?;
            let stream = place.as_ref().context("an event of a connection that is closed")?;
            match receive(stream, &mut buffer)? {
                Some(0) => {
                    poller.remove(stream)?;
                    *place = None;
                    open -= 1;
                    if open == 0 && streams.len() == args.connections {
                        return Ok(Outcome::of("replies", replies as f64, Vec::new()));
                    }
                }
                Some(count) => {
                    send_small(stream, &buffer[..count])?;
                    replies += 1;
                }
                None => {}
            }
        }
    }
}

fn accept(listener: &Listener) -> Result<Option<TcpStream>> {
    match listener.accept() {
        Ok(stream) => Ok(Some(stream)),
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e).context("accept"),
    }
}
