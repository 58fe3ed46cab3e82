//! `epoll` as the workers use it.

use std::os::fd::AsFd;

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

pub struct Poller {
    epoll: Epoll,
    events: Vec<EpollEvent>,
}

impl Poller {
    /// A set whose waits return at most `events_max` events.
    pub fn new(events_max: usize) -> Result<Self> {
        Ok(Poller {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            events: vec![EpollEvent::empty(); events_max],
        })
    }

    /// Level-triggered, readable.
    pub fn add(&self, fd: &impl AsFd, token: u64) -> Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
        Ok(self.epoll.add(fd, event)?)
    }

    /// Edge-triggered, readable and writable.
    pub fn add_edge_both(&self, fd: &impl AsFd, token: u64) -> Result<()> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        Ok(self.epoll.add(fd, EpollEvent::new(flags, token))?)
    }

    pub fn remove(&self, fd: &impl AsFd) -> Result<()> {
        Ok(self.epoll.delete(fd)?)
    }

    /// Waits without a limit. Returns the number of events; again after EINTR.
    pub fn wait(&mut self) -> Result<usize> {
        loop {
            match self.epoll.wait(&mut self.events, EpollTimeout::NONE) {
                Ok(count) => return Ok(count),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// The token of event `index` of the last wait.
    pub fn token(&self, index: usize) -> u64 {
        self.events[index].data()
    }
}
