//! Connections for programs without the library.
//!
//! What such a program holds must be a TCP socket, so the connection is demoted before the program can get it
//! ([`demote`]). That is done
//!
//! 1. for a standard descriptor (0 to 2) of a program that is executed or spawned, with the library or without: libc's
//!    streams read and write past any hook. In the child of a `vfork`, whose parent keeps the connection, too, that has
//!    a way of its own ([`super::relay::guest`]);
//! 2. for any descriptor that survives `execve` into a program that will not have the library, if nobody else holds the
//!    connection: then it can only be meant for that program. The same if that program will have the library and the
//!    lane's memory cannot go along, because its descriptors were not kept. The parent of a process that was forked for
//!    the program may not have closed its own yet, so if there is one connection it is given a moment ([`LET_GO_NS`]).
//!    In the child of a `vfork`, whose parent has its own for as long, the only one is meant;
//! 3. for a descriptor that a list of actions gives to a spawned program, in the same two cases; and for each that such
//!    a program gets with the library, if the list closes hidden descriptors ([`super::actions`]);
//! 4. for a descriptor that is sent to a process which may not have the library;
//! 5. for one that becomes a standard descriptor of this program, be it by `dup2` or by `accept`: the streams are there
//!    already (`dup2(connection, 1)`, then `printf`, as a shell does it for its own commands). The same for a number
//!    that another stream has, by `dup2` ([`give_to_stream`]).
//!
//! Where it cannot be done, a program with the library has the end as any other (rules 1 and 5). One without fails to
//! use it: what it would have said is lost, so the connection is reset, at once ([`give_up`]) or, where it is sent
//! (rule 4), when all have closed it. The number of which it was only guessed that it is meant (rule 2) in the child of
//! a `vfork` is left alone.
//!
//! It is not done for descriptors that other holders go on using and that merely leak into a program: their connection
//! would be slow for nothing.

use core::sync::atomic::Ordering::Acquire;

use beeline_lane::End;
use beeline_shm::Fd;
use beeline_stats::{Reason, Role};

use super::actions::Actions;
use super::handover::{by_cookie, loses_parts, part_fds, stays_open};
use super::image::Image;
use super::open_fds;
use super::relay::guest;
use crate::birth::with_signals_blocked;
use crate::changing::changing;
use crate::desc::{Desc, Kind};
use crate::{ending, kernel, meet, options, orphan, process, stats, table, watchers};

/// Puts a TCP connection in a lane's place, under all fds of this process. False where that cannot be: no relay serves
/// the other end.
pub(super) fn demote(fd: i32, desc: &'static Desc) -> bool {
    super::relay::demote(fd, desc).is_ok()
}

/// As [`demote`], for an end that is sent to a process which may not have the library. If it cannot be, the end fails
/// in the hands of such a process, and when all have closed it, the peer sees a reset and not a stream that ended well.
pub(super) fn give_away(fd: i32, desc: &'static Desc) {
    if !demote(fd, desc) {
        fail_at_end(desc);
    }
}

/// Ends a connection that a program without the library is about to get, and of which no relay could be made, in the
/// eyes of its peer and of all who share it: what the program says would be lost, and nobody would know. The program
/// gets a socket that is not connected.
fn give_up(fd: i32, desc: &'static Desc) {
    fell_back(desc);
    ending::cut(desc, libc::ECONNRESET);
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let Ok(socket) = kernel::socket(libc::AF_INET, kind, 0) else { return };
    let socket = Fd::own(socket as i32);
    let _changing = changing();
    if !table::leads_to(fd, desc) || !matches!(desc.kind(), Kind::Lane | Kind::Orphan) {
        return;
    }
    watchers::while_out(fd, desc, || {
        let _both = desc.lock_both();
        if table::put_under(fd, desc, socket.get()) && desc.is_lane() {
            meet::spoil_lane(desc);
            // Others may demote what is left of it.
            desc.side().leave(process::identity());
            desc.mark_orphan();
        }
    });
}

fn fell_back(desc: &Desc) {
    if desc.is_lane() {
        let role = if desc.end() == End::Client { Role::Client } else { Role::Server };
        stats::fell_back(role, Reason::RelayFailed);
    }
}

/// When all have closed the connection, the peer is to see a reset.
fn fail_at_end(desc: &'static Desc) {
    let _both = desc.lock_both();
    if desc.is_lane() {
        desc.side().linger.set(Some(0));
    }
}

/// Before this process becomes another program.
pub(super) fn prepare_exec(image: Image) {
    let mut let_go = LetGo { left_ns: LET_GO_NS };
    let mut is_only_one = None;
    table::for_each(|fd, desc| {
        if !desc.is_lane() || !stays_open(fd) {
            return;
        }
        let parts_stay = image == Image::Takes && part_fds(desc).is_none();
        let mut is_meant = || {
            // Of many that stay open most are a server's, which keeps them.
            is_held_here_alone(desc) || *is_only_one.get_or_insert_with(one_stays_open) && let_go.of(desc)
        };
        let is_for_it = is_standard(fd) || (parts_stay || image != Image::Takes) && is_meant();
        if is_for_it && !demote(fd, desc) && image != Image::Takes {
            give_up(fd, desc);
        }
    });
}

/// Whether one number of a lane that is no standard descriptor survives `execve`, and no other.
fn one_stays_open() -> bool {
    let mut staying = 0u32;
    table::for_each(|fd, desc| staying += u32::from(desc.is_lane() && !is_standard(fd) && stays_open(fd)));
    staying == 1
}

/// The same in the child of a `vfork`, whose standard descriptors are meant for the program. What else it has open is
/// its parent's, too.
pub(super) fn prepare_exec_as_guest(image: Image) {
    with_signals_blocked(|| {
        let _changing = changing();
        for fd in (0..=2).filter(|fd| stays_open(*fd)) {
            match by_cookie(fd) {
                Some(desc) => demote_or_give_up(fd, desc, image),
                None if orphan::is_anchor(fd) => guest::disown(fd),
                None => {}
            }
        }
        if image.is_stranger()
            && let Some((fd, desc)) = the_one_that_stays_open()
        {
            let _ = guest::demote(fd, desc);
        }
    });
}

/// For a standard descriptor in the child of a `vfork`. A program with the library has the end as any other where it
/// cannot be demoted.
fn demote_or_give_up(fd: i32, desc: &'static Desc, image: Image) {
    if guest::demote(fd, desc).is_err() && image != Image::Takes {
        fell_back(desc);
        ending::cut_at(fd, desc, libc::ECONNRESET);
        guest::disown(fd);
    }
}

/// The number of a lane that is no standard descriptor and survives `execve`, if there is one alone, in the child of a
/// `vfork`.
fn the_one_that_stays_open() -> Option<(i32, &'static Desc)> {
    let (mut first, mut others) = (None, false);
    open_fds::each(|fd| {
        if !others && !is_standard(fd) && stays_open(fd) {
            match by_cookie(fd) {
                Some(desc) if first.is_none() => first = Some((fd, desc)),
                Some(_) => others = true,
                None => {}
            }
        }
    });
    first.filter(|_| !others)
}

fn is_held_here_alone(desc: &'static Desc) -> bool {
    // Another thread may have closed it: what is none any more is not meant.
    desc.if_lane(|| desc.side().holders.load(Acquire) <= 1).unwrap_or(false)
}

/// How long others may take to let go of connections, all together, and how often that is looked for.
const LET_GO_NS: i64 = 20_000_000;
const LOOK_NS: i64 = 200_000;

/// The time that is left to them.
struct LetGo {
    left_ns: i64,
}

impl LetGo {
    /// Whether they let go of this one.
    fn of(&mut self, desc: &'static Desc) -> bool {
        while self.left_ns > 0 && !is_held_here_alone(desc) {
            kernel::sleep_ns(LOOK_NS);
            self.left_ns = self.left_ns.saturating_sub(LOOK_NS);
        }
        is_held_here_alone(desc)
    }
}

/// Before a program is spawned. Its list of actions may close parts, and nothing else that it has: no end that it gets
/// merely leaks then.
pub(super) fn prepare_spawn(image: Image, actions: &Actions) {
    table::for_each(|fd, desc| {
        if !desc.is_lane() {
            return;
        }
        let standard = actions.names_for_stdio(fd) || is_standard(fd) && stays_open(fd);
        let loses_parts = loses_parts(desc, actions);
        let is_meant = actions.may_name(fd)
            || part_fds(desc).is_some() && image == Image::Takes && stays_open(fd) && !actions.closes(fd);
        let is_due = standard || is_meant && (image != Image::Takes || loses_parts);
        let gets_it = standard || actions.names(fd);
        if is_due && !demote(fd, desc) && gets_it && image != Image::Takes {
            give_up(fd, desc);
        }
    });
}

/// `fd` has just become a connection's, or that of a socket which may become one.
pub(crate) fn demote_if_stream(fd: i32) {
    let Some(desc) = table::get(fd).filter(|_| is_standard(fd)) else { return };
    match desc.kind() {
        Kind::Lane => demote_for_stream(fd, desc),
        Kind::Tcp => options::block(desc, Reason::StdioDescriptor),
        _ => {}
    }
}

/// A stream of libc's own has the number of this lane. If that cannot be given up, because another thread sleeps on it,
/// what the stream says is lost and its peer reset: it is counted.
fn demote_for_stream(fd: i32, desc: &'static Desc) {
    if !demote(fd, desc) {
        fell_back(desc);
    }
}

/// The same by the number.
pub fn give_to_stream(fd: i32) {
    if let Some(desc) = table::get(fd).filter(|desc| desc.is_lane()) {
        demote_for_stream(fd, desc);
    }
}

fn is_standard(fd: i32) -> bool {
    (0..=2).contains(&fd)
}
