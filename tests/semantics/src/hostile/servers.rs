//! The programs of the hostile cases: three echo servers and the clients that use them, all with plain calls.

use super::announce;
use anyhow::{Context, Result, bail, ensure};
use beeline_testkit::rng::{Rng, fill_stream};
use beeline_testkit::sys::{self, EpollCall, RawAddress};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

fn listener() -> i32 {
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).value as i32;
    sys::bind(fd, &RawAddress::new(SocketAddr::from(([127, 0, 0, 1], 0))));
    sys::listen(fd, 256);
    sys::poll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], 0);
    fd
}

/// `SO_COOKIE` of a socket.
#[must_use]
pub fn cookie(fd: i32) -> u64 {
    let mut value = [0; 8];
    sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, &mut value);
    u64::from_ne_bytes(value)
}

/// Serves echo for ever.
pub fn serve(kind: &str) {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let fd = listener();
    if let Some(address) = sys::getsockname(fd, 128).1.decode() {
        announce(address, cookie(fd));
    }
    match kind {
        "epoll" => serve_by_epoll(fd),
        "polling" => serve_by_threads(fd, true),
        _ => serve_by_threads(fd, false),
    }
}

/// `polls` says that the server asks whether somebody is there before it accepts.
fn serve_by_threads(listener: i32, polls: bool) {
    loop {
        if polls {
            sys::poll(&mut [libc::pollfd { fd: listener, events: libc::POLLIN, revents: 0 }], -1);
        }
        let ret = sys::accept(listener);
        if !ret.is_ok() {
            // Descriptors may be short for a while; a server that spins on that would be no better.
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let fd = ret.value as i32;
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65536];
            loop {
                let ret = sys::recv(fd, &mut buffer, 0);
                if ret.value <= 0 || !send_all(fd, &buffer[..ret.size()]) {
                    break;
                }
            }
            sys::close(fd);
        });
    }
}

fn send_all(fd: i32, data: &[u8]) -> bool {
    let mut done = 0;
    while done < data.len() {
        let ret = sys::send(fd, &data[done..], libc::MSG_NOSIGNAL);
        match ret.value {
            1.. => done += ret.size(),
            _ if ret.is(libc::EAGAIN) => {
                sys::poll(&mut [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }], -1);
            }
            _ => return false,
        }
    }
    true
}

fn serve_by_epoll(listener: i32) {
    sys::set_nonblocking(listener, true);
    let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).value as i32;
    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, listener, libc::EPOLLIN as u32, listener as u64);
    let mut buffer = vec![0; 65536];
    loop {
        let (_, events) = sys::epoll_wait(EpollCall::Wait, set, 64, -1, None);
        for event in events {
            let fd = { event.u64 } as i32;
            if fd == listener {
                while let Ok(guest) = u64::try_from(sys::accept4(listener, libc::SOCK_NONBLOCK).value) {
                    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, guest as i32, libc::EPOLLIN as u32, guest);
                }
                continue;
            }
            let ret = sys::recv(fd, &mut buffer, 0);
            let keep = match ret.value {
                // A guest that does not read is not worth waiting for: everybody else is in this loop, too.
                1.. => sys::send(fd, &buffer[..ret.size()], libc::MSG_NOSIGNAL).size() == ret.size(),
                _ => ret.is(libc::EAGAIN),
            };
            if !keep {
                sys::close(fd);
            }
        }
    }
}

/// Asks an echo server something over plain calls and expects the answer in time.
///
/// # Errors
/// When the answer is late or wrong.
pub fn ask(address: SocketAddr, limit: Duration) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    for round in 0..3_u8 {
        let question = [round; 100];
        stream.write_all(&question)?;
        let mut answer = [0; 100];
        stream.read_exact(&mut answer)?;
        ensure!(answer == question, "a wrong answer");
    }
    Ok(())
}

/// A client that must be served over a lane.
///
/// # Errors
/// When it is not.
pub fn honest_client(address: &str) -> Result<()> {
    let address: SocketAddr = address.parse()?;
    ask(address, super::PATIENCE)?;
    let carried = beeline_testkit::statistics::Carried::of(std::process::id()).context("no statistics")?;
    ensure!(carried.accelerated > 0 && carried.fallen_back.is_empty(), "not over a lane: {carried}");
    Ok(())
}

/// A client that connects, streams and leaves again for ever, to be killed at any step. It checks what it gets back,
/// and ends with an error when bytes are wrong; when the server dies it sees the end of the connection and ends well.
///
/// # Errors
/// When bytes are wrong.
pub fn restless_client(address: &str) -> Result<()> {
    let address: SocketAddr = address.parse()?;
    let mut rng = Rng::new(u64::from(std::process::id()));
    loop {
        let Ok(mut stream) = TcpStream::connect(address) else { return Ok(()) };
        for round in 0..rng.between(1, 30) {
            let length = rng.between(1, 20_000);
            let mut data = vec![0; length];
            fill_stream(round as u64, 0, &mut data);
            if stream.write_all(&data).is_err() {
                return Ok(());
            }
            let mut got = 0;
            let mut back = vec![0; length];
            while got < length {
                match stream.read(&mut back[got..]) {
                    Ok(0) | Err(_) => {
                        ensure!(back[..got] == data[..got], "wrong bytes before the end");
                        return Ok(());
                    }
                    Ok(count) => got += count,
                }
            }
            if back != data {
                bail!("wrong bytes");
            }
        }
    }
}

/// A client that must be served, over whatever path.
///
/// # Errors
/// When it is not.
pub fn any_path_client(address: &str) -> Result<()> {
    ask(address.parse()?, super::PATIENCE)
}

/// A client that connects again and again, and says nothing.
///
/// # Errors
/// When it cannot connect.
pub fn knocking_client(address: &str, count: usize) -> Result<()> {
    let address: SocketAddr = address.parse()?;
    (0..count).try_for_each(|_| TcpStream::connect(address).map(drop)).context("connecting")
}

/// Opens `count` connections, as many at a time as descriptors allow, and uses those it has. At least `least` must be
/// open at the same time.
///
/// # Errors
/// When fewer are, or when one does not work.
pub fn crowd_client(address: &str, count: usize, least: usize) -> Result<()> {
    let address: SocketAddr = address.parse()?;
    let mut streams = Vec::new();
    for _ in 0..count {
        match TcpStream::connect(address) {
            Ok(stream) => streams.push(stream),
            Err(error) if [Some(libc::EMFILE), Some(libc::ENFILE)].contains(&error.raw_os_error()) => {}
            Err(error) => return Err(error).context("connecting"),
        }
    }
    ensure!(streams.len() >= least, "only {} connections", streams.len());
    // The server has the same limit; those that it had no descriptor for wait in its queue.
    for (at, stream) in streams.iter_mut().enumerate().take(least) {
        stream.set_read_timeout(Some(super::PATIENCE)).with_context(|| format!("setting up connection {at}"))?;
        stream.write_all(&(at as u32).to_le_bytes()).with_context(|| format!("writing to connection {at}"))?;
        let mut back = [0; 4];
        stream.read_exact(&mut back).with_context(|| format!("reading from connection {at}"))?;
        ensure!(back == (at as u32).to_le_bytes(), "a wrong answer on connection {at}");
    }
    Ok(())
}

/// A server that tells its listener's cookie, waits for a line, and only then listens.
///
/// # Errors
/// Those of standard input and output.
pub fn serve_later() -> Result<()> {
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).value as i32;
    sys::bind(fd, &RawAddress::new(SocketAddr::from(([127, 0, 0, 1], 0))));
    println!("{}", cookie(fd));
    std::io::stdin().read_line(&mut String::new())?;
    sys::listen(fd, 64);
    sys::poll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], 0);
    if let Some(address) = sys::getsockname(fd, 128).1.decode() {
        println!("{address}");
    }
    serve_by_threads(fd, false);
    Ok(())
}
