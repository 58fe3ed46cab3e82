//! The end that answers: a thread for TCP, which is always there, and one for a lane, as long as that is.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use beeline_meeting::bridge::LaneEnd;

use super::{GREETING, LaneWay, TcpWay, answer};
use crate::control::PeerId;
use crate::control::message::Token;
use crate::priority;

/// An end that serves gives up another that is silent for so long: as long as a round takes.
const PATIENCE: Duration = Duration::from_millis(600);
/// One connection is served so long at most.
const SERVED_MOST: Duration = Duration::from_secs(2);
/// After a failure of accept(2).
const REST: Duration = Duration::from_millis(100);

/// Who may be served: the peers that are there, with their addresses and what they show.
#[derive(Clone, Default)]
pub struct Guests(Arc<Mutex<HashMap<PeerId, (IpAddr, Token)>>>);

impl Guests {
    /// A peer is there.
    pub fn enter(&self, peer: PeerId, address: IpAddr, token: Token) {
        self.all().insert(peer, (address.to_canonical(), token));
    }

    /// It is gone.
    pub fn leave(&self, peer: PeerId) {
        self.all().remove(&peer);
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<PeerId, (IpAddr, Token)>> {
        // Nothing panics with the lock held; if it did, the table would still be whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn are_at(&self, address: IpAddr) -> bool {
        self.all().values().any(|(known, _)| *known == address.to_canonical())
    }

    fn know(&self, address: IpAddr, shown: &[u8]) -> bool {
        // All are compared, so that the time does not tell which one is nearly right.
        self.all()
            .values()
            .fold(false, |found, (known, token)| found | (*known == address.to_canonical() && token.is(shown)))
    }
}

/// The thread that serves TCP.
pub struct Serving {
    /// Where.
    pub port: u16,
}

impl Serving {
    /// Listens at a port, 0 for any, and serves from then on until the process ends.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(port: u16, guests: Guests) -> io::Result<Serving> {
        let everywhere = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
        let listener = everywhere.or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
        let port = listener.local_addr()?.port();
        std::thread::Builder::new().name("measured".into()).stack_size(256 << 10).spawn(move || {
            priority::be_ordinary();
            serve(&listener, &guests);
        })?;
        Ok(Serving { port })
    }
}

fn serve(listener: &TcpListener, guests: &Guests) {
    loop {
        match listener.accept() {
            // How it ends is the other end's affair, which measures.
            Ok((stream, from)) if guests.are_at(from.ip()) => _ = serve_tcp(stream, from, guests),
            Ok(_) => {}
            Err(_) => std::thread::sleep(REST),
        }
    }
}

fn serve_tcp(mut stream: TcpStream, from: SocketAddr, guests: &Guests) -> io::Result<()> {
    stream.set_read_timeout(Some(GREETING))?;
    let mut shown = [0; Token::BYTES];
    stream.read_exact(&mut shown)?;
    if !guests.know(from.ip(), &shown) {
        return Ok(());
    }
    answer(&mut TcpWay::new(stream)?, PATIENCE, Instant::now() + SERVED_MOST)
}

/// Serves a lane from a thread of its own. The lane comes back when it is over.
///
/// # Errors
/// There is no thread: the lane.
pub fn serve_lane(lane: LaneEnd, spins: bool, back: mpsc::Sender<LaneWay>) -> Result<(), Box<LaneEnd>> {
    // What a thread is begun with is dropped when there is none, and an end that is dropped is never closed.
    let (hand, taken) = mpsc::channel();
    let serve = move || {
        let Ok(lane) = taken.recv() else { return };
        priority::be_ordinary();
        let mut way = LaneWay::new(lane, spins);
        let _ = answer(&mut way, PATIENCE, Instant::now() + SERVED_MOST);
        // Nobody takes it when the bridge ends, and the kernel takes it then.
        let _ = back.send(way);
    };
    match std::thread::Builder::new().name("measured".into()).stack_size(256 << 10).spawn(serve) {
        Ok(_) => hand.send(lane).map_err(|mpsc::SendError(lane)| Box::new(lane)),
        Err(_) => Err(Box::new(lane)),
    }
}
