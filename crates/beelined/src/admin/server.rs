//! The socket's end in the bridge.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::{Answer, Backend, answer, line_of};
use crate::user::User;

const CLIENTS_MAX: usize = 8;
const LINE_BYTES_MAX: usize = 4096;
/// A client that neither asks nor reads for so long is in the way.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long nobody is let in when there were no descriptors for somebody, who stays in the queue.
const REST: Duration = Duration::from_millis(100);
const LISTENER: u64 = 0;

/// The administrator's socket and who is connected. It works as [`crate::control::Control`] does: [`Self::as_fd`] is
/// readable, or [`Self::deadline`] has come, when there is something to do in [`Self::turn`].
pub struct Admin {
    path: PathBuf,
    listener: UnixListener,
    /// The listener is not watched until then.
    rests_until: Option<Instant>,
    epoll: Epoll,
    clients: BTreeMap<u64, Client>,
    next_id: u64,
}

struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of it that were written.
    written: usize,
    until: Instant,
}

impl Admin {
    /// Makes the socket's directory if it is not there, for `owner`. This may need root's power, unlike the socket:
    /// what root changes in a directory of the bridge's user could be made to be something else at the last moment.
    pub fn make_directory(path: &Path, owner: Option<&User>) -> anyhow::Result<()> {
        let Some(directory) = path.parent().filter(|directory| !directory.exists()) else { return Ok(()) };
        fs::create_dir(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        owner.map_or(Ok(()), |owner| owner.give(directory))
    }

    /// Opens the socket, as the user who the bridge is.
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let listener =
            listen(path).with_context(|| format!("cannot open the administrator's socket {}", path.display()))?;
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        let (path, clients) = (path.to_owned(), BTreeMap::new());
        Ok(Self { path, listener, rests_until: None, epoll, clients, next_id: LISTENER + 1 })
    }

    /// Readable when [`Self::turn`] has something to do.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// When [`Self::turn`] has something to do, even if the descriptor is silent.
    pub fn deadline(&self) -> Option<Instant> {
        self.clients.values().map(|client| client.until).chain(self.rests_until).min()
    }

    /// Answers.
    pub fn turn(&mut self, now: Instant, backend: &mut dyn Backend) {
        let mut ready = [EpollEvent::empty(); CLIENTS_MAX + 1];
        let count = self.epoll.wait(&mut ready, 0_u8).unwrap_or(0);
        let mut somebody_knocks = false;
        for event in &ready[..count] {
            match event.data() {
                LISTENER => somebody_knocks = true,
                id => self.serve(id, now, backend),
            }
        }
        // Whoever is in the way leaves room for those who come.
        self.clients.retain(|_, client| client.until > now);
        if self.rests_until.is_some_and(|until| until <= now) {
            self.rests_until = None;
            self.watch_listener(EpollFlags::EPOLLIN);
        }
        if somebody_knocks {
            self.accept(now);
        }
    }

    fn watch_listener(&self, events: EpollFlags) {
        let _ = self.epoll.modify(&self.listener, &mut EpollEvent::new(events, LISTENER));
    }

    fn accept(&mut self, now: Instant) {
        // One a turn: the listener is still readable if there are more.
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
            // Looking again at once would be a spin.
            Err(_) => {
                self.rests_until = Some(now + REST);
                return self.watch_listener(EpollFlags::empty());
            }
        };
        let may_ask = getsockopt(&stream, PeerCredentials)
            .is_ok_and(|who| who.uid() == 0 || who.uid() == nix::unistd::geteuid().as_raw());
        if !may_ask || self.clients.len() >= CLIENTS_MAX || stream.set_nonblocking(true).is_err() {
            return;
        }
        let id = self.next_id;
        if self.epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, id)).is_ok() {
            self.next_id += 1;
            let (input, output) = (Vec::new(), Vec::new());
            self.clients.insert(id, Client { stream, input, output, written: 0, until: now + PATIENCE });
        }
    }

    fn serve(&mut self, id: u64, now: Instant, backend: &mut dyn Backend) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let stays = client.progress(now, backend).is_ok_and(|stays| stays);
        // A client that does not take its answer is not read either: what it asks for is bounded.
        let wanted = if client.output.is_empty() { EpollFlags::EPOLLIN } else { EpollFlags::EPOLLOUT };
        if !stays || self.epoll.modify(&client.stream, &mut EpollEvent::new(wanted, id)).is_err() {
            self.clients.remove(&id);
        }
    }
}

impl Client {
    /// Says whether it stays.
    fn progress(&mut self, now: Instant, backend: &mut dyn Backend) -> io::Result<bool> {
        let mut ended = false;
        if self.output.is_empty() {
            let mut buffer = [0; LINE_BYTES_MAX];
            match self.stream.read(&mut buffer) {
                Ok(0) => ended = true,
                Ok(count) => {
                    self.until = now + PATIENCE;
                    self.input.extend_from_slice(&buffer[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        loop {
            self.write(now)?;
            if !self.output.is_empty() {
                return Ok(true);
            }
            let Some(newline) = self.input.iter().position(|&byte| byte == b'\n') else { break };
            let line: Vec<u8> = self.input.drain(..=newline).collect();
            self.reply(answer(&line, backend));
        }
        if self.input.len() > LINE_BYTES_MAX {
            self.reply(line_of(&Answer::<()>::Error("the request is too long".into())));
            self.write(now)?;
            return Ok(false);
        }
        Ok(!ended)
    }

    fn reply(&mut self, answer: Vec<u8>) {
        (self.output, self.written) = (answer, 0);
    }

    fn write(&mut self, now: Instant) -> io::Result<()> {
        while let Some(rest) = self.output.get(self.written..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(count) => {
                    self.until = now + PATIENCE;
                    self.written += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.reply(Vec::new());
        Ok(())
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // If it cannot be removed, the next start finds that nobody listens on it.
        let _ = fs::remove_file(&self.path);
    }
}

fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            match UnixStream::connect(path) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)?,
                _ => bail!("another beelined is running, or something else has this name"),
            }
            UnixListener::bind(path)?
        }
        result => result?,
    };
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
