//! The server with one epoll loop: listener and connections in one level-triggered set, each `recv` answered with the
//! same bytes.

use std::collections::HashMap;
use std::net::TcpStream;

use anyhow::{Context, Result};

use super::Outcome;
use crate::args::WorkerArgs;
use crate::poller::Poller;
use crate::socket::{Listener, receive, send_small};

const LISTENER: u64 = u64::MAX;

/// Serves until so many connections as expected have come and gone.
pub fn serve(args: &WorkerArgs, listener: &Listener) -> Result<Outcome> {
    listener.set_nonblocking()?;
    let mut poller = Poller::new(256)?;
    poller.add(listener, LISTENER)?;
    let mut streams: HashMap<u64, TcpStream> = HashMap::new();
    let (mut accepted, mut replies) = (0u64, 0u64);
    let mut buffer = vec![0; args.message_bytes];
    loop {
        let ready = poller.wait()?;
        for i in 0..ready {
            let token = poller.token(i);
            if token == LISTENER {
                while let Some(stream) = accept(listener)? {
                    stream.set_nonblocking(true)?;
                    poller.add(&stream, accepted)?;
                    streams.insert(accepted, stream);
                    accepted += 1;
                }
                continue;
            }
            let stream = streams.get(&token).context("an event of no connection")?;
            match receive(stream, &mut buffer)? {
                Some(0) => {
                    poller.remove(stream)?;
                    streams.remove(&token);
                    if streams.is_empty() && accepted == args.connections as u64 {
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
