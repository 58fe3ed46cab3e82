//! Lending connections to another program.
//!
//! An end of a connection consists of its anchor, which the kernel hands on by itself, and of the *parts*: the side's
//! memfd, the lane's memfd, and perhaps the TCP socket that holds the port of an explicit bind. Parts are hidden
//! descriptors and close-on-exec. A program that gets the anchor and all parts can go on with the connection, whatever
//! else it knows or does not know.
//!
//! # Rules
//!
//! 1. *The side names the parts* ([`crate::side::Origin`]): cookie of the anchor, identity of the lane's file, cookie
//!    of the holder. It is written before the connection has its first user and not changed afterwards.
//! 2. *A lender counts for the borrower.* Before an anchor can reach another program, its lender locks the
//!    description, marks it shared, so that from now on side locks are taken, adds one to `holders` unless the
//!    program will replace the lender, adds one to `lent`, and clears close-on-exec of the parts, or attaches them to
//!    the message. In this order: a lender that dies in between leaves `holders` too high, which costs the other
//!    holders their bias and nothing else.
//! 3. *A borrower takes a loan* ([`super::adopt`]): it takes one from `lent`, after it has checked all parts. The count
//!    in `holders` is its own from then on. Without a loan to take it leaves the end alone. A borrower that finds the
//!    parts of an end whose anchor did not come takes the loan and gives the count back.
//! 4. *What does not happen is taken back*: when `execve` fails or nothing was spawned, the lender takes one from
//!    `lent`, and if there was one, takes its count back, too. If somebody else has taken it, there is another holder.
//! 5. A program that dies before it has taken a loan, or that has no library, leaves `holders` and `lent` too high.
//!    When the last holder closes, it then says nothing, and the peer learns from the kernel that the end is gone, as
//!    it learns of a process that was killed.
//! 6. A lane that was lent is not used for another connection.
//! 7. *Programs that are started at one time* ([`LENDERS`]) may each get parts that were made inheritable for another
//!    one. So each end whose parts are, and each that is lent meanwhile, is marked, for good ([`state::MIXED`]): who
//!    finds its parts without the anchor leaves the loan, as rule 5 has it, to whom it is for. A child of a `vfork`
//!    marks those that its descriptors tell of, as they were when it was made; that of a `fork` makes all parts
//!    close-on-exec again, for it starts no program yet.
//!
//! # When
//!
//! Whoever starts a program passes one of our hooks, except libc's own calls to libc: `system`, `popen` and
//! `posix_spawn` are hooks themselves and lend in the parent. `execve` and its relatives lend in the process that
//! calls them, which may be the child of a `vfork` with the parent's memory: there the table tells nothing about
//! descriptors, and the kernel is asked which anchors are open.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Relaxed},
};

use super::actions::Actions;
use super::image::Image;
use super::{leaving, open_fds, pairs, stranger};
use crate::changing::changing;
use crate::desc::Desc;
use crate::ending::stand_no_more;
use crate::process::{self, is_guest_of_parent};
use crate::side::{EXPECTED, SideState, state};
use crate::{epoll, kernel, meet, stats, table, watchers};

/// Loans that can be taken back; what goes beyond stays counted.
const RETURNABLE: usize = 32;

/// Programs that are being spawned, or executed: the parts they are lent are not close-on-exec meanwhile.
#[unsafe(link_section = ".fork")]
static LENDERS: AtomicU32 = AtomicU32::new(0);

/// Connections lent to a program that is about to start.
#[must_use]
pub struct Loan {
    lent: [Option<&'static Desc>; RETURNABLE],
    count: usize,
    /// Whether the borrower is another process than the lender.
    to_another: bool,
    /// Whether the lender has left ends that the program does not get.
    has_left: bool,
    /// Whether it is counted in [`LENDERS`].
    counts: bool,
    /// Whether other programs may get the parts, too.
    is_mixed: bool,
}

impl Loan {
    fn new(to_another: bool) -> Self {
        Self { lent: [None; RETURNABLE], count: 0, to_another, has_left: false, counts: false, is_mixed: false }
    }

    /// From now on parts may be made inheritable for it. The caller holds [`changing`].
    fn begin(&mut self) {
        self.counts = true;
        self.is_mixed = LENDERS.fetch_add(1, Relaxed) != 0;
        if self.is_mixed {
            mark_inheritable();
        }
    }

    /// The program is there, or will not be. The caller holds [`changing`].
    fn end(&self) {
        if self.counts && LENDERS.fetch_sub(1, Relaxed) == 1 {
            close_parts_on_exec();
        }
    }

    /// Lends the connection that `fd` leads to, once. The caller holds [`changing`].
    fn lend(&mut self, fd: i32, desc: &'static Desc) {
        if self.has(desc) {
            return;
        }
        if self.is_mixed {
            // Before it is lent: whoever gets the parts finds the mark.
            mark_mixed(desc, |_| true);
        }
        if !lend(fd, desc, self.to_another) {
            return;
        }
        if let Some(place) = self.lent.get_mut(self.count) {
            *place = Some(desc);
        }
        self.count = self.count.saturating_add(1);
        each_part(desc, |part| {
            kernel::set_close_on_exec(part, false);
        });
    }

    fn has(&self, desc: &'static Desc) -> bool {
        self.lent.iter().flatten().any(|other| *other == desc)
    }

    fn take_back(&self) {
        for desc in self.lent.iter().flatten() {
            let _both = desc.lock_both();
            if desc.is_lane() {
                end_loan(desc.side(), self.to_another);
            }
        }
    }
}

/// Marks the ends whose parts a program gets that is started from here and now, whoever they were lent to. The caller
/// holds [`changing`].
fn mark_inheritable() {
    table::for_each(|_, desc| mark_mixed(desc, stays_open));
}

fn mark_mixed(desc: &'static Desc, is_due: impl FnOnce(i32) -> bool) {
    desc.if_lane(|| {
        if desc.side_memfd().is_some_and(is_due) {
            desc.side().mark(state::MIXED);
        }
    });
}

/// Makes a loan of the connection that `fd` leads to, to another process, or to the next program of this one. False if
/// a part is missing.
pub(super) fn lend(fd: i32, desc: &'static Desc, to_another: bool) -> bool {
    let lent = lend_locked(fd, desc, to_another);
    if lent && to_another {
        watchers::disturb(desc.fd.load(Relaxed), desc);
    }
    lent
}

fn lend_locked(fd: i32, desc: &'static Desc, to_another: bool) -> bool {
    let _both = desc.lock_both();
    if !desc.is_lane() || part_fds(desc).is_none() {
        return false;
    }
    let side = desc.side();
    stand_no_more(fd, desc);
    if let Some(lane) = desc.pooled() {
        lane.spoil();
    }
    if to_another {
        desc.shared.store(true, Relaxed);
        side.holders.fetch_add(1, AcqRel);
        // Whoever demotes the connection has to tell both.
        side.join(process::identity());
        side.join(EXPECTED);
    }
    side.origin.lent.fetch_add(1, AcqRel);
    true
}

/// Makes one more loan of an end that is lent already, to one more process that gets its parts.
pub(super) fn lend_again(side: &SideState) {
    if side.origin.lent.fetch_update(AcqRel, Relaxed, |lent| (lent != 0).then(|| lent.saturating_add(1))).is_ok() {
        side.holders.fetch_add(1, AcqRel);
        side.join(EXPECTED);
    }
}

/// Takes a loan out of the way that nobody will take. `counted` tells whether a holder was counted for it.
pub(super) fn end_loan(side: &SideState, counted: bool) {
    if side.take_loan() && counted {
        side.holders.fetch_sub(1, AcqRel);
        side.leave(EXPECTED);
    }
}

/// The parts of an end: side, lane, holder. `None` when one that is needed is not kept. A lock is held.
pub(super) fn part_fds(desc: &Desc) -> Option<(i32, i32, Option<i32>)> {
    let lane = desc.pooled()?;
    Some((desc.side_memfd()?, lane.memfd()?, lane.holder()))
}

/// Whether a program that is spawned gets an end without all its parts.
pub(super) fn loses_parts(desc: &Desc, actions: &Actions) -> bool {
    let mut loses = part_fds(desc).is_none();
    each_part(desc, |part| loses |= actions.sweeps(part) || actions.closes(part));
    loses
}

fn each_part(desc: &Desc, mut f: impl FnMut(i32)) {
    if let Some((side, lane, holder)) = part_fds(desc) {
        f(side);
        f(lane);
        holder.into_iter().for_each(f);
    }
}

/// Before `execve` and its relatives.
pub fn before_exec(image: Image) -> Loan {
    let mut loan = Loan::new(is_guest_of_parent());
    if !process::is_active() {
        return loan;
    }
    pass_listeners_on();
    if !loan.to_another {
        meet::before_end();
        stranger::prepare_exec(image);
        loan.has_left = leaving::before_exec();
        if image != Image::Takes {
            stats::before_strange_program();
        }
    } else {
        stranger::prepare_exec_as_guest(image);
    }
    if image.is_stranger() {
        pairs::mark(stays_open);
    }
    if image != Image::Takes {
        serve_no_more(&loan);
        return loan;
    }
    let _changing = meet::changing_to_share();
    serve_no_more(&loan);
    if loan.to_another {
        mark_inheritable();
        open_fds::each(|fd| {
            if let Some(desc) = stays_open(fd).then(|| by_cookie(fd)).flatten() {
                loan.lend(fd, desc);
            }
        });
    } else {
        loan.begin();
        table::for_each(|fd, desc| {
            if desc.is_lane() && stays_open(fd) {
                loan.lend(fd, desc);
            }
        });
    }
    loan
}

/// Who executes a program himself serves no door any more. That is last: another thread that still waits for clients
/// would begin again.
fn serve_no_more(loan: &Loan) {
    if !loan.to_another {
        table::for_each(|_, desc| meet::stop_serving(desc));
    }
}

/// Listeners of which the app was told, and that the new program gets, are that program's.
fn pass_listeners_on() {
    meet::pass_on(|_, desc| {
        let mut gets = false;
        // It may have got another number in the child of a vfork.
        open_fds::each(|fd| gets |= stays_open(fd) && meet::is_listener(fd, desc));
        gets
    });
}

/// `execve` has failed.
pub fn exec_failed(loan: &Loan) {
    if process::is_active() && !loan.to_another {
        stats::strange_program_failed();
    }
    if loan.has_left {
        leaving::exec_failed();
    }
    if loan.count == 0 && !loan.counts {
        return;
    }
    let _changing = changing();
    loan.take_back();
    // In the child of a vfork this is about descriptors that are about to vanish, and the parent's are as they were.
    loan.end();
}

/// Before a process is spawned by libc. What becomes of descriptors in between, libc alone knows.
pub fn before_spawn(image: Image, actions: &Actions) -> Loan {
    let mut loan = Loan::new(true);
    if !process::is_active() {
        return loan;
    }
    hand_sets_on(actions);
    if is_guest_of_parent() {
        return loan;
    }
    meet::before_fork();
    stranger::prepare_spawn(image, actions);
    if image.is_stranger() {
        // One that is closed by itself may have got another number before.
        pairs::mark(|fd| stays_open(fd) && !actions.sweeps(fd));
    }
    let gets = |fd| stays_open(fd) && !actions.closes(fd) || actions.may_name(fd);
    meet::pass_on(|fd, _| gets(fd));
    let _changing = meet::changing_to_share();
    loan.begin();
    if image == Image::Takes {
        table::for_each(|fd, desc| {
            if desc.is_lane() && gets(fd) {
                loan.lend(fd, desc);
            }
        });
    }
    loan
}

/// A list of actions gives a program also what is close-on-exec.
fn hand_sets_on(actions: &Actions) {
    if actions.names_any() {
        table::for_each(|fd, desc| {
            if actions.may_name(fd) {
                epoll::hand_on(desc);
            }
        });
    }
}

/// After it.
pub fn after_spawn(loan: &Loan, spawned: bool) {
    if !process::is_active() || !loan.counts {
        return;
    }
    let _changing = changing();
    if !spawned {
        loan.take_back();
    }
    loan.end();
}

/// In the child of a `fork`: no program is being started here, and none that will be gets what others were lent.
pub(super) fn reset_after_fork() {
    if LENDERS.load(Relaxed) != 0 {
        LENDERS.store(0, Relaxed);
        close_parts_on_exec();
    }
}

fn close_parts_on_exec() {
    table::for_each(|_, desc| {
        if desc.is_lane() {
            each_part(desc, |part| {
                kernel::set_close_on_exec(part, true);
            });
        }
    });
}

/// Whether a descriptor survives `execve`.
pub(super) fn stays_open(fd: i32) -> bool {
    kernel::is_close_on_exec(fd) == Ok(false)
}

/// The connection whose anchor `fd` is, whatever the table says of the number. Mostly it says the same, and what is no
/// anchor's kind of socket is none: the whole table is gone through for few.
pub(super) fn by_cookie(fd: i32) -> Option<&'static Desc> {
    let cookie = kernel::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE).ok()?;
    let is_its = |desc: &Desc| desc.is_lane() && desc.side().origin.anchor_cookie.load(Relaxed) == cookie;
    if let Some(desc) = table::get(fd).filter(|desc| is_its(desc)) {
        return Some(desc);
    }
    let family = kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
    let found = (family == Ok(libc::AF_UNIX)).then(|| table::first(|_, desc| is_its(desc))).flatten();
    found.map(|(_, desc)| desc)
}
