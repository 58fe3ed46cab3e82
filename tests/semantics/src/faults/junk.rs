//! Strangers at a listener and at its door: they say nothing, nonsense, half of a hello, or a hello that leads nowhere.

use anyhow::{Context, Result};
use beeline_testkit::hostile::{Client, Lane};
use beeline_testkit::rng::Rng;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// As many strangers as there may be at once; each stays for a moment only.
const STRANGERS_MAX: usize = 6;

/// What a stranger holds.
#[expect(dead_code, reason = "they are held for their descriptors")]
enum Held {
    Tcp(TcpStream),
    Door(Client),
}

/// Floods until it is killed. Without a door, or on kernel TCP, there is the listener alone.
///
/// # Errors
/// When the words make no sense.
pub fn run(words: &str) -> Result<()> {
    let mut words = words.split(';');
    let address: SocketAddr = words.next().context("no address")?.parse()?;
    let cookie: u64 = words.next().context("no cookie")?.parse()?;
    let door = words.next() == Some("door");
    let mut rng = Rng::new(cookie);
    let mut held: Vec<(Instant, Held)> = Vec::new();
    let mut port = 20_000_u16;
    loop {
        let now = Instant::now();
        held.retain(|(until, _)| *until > now);
        if held.len() < STRANGERS_MAX {
            port = port.wrapping_add(1).max(20_000);
            let stranger = match door && rng.chance(2) {
                true => at_door(cookie, SocketAddr::new(address.ip(), port), address, &mut rng).ok().map(Held::Door),
                false => at_listener(address, &mut rng).ok().map(Held::Tcp),
            };
            let stay = Duration::from_millis(rng.between(0, 40) as u64);
            held.extend(stranger.map(|stranger| (now + stay, stranger)));
        }
        std::thread::sleep(Duration::from_micros(rng.between(100, 3000) as u64));
    }
}

fn at_listener(address: SocketAddr, rng: &mut Rng) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    if rng.chance(2) {
        stream.write_all(&b"GET / HTTP/1.1\r\n\r\n"[..rng.between(1, 18)])?;
    }
    if rng.chance(3) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let (value, length) = ((&raw const linger).cast(), size_of::<libc::linger>() as u32);
        // SAFETY: the option value is valid for its length.
        unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, length) };
    }
    Ok(stream)
}

fn at_door(cookie: u64, claim: SocketAddr, server: SocketAddr, rng: &mut Rng) -> Result<Client> {
    let client = if rng.chance(3) { Client::unnamed(cookie)? } else { Client::claiming(cookie, claim, server)? };
    match rng.below(6) {
        0 => {}
        1 => drop(client.send(b"abc", &[])?),
        2 => drop(client.send(&[0x5a; 200], &[])?),
        3 => {
            let lane = Lane::correct(1 << 16)?;
            client.send(&lane.hello().encode()[..20], &[lane.fd.as_raw_fd()])?;
        }
        4 => drop(client.say_hello(&Lane::odd(1 << 16, 4096, libc::MFD_ALLOW_SEALING, 0)?)?),
        _ => drop(client.say_hello(&Lane::correct(1 << 16)?)?),
    }
    Ok(client)
}
