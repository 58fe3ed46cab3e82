//! What `beeline set` has said to this process, and what the process tells of its options.
//!
//! 1. The words stand in the statistics file, and whoever may write that file may set them: the same user, and root.
//!    They are not believed for it: [`live`] takes what stands for a value, and takes back and counts anything else.
//! 2. They are read where a connection begins, or a call is about to wait, never on the way of a short message that is
//!    there.
//! 3. A child of `fork` goes on with what its parent was told, and so does the next program of this process over `exec`
//!    ([`super::succession`]). A process without a file has nobody who could tell it anything.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_stats::Counter;
use beeline_stats::layout::{SETTINGS_MAX, StatsHeader};
use beeline_stats::tunables::{Key, OptionType, option};

use crate::process::{self, config};
use crate::static_ref::StaticRef;

type Words = [AtomicU64; SETTINGS_MAX];

/// What was set before there is a file: by whoever set it for the parent.
#[unsafe(link_section = ".fork")]
static KEPT: Words = [const { AtomicU64::new(0) }; SETTINGS_MAX];

/// The file's header, if there is one. It stays mapped until the process ends; the child of a fork forgets it before it
/// is unmapped.
#[unsafe(link_section = ".fork")]
static FILE: StaticRef<StatsHeader> = StaticRef::none();

#[inline]
fn file() -> Option<&'static StatsHeader> {
    FILE.load(Acquire)
}

#[inline]
fn words() -> &'static Words {
    file().map_or(&KEPT, |file| &file.settings)
}

/// What an option is at the moment: as it was set while the process ran, else as the process began with it.
#[inline]
#[must_use]
pub fn live<T: OptionType>(key: Key<T>) -> T {
    let word = words().get(key.index()).map_or(0, |word| word.load(Relaxed));
    if word == 0 {
        return key.of(config());
    }
    key.read_word(word).unwrap_or_else(|| {
        refuse(key.index(), word);
        key.of(config())
    })
}

/// Takes an impossible word back.
#[cold]
fn refuse(index: usize, word: u64) {
    if words().get(index).is_some_and(|place| place.compare_exchange(word, 0, Relaxed, Relaxed).is_ok()) {
        refused();
    }
}

/// A word that was set was impossible, and has been taken back.
#[cold]
pub fn refused() {
    file().into_iter().for_each(|file| file.add(Counter::SettingsRefused, 1));
}

/// Whether new connections may use lanes at the moment. Whether the process could at all is [`process::accelerates`].
#[must_use]
pub fn may_begin() -> bool {
    live(option::accelerate)
}

/// Writes into a new file what the process began with, and what it was told so far.
pub(super) fn show(header: &'static StatsHeader) {
    for (target, word) in header.options.iter().zip(config().words()) {
        target.store(word, Relaxed);
    }
    header.said.store(process::said(), Relaxed);
    header.rules.store(process::rules().len() as u32, Relaxed);
    for (target, source) in header.settings.iter().zip(&KEPT) {
        let word = source.load(Relaxed);
        if word != 0 {
            target.store(word, Relaxed);
        }
    }
    FILE.store(Some(header), Release);
}

/// Just before a `fork`: what the child is to go on with. The parent reads it, for whom the file's page is at hand.
pub fn keep_for_child() {
    let Some(file) = file() else { return };
    for (target, source) in KEPT.iter().zip(&file.settings) {
        let word = source.load(Relaxed);
        if target.load(Relaxed) != word {
            target.store(word, Relaxed);
        }
    }
}

/// In the child of a `fork`, which is about to leave its parent's file.
pub(super) fn leave_file() {
    FILE.store(None, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_stats::tunables::Wait;

    #[test]
    fn what_is_set_holds_and_what_is_impossible_is_taken_back() {
        let place = &words()[option::wait.index()];
        assert_eq!(live(option::wait), config().wait);
        place.store(option::wait.word(Wait::Sleep), Relaxed);
        assert_eq!(live(option::wait), Wait::Sleep);
        for impossible in [4, u64::MAX] {
            place.store(impossible, Relaxed);
            assert_eq!(live(option::wait), config().wait);
            assert_eq!(place.load(Relaxed), 0);
        }
    }
}
