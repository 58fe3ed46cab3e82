//! Servers as people write them. Each answers requests with the same bytes; a connection whose first byte is [`SINK`]
//! is read to its end and answered with the number of bytes that came.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, fork, getpid, getppid};

use super::cell::Style;

/// The first byte of a connection that sends and expects no answers.
pub const SINK: u8 = b'S';
/// Threads of a pool.
const POOL_THREADS: usize = 4;
const BUFFER_BYTES: usize = 65_536;
const EVENTS_MAX: usize = 64;

/// Serves for ever. `connections` is how many come at a time.
pub fn serve(style: Style, listener: TcpListener, connections: usize) -> Result<()> {
    match style {
        Style::Threads => threads(&listener),
        Style::EpollLevel => Loop::new(listener, Trigger::Level, true)?.run(),
        Style::EpollEdge => Loop::new(listener, Trigger::Edge, true)?.run(),
        Style::EpollBlockingLevel => Loop::new(listener, Trigger::Level, false)?.run(),
        Style::EpollBlockingEdge => Loop::new(listener, Trigger::Edge, false)?.run(),
        Style::Poll => poll_loop(&listener),
        Style::Prefork => prefork(&listener, connections),
        Style::Fork => forks(&listener),
        Style::Pool => pool(listener),
    }
}

/// What is known of one connection.
#[derive(Default)]
struct Progress {
    begun: bool,
    sink: bool,
    received: u64,
}

/// What a look at a connection found.
#[derive(PartialEq, Eq)]
enum Found {
    /// Something was read.
    Some,
    /// There is nothing at the moment.
    Nothing,
    /// It is over.
    End,
}

impl Progress {
    /// Reads once, and answers.
    fn step(&mut self, mut stream: &TcpStream, buffer: &mut [u8]) -> Result<Found> {
        let count = loop {
            match stream.read(buffer) {
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Found::Nothing),
                // The client of a run that ends goes without a word.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(Found::End),
                Err(error) => return Err(error.into()),
            }
        };
        if count == 0 {
            if self.sink {
                stream.write_all(&self.received.to_ne_bytes())?;
            }
            return Ok(Found::End);
        }
        if !self.begun {
            self.begun = true;
            self.sink = buffer[0] == SINK;
        }
        self.received += count as u64;
        if !self.sink {
            stream.write_all(&buffer[..count])?;
        }
        Ok(Found::Some)
    }
}

/// Serves one connection to its end with blocking calls.
fn serve_blocking(stream: &TcpStream) -> Result<()> {
    let mut progress = Progress::default();
    let mut buffer = vec![0; BUFFER_BYTES];
    while progress.step(stream, &mut buffer)? == Found::Some {}
    Ok(())
}

fn accepted(stream: TcpStream) -> Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn threads(listener: &TcpListener) -> Result<()> {
    loop {
        let stream = accepted(listener.accept()?.0)?;
        std::thread::spawn(move || serve_blocking(&stream));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trigger {
    Level,
    Edge,
}

/// One thread with an epoll set.
struct Loop {
    listener: TcpListener,
    nonblocking: bool,
    flags: EpollFlags,
    epoll: Epoll,
    connections: HashMap<RawFd, (TcpStream, Progress)>,
}

impl Loop {
    fn new(listener: TcpListener, trigger: Trigger, nonblocking: bool) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let edge = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        let flags = if trigger == Trigger::Edge { edge } else { EpollFlags::EPOLLIN };
        // One accept for each event: an edge would be too few where two clients come at once.
        let of_listener = if nonblocking { flags } else { EpollFlags::EPOLLIN };
        listener.set_nonblocking(nonblocking)?;
        epoll.add(&listener, EpollEvent::new(of_listener, listener.as_raw_fd() as u64))?;
        Ok(Self { listener, nonblocking, flags, epoll, connections: HashMap::new() })
    }

    fn run(mut self) -> Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let count = wait(&self.epoll, &mut events)?;
            for event in &events[..count] {
                let fd = event.data() as RawFd;
                if fd == self.listener.as_raw_fd() {
                    self.accept()?;
                } else {
                    self.look(fd, &mut buffer)?;
                }
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => accepted(stream)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            stream.set_nonblocking(true)?;
            self.epoll.add(&stream, EpollEvent::new(self.flags, stream.as_raw_fd() as u64))?;
            self.connections.insert(stream.as_raw_fd(), (stream, Progress::default()));
            if !self.nonblocking {
                return Ok(());
            }
        }
    }

    fn look(&mut self, fd: RawFd, buffer: &mut [u8]) -> Result<()> {
        let (stream, progress) = self.connections.get_mut(&fd).context("an event of no connection")?;
        loop {
            match progress.step(stream, buffer)? {
                Found::Some if self.flags.contains(EpollFlags::EPOLLET) => {}
                Found::Some | Found::Nothing => return Ok(()),
                Found::End => {
                    self.connections.remove(&fd);
                    return Ok(());
                }
            }
        }
    }
}

fn wait(epoll: &Epoll, events: &mut [EpollEvent]) -> Result<usize> {
    loop {
        match epoll.wait(events, EpollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            result => return Ok(result?),
        }
    }
}

fn poll_loop(listener: &TcpListener) -> Result<()> {
    listener.set_nonblocking(true)?;
    let mut connections: Vec<(TcpStream, Progress)> = Vec::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let ready: Vec<bool> = {
            let mut fds = vec![PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            fds.extend(connections.iter().map(|(stream, _)| PollFd::new(stream.as_fd(), PollFlags::POLLIN)));
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) => continue,
                result => result?,
            };
            fds.iter().map(|fd| fd.any().unwrap_or(true)).collect()
        };
        let mut looked_at = ready.iter().skip(1);
        let mut kept = Vec::with_capacity(connections.len());
        for (stream, mut progress) in connections.drain(..) {
            let is_ready = looked_at.next().copied().unwrap_or(false);
            if !is_ready || progress.step(&stream, &mut buffer)? != Found::End {
                kept.push((stream, progress));
            }
        }
        connections = kept;
        if ready.first() == Some(&true) {
            while let Some(stream) = accept_if_any(listener)? {
                stream.set_nonblocking(true)?;
                connections.push((stream, Progress::default()));
            }
        }
    }
}

fn accept_if_any(listener: &TcpListener) -> Result<Option<TcpStream>> {
    match listener.accept() {
        Ok((stream, _)) => accepted(stream).map(Some),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Runs `serve` in a child that ends with its parent.
fn in_child(serve: impl FnOnce() -> Result<()>) -> Result<()> {
    let parent = getpid();
    // SAFETY: the child runs on in this very function; what it needs of other threads, the allocator, glibc keeps
    // usable over fork.
    match unsafe { fork() }? {
        ForkResult::Parent { .. } => Ok(()),
        ForkResult::Child => {
            let done = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(Into::into).and_then(|()| {
                ensure!(getppid() == parent, "the parent has ended");
                serve()
            });
            std::process::exit(i32::from(done.is_err()));
        }
    }
}

fn prefork(listener: &TcpListener, workers: usize) -> Result<()> {
    for _ in 0..workers {
        in_child(|| {
            loop {
                serve_blocking(&accepted(listener.accept()?.0)?)?;
            }
        })?;
    }
    loop {
        std::thread::park();
    }
}

fn forks(listener: &TcpListener) -> Result<()> {
    loop {
        let stream = accepted(listener.accept()?.0)?;
        in_child(|| serve_blocking(&stream))?;
        drop(stream);
        while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status.pid().is_some()) {}
    }
}

/// A connection on its way between the loop and a thread of the pool.
type Task = Arc<Mutex<(TcpStream, Progress)>>;

fn pool(listener: TcpListener) -> Result<()> {
    let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
    let open: Arc<Mutex<HashMap<RawFd, Task>>> = Arc::default();
    let (give, take) = channel::<RawFd>();
    let take = Arc::new(Mutex::new(take));
    for _ in 0..POOL_THREADS {
        let (epoll, open, take) = (epoll.clone(), open.clone(), take.clone());
        std::thread::spawn(move || pool_thread(&epoll, &open, &take));
    }
    listener.set_nonblocking(true)?;
    epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, listener.as_raw_fd() as u64))?;
    let mut events = [EpollEvent::empty(); EVENTS_MAX];
    loop {
        let count = wait(&epoll, &mut events)?;
        for event in &events[..count] {
            let fd = event.data() as RawFd;
            if fd != listener.as_raw_fd() {
                give.send(fd)?;
                continue;
            }
            while let Some(stream) = accept_if_any(&listener)? {
                stream.set_nonblocking(true)?;
                let fd = stream.as_raw_fd();
                let task = Arc::new(Mutex::new((stream, Progress::default())));
                let mut open = lock(&open)?;
                let known = task.clone();
                open.insert(fd, known);
                let (stream, _) = &*lock(&task)?;
                epoll.add(stream, once(fd))?;
            }
        }
    }
}

/// A member that is looked at by one thread at a time.
fn once(fd: RawFd) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, fd as u64)
}

fn lock<T>(mutex: &Mutex<T>) -> Result<std::sync::MutexGuard<'_, T>> {
    match mutex.lock() {
        Ok(guard) => Ok(guard),
        Err(_) => bail!("a thread of the pool has panicked"),
    }
}

fn pool_thread(epoll: &Epoll, open: &Mutex<HashMap<RawFd, Task>>, take: &Mutex<Receiver<RawFd>>) -> Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let fd = lock(take)?.recv()?;
        let Some(task) = lock(open)?.get(&fd).cloned() else { continue };
        let mut guard = lock(&task)?;
        let (stream, progress) = &mut *guard;
        if progress.step(stream, &mut buffer)? == Found::End {
            // Out of the table before the number can be another's.
            lock(open)?.remove(&fd);
        } else {
            epoll.modify(&*stream, &mut once(fd))?;
        }
    }
}
