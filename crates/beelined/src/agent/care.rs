//! Care with what strangers have sent.
//!
//! A descriptor that a stranger has sent, or into whose queue a stranger may write, is not harmless: asking a socket
//! may wait for a lock that its maker holds, and the last to close one may wait for as long as its maker likes. So
//!
//! 1. it is touched and closed only within a [`Section`], of which each holder has a share, and by threads that others
//!    can do without ([`super::threads`]), with no lock held;
//! 2. whoever has no need of one any more drops it ([`Strange`]), which only puts it aside, and so is done anywhere;
//! 3. each thread, before it waits for the next event, closes what was put aside ([`Care::work`]), of holders that have
//!    room.
//!
//! A holder whose sections all hang has nothing closed or answered any more, and nothing more is taken from it when so
//! much is put aside, nor from its user when many times that is. They hear that there is no room, which touches nothing
//! of theirs. Others do not notice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use beeline_meeting::agent::host as agent;

use super::quotas::{Holder, Limits, Quotas};

/// Descriptors that may be put aside before no more are taken from who has sent them: of a holder, and of a user.
const ASIDE_OF_HOLDER: usize = 1024;
const ASIDE_OF_USER: usize = 8 * ASIDE_OF_HOLDER;
/// Threads that may be in a section.
pub const SECTIONS_MAX: usize = 48;
const SECTIONS: Limits = Limits { all: SECTIONS_MAX, of_user: 24, of_holder: 12 };

/// See the module.
#[derive(Debug)]
pub struct Care(Mutex<State>);

#[derive(Debug)]
struct State {
    sections: Quotas,
    aside: HashMap<Holder, Vec<i32>>,
}

/// A descriptor that a stranger may have made dangerous to close.
#[derive(Debug)]
pub struct Strange {
    /// None once it is closed.
    fd: Option<i32>,
    holder: Holder,
    care: Arc<Care>,
}

/// The right to touch what a holder has sent.
#[derive(Debug)]
pub struct Section<'a> {
    care: &'a Care,
    holder: Holder,
}

impl Default for Care {
    fn default() -> Self {
        Self(Mutex::new(State { sections: Quotas::new(SECTIONS), aside: HashMap::new() }))
    }
}

impl Care {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes care of a descriptor that nobody else will close.
    pub fn of(self: &Arc<Self>, fd: i32, holder: Holder) -> Strange {
        Strange { fd: Some(fd), holder, care: Arc::clone(self) }
    }

    /// Leave to touch what this holder has sent, if there is room.
    pub fn enter(&self, holder: Holder) -> Option<Section<'_>> {
        let taken = self.state().sections.take(holder);
        // Made only if it was taken, and with the lock given back: a section takes it when it ends.
        taken.then(|| Section { care: self, holder })
    }

    /// Whether so much of a holder, or of its user, is put aside, as closing it hangs, that no more is to be taken.
    /// Root of many containers is one user: what one of them has sent is not the others' matter before it is a lot.
    pub fn is_clogged(&self, holder: Holder) -> bool {
        let state = self.state();
        if state.aside.get(&holder).is_some_and(|descriptors| descriptors.len() > ASIDE_OF_HOLDER) {
            return true;
        }
        let of_user = state.aside.iter().filter(|((user, _), _)| *user == holder.0);
        of_user.map(|(_, descriptors)| descriptors.len()).sum::<usize>() > ASIDE_OF_USER
    }

    /// Closes what was put aside.
    pub fn work(&self) {
        while let Some((fd, _section)) = self.next() {
            agent::close(fd);
        }
    }

    fn next(&self) -> Option<(i32, Section<'_>)> {
        let mut state = self.state();
        let State { sections, aside } = &mut *state;
        let (&holder, descriptors) = aside.iter_mut().find(|(holder, _)| sections.has_room(**holder))?;
        let fd = descriptors.pop();
        if descriptors.is_empty() {
            aside.remove(&holder);
        }
        let fd = fd?;
        sections.take(holder);
        Some((fd, Section { care: self, holder }))
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        self.care.state().sections.give(self.holder);
    }
}

impl Strange {
    /// Its number.
    pub fn fd(&self) -> i32 {
        self.fd.unwrap_or(-1)
    }

    /// Closes it at once, and as it is: it is somebody's who will go on using it.
    pub fn close_now(mut self, _section: &Section<'_>) {
        drop(self.fd.take().map(agent::own));
    }
}

impl Drop for Strange {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.care.state().aside.entry(self.holder).or_default().push(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    fn pair() -> (UnixStream, i32) {
        let (one, two) = UnixStream::pair().unwrap();
        one.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        (one, two.into_raw_fd())
    }

    fn is_closed(stream: &mut UnixStream) -> bool {
        stream.read(&mut [0]).is_ok()
    }

    #[test]
    fn what_is_dropped_is_closed_by_who_works() {
        let (care, (mut one, two)) = (Arc::new(Care::default()), pair());
        drop(care.of(two, (1, 1)));
        assert!(!is_closed(&mut one));
        care.work();
        assert!(is_closed(&mut one));
    }

    /// 32 closings that hung used to hold up all others.
    #[test]
    fn who_hangs_in_all_of_his_sections_holds_up_nobody_else() {
        let care = Arc::new(Care::default());
        let hanging: Vec<_> = std::iter::from_fn(|| care.enter((1, 1))).collect();
        assert_eq!(hanging.len(), SECTIONS.of_holder);
        // Nor does he by making namespaces.
        let more: Vec<_> = (2..100).filter_map(|namespace| care.enter((1, namespace))).collect();
        assert_eq!(hanging.len() + more.len(), SECTIONS.of_user);
        assert!(!care.is_clogged((1, 5)));
        (0..=ASIDE_OF_HOLDER).for_each(|_| drop(care.of(i32::MAX, (1, 1))));
        assert!(care.is_clogged((1, 1)) && !care.is_clogged((1, 5)) && !care.is_clogged((2, 1)));
        (0..ASIDE_OF_USER).for_each(|_| drop(care.of(i32::MAX, (1, 2))));
        assert!(care.is_clogged((1, 5)) && !care.is_clogged((2, 1)));
        let ((mut his, his_end), (mut other, others_end)) = (pair(), pair());
        drop((care.of(his_end, (1, 1)), care.of(others_end, (2, 1))));
        care.work();
        assert!(is_closed(&mut other) && !is_closed(&mut his));
        drop((hanging, more));
        care.work();
        assert!(is_closed(&mut his) && !care.is_clogged((1, 1)));
    }

    #[test]
    fn what_is_closed_at_once_is_not_closed_again() {
        let (care, (mut one, two)) = (Arc::new(Care::default()), pair());
        let strange = care.of(two, (1, 1));
        strange.close_now(&care.enter((1, 1)).unwrap());
        assert!(is_closed(&mut one));
        assert!(care.state().aside.is_empty());
    }
}
