//! The bits of epoll_ctl(2), as it has them.

pub(super) const EPOLLIN: u32 = libc::EPOLLIN as u32;
pub(super) const EPOLLOUT: u32 = libc::EPOLLOUT as u32;
pub(super) const EPOLLPRI: u32 = libc::EPOLLPRI as u32;
pub(super) const EPOLLRDHUP: u32 = libc::EPOLLRDHUP as u32;
pub(super) const EPOLLERR: u32 = libc::EPOLLERR as u32;
pub(super) const EPOLLHUP: u32 = libc::EPOLLHUP as u32;
pub(super) const EPOLLRDNORM: u32 = libc::EPOLLRDNORM as u32;
pub(super) const EPOLLWRNORM: u32 = libc::EPOLLWRNORM as u32;
/// Events that say of a connection that there are bytes, or its end.
pub(super) const READABLE: u32 = EPOLLIN | EPOLLRDNORM;
/// Likewise that there is room.
pub(super) const WRITABLE: u32 = EPOLLOUT | EPOLLWRNORM;
/// What the kernel wakes pollers for when data arrives (sock_def_readable()).
pub(super) const ARRIVAL: u32 = READABLE | (libc::EPOLLPRI | libc::EPOLLRDBAND) as u32;
pub(super) const EPOLLET: u32 = libc::EPOLLET as u32;
pub(super) const EPOLLONESHOT: u32 = libc::EPOLLONESHOT as u32;
