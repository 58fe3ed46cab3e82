//! The birth of a relay's process.
//!
//! 1. It is nobody's child: the app makes a *midwife* that shares its memory and runs on a stack of its own, and the
//!    midwife makes the relay and ends. A midwife reports its end by no signal, and wait(2) finds it only if asked for
//!    such children (`__WCLONE`), which is how it is reaped here. An app that orphans come to (process 1, subreapers)
//!    would get the relay for a child in the end; there it is one from the beginning, of the midwife's quiet kind, and
//!    reaped when the next one is made.
//! 2. libc learns nothing: no fork handler runs, and neither process calls libc, except for its routines that copy and
//!    fill memory. From the app's memory the relay uses what stood still when it was copied: the lane, the side, its
//!    [`Task`], this library's code and settled statics.
//! 3. All signals are blocked from before the first clone, and stay so in the relay, which leads a session of its own.
//!    It ends when both ends of its connection have; nothing but SIGKILL ends it earlier, unless no program has the
//!    connection any more ([`super::pump`]).
//! 4. The relay closes all descriptors but its own before the app goes on, so that no end of anything stays open
//!    longer for its sake, and unmaps all memory that it does not need, so that none of the app's is kept alive.
//! 5. The app waits until the relay says that it is [ready](READY), for as long as it lives, and for
//!    [`PATIENCE_NS`] at most: whoever closes a file may have to wait for its file system (FUSE). Then it
//!    [gives up](GIVEN_UP), and the relay finds that it is not wanted: one of the two is first, and the other one sees
//!    it. The midwife shares the app's descriptors, so its end closes none.
//! 6. A file that was put aside the relay keeps ([`beeline_guest::aside`]). Its end closes that, after all that is the
//!    connection's.

use core::arch::asm;
use core::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use beeline_shm::Fd;
use beeline_shm::sys::{self, call};
use beeline_stats::Reason;

use super::pump::Relay;
use crate::birth::{adopts_orphans, with_signals_blocked};
use crate::{Errno, kernel, shed};

/// Bytes of the stack on which midwife and relay run.
const STACK_BYTES: usize = 64 * 1024;
/// Bytes of the memory that app and relay share, of which they use one word.
const WORD_BYTES: usize = 4096;

/// What the word says: nothing yet, that the relay is on its own, or that it is not wanted any more.
const NOTHING: u32 = 0;
const READY: u32 = 1;
const GIVEN_UP: u32 = 2;

/// How long a relay may take to be ready: more than any does that is not held up.
const PATIENCE_NS: u64 = 10_000_000_000;
/// How often it is looked whether it lives.
const LOOK_NS: i64 = 20_000_000;

/// What a relay is to do.
pub(super) struct Task {
    /// The descriptors it keeps.
    pub fds: [i32; 5],
    /// Memory it keeps: address and length.
    pub memory: [(usize, usize); 2],
    /// What it does with them.
    pub relay: Relay,
}

/// What midwife and relay find at the bottom of their stack.
struct Birth {
    task: Task,
    stack: usize,
    /// The word that app and relay share.
    word: *const AtomicU32,
    /// Whether the relay is to be the app's child.
    kept: bool,
    /// The relay, as its midwife tells.
    relay: AtomicI32,
}

/// Relays that are children of this process: as many as there were at a time.
struct Children {
    places: [AtomicI32; PLACES],
    more: AtomicPtr<Children>,
}

/// Few relays end up as such a process's children at a time, and the first ones lie among the statics that each fork
/// copies.
const PLACES: usize = 62;

static CHILDREN: Children = Children::none();

impl Children {
    const fn none() -> Self {
        Self { places: [const { AtomicI32::new(0) }; PLACES], more: AtomicPtr::new(core::ptr::null_mut()) }
    }

    fn more(&self) -> Option<&'static Self> {
        // SAFETY: null, or memory that stays for ever.
        unsafe { self.more.load(Acquire).as_ref() }
    }

    /// More places, which are made if there are none.
    fn with_more(&self) -> Option<&'static Self> {
        self.more().or_else(|| {
            let fresh = sys::map_private(size_of::<Self>()).ok()?;
            // A fresh mapping is zeroed, as those are that hold none.
            let made = self.more.compare_exchange(core::ptr::null_mut(), fresh.cast(), AcqRel, Acquire);
            if made.is_err() {
                // SAFETY: nobody knows of it.
                unsafe { sys::unmap(fresh, size_of::<Self>()) };
            }
            self.more()
        })
    }

    /// Reaps those that have ended.
    fn reap(&self) {
        for place in &self.places {
            let child = place.load(Relaxed);
            if child != 0 {
                let args = [child as usize, 0, (libc::__WCLONE | libc::WNOHANG) as usize, 0, 0, 0];
                // SAFETY: no status is asked for.
                if unsafe { call(libc::SYS_wait4, args) } != Ok(0) {
                    let _ = place.compare_exchange(child, 0, Relaxed, Relaxed);
                }
            }
        }
    }

    fn take_in(&self, relay: i32) -> bool {
        self.places.iter().any(|place| place.compare_exchange(0, relay, Relaxed, Relaxed).is_ok())
    }
}

impl Birth {
    fn word(&self) -> &AtomicU32 {
        // SAFETY: zeroed memory, which makes a valid atomic. The app unmaps it after the birth, and the relay when it
        // has said its word.
        unsafe { &*self.word }
    }

    /// The first one to say what becomes of the relay says it. Whether that was the caller.
    fn say(&self, what: u32) -> bool {
        self.word().compare_exchange(NOTHING, what, AcqRel, Acquire).is_ok()
    }
}

/// Starts a relay.
pub(super) fn start(task: Task) -> Result<(), Reason> {
    let word = sys::map_shared_anonymous(WORD_BYTES).map_err(|_| Reason::MemoryShort)?;
    let started = start_with(task, word.cast());
    // SAFETY: the relay has a mapping of its own, and nobody here uses it any more.
    unsafe { sys::unmap(word, WORD_BYTES) };
    started
}

fn start_with(task: Task, word: *const AtomicU32) -> Result<(), Reason> {
    let stack = sys::map_private(STACK_BYTES).map_err(|_| Reason::MemoryShort)?;
    let place = stack.cast::<Birth>();
    // SAFETY: a fresh mapping of whole pages, larger than a `Birth`.
    let birth = unsafe {
        place.write(Birth { task, stack: stack as usize, word, kept: adopts_orphans(), relay: AtomicI32::new(0) });
        &*place
    };
    let started = with_signals_blocked(|| {
        make_midwife(birth)?;
        if comes(birth) { Ok(()) } else { Err(Reason::RelayFailed) }
    });
    // SAFETY: the midwife has ended, and the relay has a copy.
    unsafe { sys::unmap(stack, STACK_BYTES) };
    started
}

/// Reaps the relays among this process's children that have ended, and remembers one more.
fn remember(relay: i32) {
    let mut children = Some(&CHILDREN);
    while let Some(some) = children {
        some.reap();
        children = some.more();
    }
    let mut room = &CHILDREN;
    while !room.take_in(relay) {
        // Without memory it is forgotten.
        let Some(more) = room.with_more() else { return };
        room = more;
    }
}

/// Waits until the relay is ready. False if it never will be.
fn comes(birth: &Birth) -> bool {
    let until_ns = kernel::now_ns().saturating_add(PATIENCE_NS);
    let look = libc::timespec { tv_sec: 0, tv_nsec: LOOK_NS };
    loop {
        // Without a relay nobody would say anything.
        let relay = birth.relay.load(Relaxed);
        if relay > 0 {
            sys::futex(birth.word(), libc::FUTEX_WAIT, NOTHING, Some(&look));
        }
        match birth.word().load(Acquire) {
            NOTHING if relay > 0 && !has_ended(relay) && kernel::now_ns() < until_ns => {}
            NOTHING => return !birth.say(GIVEN_UP),
            _ => return true,
        }
    }
}

fn has_ended(process: i32) -> bool {
    // SAFETY: plain numbers.
    match unsafe { call(libc::SYS_pidfd_open, [process as usize, 0, 0, 0, 0, 0]) } {
        Ok(fd) => {
            let fd = Fd::own(fd as i32);
            kernel::poll_now(fd.get(), libc::POLLIN) & libc::POLLIN != 0
        }
        Err(errno) => errno == Errno(libc::ESRCH),
    }
}

fn make_midwife(birth: &Birth) -> Result<(), Reason> {
    // CLONE_VFORK: this thread sleeps until the midwife has ended.
    let flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES) as usize;
    // SAFETY: a stack of its own, used by nobody else; `midwife` never returns, and `birth` outlives it.
    let pid = unsafe { clone_onto(flags, birth.stack.wrapping_add(STACK_BYTES), midwife, birth) };
    if pid <= 0 {
        return Err(Reason::SystemCallDenied);
    }
    // SAFETY: no status is asked for. Another thread may have reaped it, if it asked for all kinds of children.
    let _ = unsafe { call(libc::SYS_wait4, [pid as usize, 0, libc::__WCLONE as usize, 0, 0, 0]) };
    let relay = birth.relay.load(Relaxed);
    if birth.kept && relay > 0 {
        remember(relay);
    }
    Ok(())
}

/// clone(2) of a process that runs `entry(birth)` on the stack below `top`. Returns its id, or an error as the kernel
/// gives it.
///
/// # Safety
/// `top` must be the end of unused memory, aligned to 16 bytes; what `flags` share must stand that.
#[inline(never)]
unsafe fn clone_onto(flags: usize, top: usize, entry: extern "C" fn(&Birth) -> !, birth: &Birth) -> isize {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the child begins behind `syscall` with all registers but rax, rcx, r11 and rsp as they are, and leaves
    // by `entry`; it touches nothing of the caller's stack but `birth`.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags, in("rsi") top, in("rdx") 0usize, in("r10") 0usize, in("r8") 0usize,
            in("r12") core::ptr::from_ref(birth), in("r13") entry,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x20",
            "blr x21",
            "udf 0",
            "2:",
            inlateout("x0") flags as isize => result,
            in("x1") top, in("x2") 0usize, in("x3") 0usize, in("x4") 0usize,
            in("x8") libc::SYS_clone, in("x20") core::ptr::from_ref(birth), in("x21") entry,
        );
    }
    result
}

/// Makes the relay, and ends.
extern "C" fn midwife(birth: &Birth) -> ! {
    let flags = if birth.kept { libc::CLONE_PARENT as usize } else { 0 };
    // SAFETY: a copy of the memory, with this very stack; the child goes on here as from fork(2).
    let child = unsafe { call(libc::SYS_clone, [flags, 0, 0, 0, 0, 0]) };
    if child == Ok(0) {
        relay(birth);
    }
    birth.relay.store(child.map_or(0, |pid| pid as i32), Relaxed);
    end()
}

fn relay(birth: &Birth) -> ! {
    let task = &birth.task;
    // SAFETY: no arguments.
    let _ = unsafe { call(libc::SYS_setsid, [0; 6]) };
    let name = c"beeline-relay".as_ptr() as usize;
    // SAFETY: a NUL-terminated literal.
    let _ = unsafe { call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name, 0, 0, 0, 0]) };
    // SAFETY: a NUL-terminated literal. No file system of the app's stays busy.
    let _ = unsafe { call(libc::SYS_chdir, [c"/".as_ptr() as usize, 0, 0, 0, 0, 0]) };
    shed::descriptors(&mut task.fds.clone());
    if birth.say(READY) {
        sys::futex(birth.word(), libc::FUTEX_WAKE, 1, None);
        let [lane, side] = task.memory;
        shed::memory(&[lane, side, (birth.stack, STACK_BYTES)]);
        task.relay.pump();
    }
    for fd in task.fds {
        let _ = sys::close(fd);
    }
    end()
}

fn end() -> ! {
    loop {
        // SAFETY: ends this process, which has one thread.
        let _ = unsafe { call(libc::SYS_exit_group, [0; 6]) };
    }
}

#[cfg(test)]
mod tests;
