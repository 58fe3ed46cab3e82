//! What stands between the bridge and the host it runs on: signals, the administrator's socket, systemd, the user.
//!
//! The order of a start: [`Prepared::new`] blocks the signals and does what only root may do; the control plane reads
//! its key and binds its ports; [`Prepared::open`] makes the process the configured user and opens the administrator's
//! socket; then rails are opened, as that user; then [`crate::notify::ready`].

#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::admin::{Admin, Backend};
use crate::config::Config;
use crate::log;
use crate::user::User;

/// A start that still has the power it was given.
pub struct Prepared {
    signals: SignalFd,
    admin_socket: PathBuf,
    user: Option<User>,
}

/// Signals and the administrator. It works as [`crate::control::Control`] does: [`Self::as_fd`] is readable, or
/// [`Self::deadline`] has come, when there is something to do in [`Self::turn`].
pub struct Front {
    epoll: Epoll,
    signals: SignalFd,
    admin: Admin,
}

/// Whether the bridge goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Flow {
    /// It does.
    Continue,
    /// It was told to stop.
    Stop,
}

impl Prepared {
    /// Blocks the signals, and makes what the bridge's user may not be able to make.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            mask.add(signal);
        }
        mask.thread_block().context("cannot block signals")?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .context("cannot make a descriptor for signals")?;
        let user = User::to_become(config.user.as_deref())?;
        Admin::make_directory(&config.admin_socket, user.as_ref())?;
        if config.user.is_none() && !nix::unistd::geteuid().is_root() {
            log::line("programs will not trust this bridge: root's configuration must name its `user`");
        }
        Ok(Self { signals, admin_socket: config.admin_socket.clone(), user })
    }

    /// Becomes the user of the configuration, if the process is another, and opens the administrator's socket. What
    /// only root may open is open by then.
    pub fn open(self) -> anyhow::Result<Front> {
        if let Some(user) = &self.user {
            user.become_it()?;
            log::line(format_args!("runs as `{}` from here on", user.name()));
        }
        let admin = Admin::new(&self.admin_socket)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&self.signals, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        epoll.add(admin.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
        Ok(Front { epoll, signals: self.signals, admin })
    }
}

impl Front {
    /// Readable when [`Self::turn`] has something to do.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// When [`Self::turn`] has something to do, even if the descriptor is silent.
    pub fn deadline(&self) -> Option<Instant> {
        self.admin.deadline()
    }

    /// Heeds signals, and answers the administrator.
    pub fn turn(&mut self, now: Instant, backend: &mut dyn Backend) -> Flow {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            match Signal::try_from(signal.ssi_signo.cast_signed()) {
                Ok(Signal::SIGHUP) => {}
                // The first one is asked for politely.
                Ok(Signal::SIGTERM) if backend.drain() => continue,
                _ => return Flow::Stop,
            }
            match backend.reload() {
                Ok(complaints) => {
                    log::line("the trusted certificates were read again");
                    complaints.iter().for_each(log::line);
                }
                Err(error) => log::line(format_args!("nothing was read again: {error}")),
            }
        }
        self.admin.turn(now, backend);
        Flow::Continue
    }
}
