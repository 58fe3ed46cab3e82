//! Numbers as the names that people know.

/// `EAGAIN` for 11, and so on.
#[must_use]
pub fn errno_name(errno: i32) -> String {
    macro_rules! names {
        ($($name:ident)*) => {
            match errno {
                $(libc::$name => stringify!($name).to_owned(),)*
                other => format!("errno {other}"),
            }
        };
    }
    names!(
        EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV
        ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY EFBIG ENOSPC ESPIPE EROFS EPIPE EDOM ERANGE EDEADLK ENOSYS ELOOP
        EPROTO EBADMSG EOVERFLOW ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT
        EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED
        ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH
        EALREADY EINPROGRESS ECANCELED
    )
}

fn mask_name(mask: u32, table: &[(u32, &str)]) -> String {
    let mut rest = mask;
    let mut names: Vec<String> = Vec::new();
    for (bit, name) in table {
        if rest & bit != 0 {
            names.push((*name).to_owned());
            rest &= !bit;
        }
    }
    if rest != 0 {
        names.push(format!("{rest:#x}"));
    }
    match names.is_empty() {
        true => "0".to_owned(),
        false => names.join("|"),
    }
}

/// `IN|RDHUP` for the events of `poll`.
#[must_use]
pub fn poll_name(events: i16) -> String {
    let table = [
        (libc::POLLIN, "IN"),
        (libc::POLLPRI, "PRI"),
        (libc::POLLOUT, "OUT"),
        (libc::POLLRDHUP, "RDHUP"),
        (libc::POLLERR, "ERR"),
        (libc::POLLHUP, "HUP"),
        (libc::POLLNVAL, "NVAL"),
        (libc::POLLRDNORM, "RDNORM"),
        (libc::POLLWRNORM, "WRNORM"),
        (libc::POLLRDBAND, "RDBAND"),
        (libc::POLLWRBAND, "WRBAND"),
    ];
    mask_name(events as u16 as u32, &table.map(|(bit, name)| (bit as u16 as u32, name)))
}

/// `IN|ET` for the events of `epoll_ctl` and `epoll_wait`.
#[must_use]
pub fn epoll_name(events: u32) -> String {
    let table = [
        (libc::EPOLLIN, "IN"),
        (libc::EPOLLPRI, "PRI"),
        (libc::EPOLLOUT, "OUT"),
        (libc::EPOLLRDHUP, "RDHUP"),
        (libc::EPOLLERR, "ERR"),
        (libc::EPOLLHUP, "HUP"),
        (libc::EPOLLRDNORM, "RDNORM"),
        (libc::EPOLLWRNORM, "WRNORM"),
        (libc::EPOLLET, "ET"),
        (libc::EPOLLONESHOT, "ONESHOT"),
        (libc::EPOLLEXCLUSIVE, "EXCLUSIVE"),
        (libc::EPOLLWAKEUP, "WAKEUP"),
    ];
    mask_name(events, &table.map(|(bit, name)| (bit as u32, name)))
}

/// `PEEK|DONTWAIT` for the flags of `send` and `recv`.
#[must_use]
pub fn message_flags_name(flags: i32) -> String {
    let table = [
        (libc::MSG_OOB, "OOB"),
        (libc::MSG_PEEK, "PEEK"),
        (libc::MSG_TRUNC, "TRUNC"),
        (libc::MSG_CTRUNC, "CTRUNC"),
        (libc::MSG_DONTWAIT, "DONTWAIT"),
        (libc::MSG_EOR, "EOR"),
        (libc::MSG_WAITALL, "WAITALL"),
        (libc::MSG_NOSIGNAL, "NOSIGNAL"),
        (libc::MSG_MORE, "MORE"),
        (libc::MSG_WAITFORONE, "WAITFORONE"),
        (libc::MSG_CMSG_CLOEXEC, "CMSG_CLOEXEC"),
        (libc::MSG_ERRQUEUE, "ERRQUEUE"),
        (libc::MSG_CONFIRM, "CONFIRM"),
        (libc::MSG_DONTROUTE, "DONTROUTE"),
    ];
    mask_name(flags as u32, &table.map(|(bit, name)| (bit as u32, name)))
}

/// `SIGPIPE` for 13, and so on.
#[must_use]
pub fn signal_name(signal: i32) -> String {
    macro_rules! names {
        ($($name:ident)*) => {
            match signal {
                $(libc::$name => stringify!($name).to_owned(),)*
                other => format!("signal {other}"),
            }
        };
    }
    names!(SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2 SIGPIPE SIGALRM
        SIGTERM SIGCHLD SIGCONT SIGSTOP SIGURG SIGIO)
}
