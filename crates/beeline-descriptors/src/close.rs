//! How descriptions end: whoever takes the last number away from one gives it back.

use core::sync::atomic::Ordering::Relaxed;

use crate::changing::Changing;
use crate::desc::{Desc, Kind};
use crate::process::is_guest_of_parent;
use crate::{changing, linger, slots, table, watchers};

/// A description that an fd no longer leads to.
#[must_use]
pub struct Settled {
    desc: &'static Desc,
    /// Whether that was its last fd.
    last: bool,
}

impl Settled {
    /// Gives the description back, once the kernel has closed the fd.
    pub fn finish(self) {
        if self.last {
            self.desc.give_if_unused();
        } else if self.desc.keepers.lingers() {
            // The calls that wanted it may have ended before they could see that they are to close it.
            linger::end_lingering(self.desc);
        }
    }
}

/// Keeps out what might change `fd`, which leads to `desc`, or another number that leads there: what leads elsewhere
/// changes meanwhile, but in a `fork`.
#[unsafe(link_section = ".text.served")]
pub fn changing_of(fd: i32, desc: &'static Desc) -> Changing {
    let one = changing::changing_number(fd);
    // It gets no second number meanwhile: a duplicate is a whole change.
    if desc.keepers.has_last_number() {
        return one;
    }
    drop(one);
    changing::changing()
}

/// Makes `fd`, which leads to `desc`, lead nowhere. If it was the last fd, `desc` ends. The kernel's close
/// is still to come. The caller holds [`changing_of`], or `changing::changing`.
#[unsafe(link_section = ".text.served")]
pub fn settle(fd: i32, desc: &'static Desc) -> Settled {
    settle_with(fd, desc, Next::NOTHING, &mut || {})
}

/// What a number is to lead to.
#[derive(Clone, Copy)]
pub struct Next {
    /// The description, if it is one of ours.
    pub desc: Option<&'static Desc>,
    /// Whether those who use it may wait for the change.
    pub is_kept: bool,
}

impl Next {
    /// It is closed.
    pub const NOTHING: Self = Self { desc: None, is_kept: false };
}

/// Makes `fd`, which leads to `desc`, lead to what is next, here and, by `change`, in the kernel. If it was the last
/// fd, `desc` ends. The table and the kernel change while nobody uses what `fd` leads to: a thread that finds it there
/// rings where it has written. If `desc` ends and nothing follows, the kernel's change, which gives the number free,
/// comes after all else. The caller holds `changing::changing`, or [`changing_of`] where nothing follows.
#[unsafe(link_section = ".text.served")]
pub fn settle_with(fd: i32, desc: &'static Desc, next: Next, change: &mut dyn FnMut()) -> Settled {
    watchers::forget(fd, desc);
    let last = desc.keepers.has_last_number();
    if last {
        (desc.operations.get().close)(desc);
    }
    let at_end = last && next.desc.is_none();
    {
        // Whoever holds a lock of the description uses the number.
        let _of_next = next.desc.filter(|_| next.is_kept).map(Desc::lock_both);
        let _both = (!last).then(|| desc.lock_both());
        // Cannot fail: the entry exists.
        let _ = table::set(fd, next.desc);
        if !at_end {
            change();
        }
    }
    if last {
        end_last(fd, desc);
    }
    if at_end {
        change();
    }
    Settled { desc, last }
}

/// The kernel has given `fd` to something new. If it led to a description, the app closed it behind our back.
pub fn fd_reborn(fd: i32) {
    if table::get(fd).is_some() && !is_guest_of_parent() {
        let _changing = changing::changing();
        forget_stale(fd);
    }
}

/// Keeps out what might change `fd`, which the kernel has just given to something new, and ends what it led to.
pub fn changing_reborn(fd: i32) -> Changing {
    let one = changing::changing_number(fd);
    if table::get(fd).is_none() {
        return one;
    }
    // Other numbers may lead there, and who changes those is to see that this one is gone, as the last ends it.
    drop(one);
    let whole = changing::changing();
    forget_stale(fd);
    whole
}

/// Ends what `fd` led to, which the kernel has closed already. The caller holds `changing::changing`.
pub fn forget_stale(fd: i32) {
    let Some(desc) = table::get(fd) else { return };
    watchers::forget(fd, desc);
    let last = desc.keepers.has_last_number();
    if last {
        // The number is a stranger's by now, who is not to be asked, nor shut down.
        desc.fd.store(-1, Relaxed);
        (desc.operations.get().close)(desc);
    }
    let _ = table::set(fd, None);
    if last {
        end_last(fd, desc);
        desc.give_if_unused();
    }
}

/// `fd`, the last number, leads to `desc` no more.
#[unsafe(link_section = ".text.served")]
fn end_last(fd: i32, desc: &'static Desc) {
    // Another thread may have put it into a set in between.
    watchers::forget_last(fd, desc);
    slots::close_slot(desc);
    desc.become_kind(Kind::Closed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desc::DESCS;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_number_changes_in_table_and_kernel_while_nobody_uses_what_it_leads_to() {
        const FD: i32 = 70_013;
        let [before, after] = [0, 1].map(|index| {
            let desc = DESCS.take().unwrap();
            desc.begin(Kind::Tcp, -1, 0, 0);
            table::set(FD + 1 + index, Some(desc)).unwrap();
            desc
        });
        table::set(FD, Some(before)).unwrap();
        let _changing = changing::changing();
        for (next, leads) in [(Some(after), after), (None, after)] {
            let (used, is_used) = channel();
            let user = move |desc: &'static Desc, used: std::sync::mpsc::Sender<bool>| {
                std::thread::spawn(move || {
                    let _both = desc.lock_both();
                    used.send(table::leads_to(FD, desc)).unwrap();
                })
            };
            let mut changes = 0;
            let leads_now = table::get(FD).unwrap();
            let next = Next { desc: next, is_kept: true };
            let settled = settle_with(FD, leads_now, next, &mut || {
                changes += 1;
                user(leads_now, used.clone());
                user(leads, used.clone());
                assert!(is_used.recv_timeout(Duration::from_millis(20)).is_err(), "it is in use");
            });
            settled.finish();
            let found = [is_used.recv().unwrap(), is_used.recv().unwrap()];
            assert_eq!((changes, found.iter().filter(|leads| **leads).count()), (1, usize::from(next.desc.is_some())));
        }
        for fd in [FD + 1, FD + 2] {
            settle(fd, table::get(fd).unwrap()).finish();
            assert!(table::get(fd).is_none());
        }
    }

    #[test]
    fn what_comes_into_a_set_while_its_last_number_goes_is_taken_out_however_that_goes() {
        use crate::watchers::Watchers;
        use core::sync::atomic::AtomicI32;

        const FD: i32 = 70_021;
        static IN_SET: AtomicI32 = AtomicI32::new(-1);
        // Another thread puts it into a set right after it was taken out of all.
        fn forget(fd: i32, _: &'static Desc) {
            if fd == FD {
                IN_SET.store(fd, Relaxed);
            }
        }
        fn forget_last(fd: i32, _: &'static Desc) {
            if fd == FD {
                assert!(table::get(fd).is_none(), "no set takes it in any more");
                IN_SET.store(-1, Relaxed);
            }
        }
        fn nothing(_: i32, _: &'static Desc) {}
        static SETS: Watchers =
            Watchers { forget, forget_last, notify: nothing, disturb: nothing, take_out: nothing, put_back: nothing };
        watchers::register(&SETS);
        let ways: [fn(&'static Desc); 2] = [|desc| settle(FD, desc).finish(), |_| forget_stale(FD)];
        for end in ways {
            let desc = DESCS.take().unwrap();
            desc.begin(Kind::Tcp, -1, 0, 0);
            table::set(FD, Some(desc)).unwrap();
            let _changing = changing::changing();
            end(desc);
            assert_eq!((desc.kind(), IN_SET.load(Relaxed)), (Kind::Free, -1));
        }
    }

    #[test]
    fn a_number_that_led_somewhere_begins_anew_while_no_other_number_changes() {
        const STALE: [i32; 2] = [70_005, 70_009];
        let desc = DESCS.take().unwrap();
        desc.begin(Kind::Tcp, -1, 0, 0);
        for fd in STALE {
            table::set(fd, Some(desc)).unwrap();
        }
        let other = changing::changing_number(STALE[0]);
        let (done, is_done) = channel();
        std::thread::spawn(move || {
            drop(changing_reborn(STALE[1]));
            done.send(()).unwrap();
        });
        assert!(is_done.recv_timeout(Duration::from_millis(20)).is_err());
        assert!(table::leads_to(STALE[1], desc));
        drop(other);
        is_done.recv().unwrap();
        assert!(table::get(STALE[1]).is_none() && desc.kind() == Kind::Tcp);
        drop(changing_reborn(STALE[0]));
        assert_eq!((table::get(STALE[0]).is_none(), desc.kind()), (true, Kind::Free));
    }
}
