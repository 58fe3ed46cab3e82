//! What a `fork` means to listeners, offers and pools.

use core::sync::atomic::Ordering::Relaxed;

use super::listener::Listener;
use super::{listening, lobby, lookup, offers, pool, ports};
use crate::table;

/// Before a `fork`: whom a listener has put aside is about to be sent away ([`purge_pools`]). Clients of this process
/// could not begin again then, as the child has them, too. So they do now, all of that listener in their order, and
/// whoever accepts finds them in TCP's queue. No lock may be held.
pub(crate) fn send_visitors_on() {
    if !offers::any() {
        return;
    }
    table::for_each(|fd, desc| {
        if let Some(listener) = Listener::of(desc)
            && desc.fd.load(Relaxed) == fd
            && lobby::any_spoken(listener) != lobby::Who::Nobody
        {
            offers::take_to_tcp(listener.cookie.load(Relaxed));
        }
    });
}

/// Before a `fork`: idle lanes go, so that the child has none of them, and listeners get what a crowd needs.
/// The caller holds `changing::changing`.
pub(crate) fn purge_pools() {
    pool::purge();
    listening::prepare_fork();
}

/// After a `fork`, in the parent: lanes and sides that other threads gave back since [`purge_pools`] are the child's,
/// too. The caller holds `changing::changing`.
pub(crate) fn purge_pools_again() {
    listening::give_up_kept();
    pool::purge();
}

/// In the child of a `fork`.
pub(crate) fn reset_after_fork() {
    beeline_meeting::agent::reset_after_fork();
    offers::reset_after_fork();
    lookup::reset_after_fork();
    pool::reset_after_fork();
    ports::reset_after_fork();
    listening::reset_after_fork();
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::OnceLock;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::{life, signals};

    const HELD_OVER_FORK: i32 = 1;

    static LISTENS: OnceLock<&'static Listener> = OnceLock::new();

    extern "C" fn uses_the_listener(_: i32) {
        let is_held = LISTENS.get().is_none_or(|listener| listener.lock.try_lock().is_none());
        // SAFETY: a plain number.
        unsafe { libc::_exit(i32::from(is_held) * HELD_OVER_FORK) };
    }

    /// Runs itself once more, as a process that does nothing else: a fork is one of all that is open.
    #[test]
    fn a_handler_that_was_put_off_in_a_child_finds_no_lock_of_another_thread() {
        const NAME: &str = "meet::fork::tests::a_handler_that_was_put_off_in_a_child_finds_no_lock_of_another_thread";
        const ALONE: &str = "BEELINE_TEST_FORKS";
        if std::env::var_os(ALONE).is_none() {
            let mut again = Command::new(std::env::current_exe().unwrap());
            let output = again.args([NAME, "--exact"]).env(ALONE, "1").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
            return;
        }
        signals::set_real_sigaction(libc::sigaction);
        let handler = uses_the_listener as extern "C" fn(i32) as usize;
        assert!(matches!(signals::signal(libc::SIGUSR1, handler, signals::Style::Bsd), crate::Outcome::Done(_)));
        // SAFETY: plain numbers.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
        assert_eq!(listening::listen(fd, 1), crate::Outcome::OK);
        let listener = Listener::of(table::get(fd).unwrap()).unwrap();
        assert!(LISTENS.set(listener).is_ok());

        life::around_fork_prepare();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let _guard = listener.lock.lock();
            tell.send(()).unwrap();
            std::thread::park();
        });
        told.recv().unwrap();
        // SAFETY: the child runs what is made to run there.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: plain numbers. The signal comes before the call returns, and is put off.
            unsafe { libc::raise(libc::SIGUSR1) };
            life::around_fork_child();
            // SAFETY: a plain number.
            unsafe { libc::_exit(HELD_OVER_FORK + 1) };
        }
        life::around_fork_parent();
        let mut status = 0;
        // SAFETY: a live number.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status}");
        assert_eq!(libc::WEXITSTATUS(status), 0, "1: the lock is still held; 2: the handler has not run");
    }
}
