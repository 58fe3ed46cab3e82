//! What two bridges say to each other about links that are lost, beside the links, and what is known of it at one end.
//!
//! 1. Whoever has closed its end of a link says so; the other bridge closes its own then, and says the same. Between
//!    the two words the link is lost *here alone*: the other bridge may still send over it, on connections, too, that
//!    are made meanwhile. So each of those begins with that loss ([`super::losses`]).
//! 2. A word that does not come is waited for [`ALONE_NS`] at most, or four times as long as a link may be silent: by
//!    then a bridge whose control connection lives has found out by itself, as nothing comes over that link. (No word
//!    comes of a link that was never up at the other end.)
//! 3. Whoever has lost [`ALONE_MAX`] alone makes no new connections with that bridge: they would begin with half of the
//!    losses that a connection may have.
//! 4. A bridge that says more at once than another one takes is cut off ([`crate::control`]), and two hosts with many
//!    rails have more links than that, all of which may fail at once. So after [`WORDS_AT_ONCE`] words each of the
//!    others takes its time; meanwhile a link tells of its end by itself, mostly.

use std::collections::VecDeque;

use super::losses::LOSSES_MAX;
use super::sender::LinkId;
use crate::control::message::LinkDown;

/// See the module.
const ALONE_NS: u64 = 60_000_000_000;
const ALONE_MAX: usize = LOSSES_MAX / 2;
/// Half of what a bridge takes at once and in a second, as each word may be longer than the least frame.
const WORDS_AT_ONCE: u64 = 128;
const WORD_NS: u64 = 1_000_000_000 / 32;
/// What is kept of either kind; the oldest go first. A connection that has lost so many links is reset.
const KEPT_MAX: usize = 4 * LOSSES_MAX;

/// See the module.
#[derive(Default)]
pub struct LinkWords {
    /// Links that are lost here alone, with the time at which that was.
    alone: VecDeque<(LinkId, u64)>,
    unsaid: VecDeque<LinkDown>,
    /// All words that were said have taken their time by then.
    paid_ns: u64,
}

impl LinkWords {
    /// A link that was up is closed here.
    pub fn lost(&mut self, down: LinkDown, now_ns: u64) {
        push_bounded(&mut self.alone, (down.link, now_ns));
        push_bounded(&mut self.unsaid, down);
    }

    /// The other bridge has closed its end of a link.
    pub fn heard(&mut self, link: LinkId) {
        self.alone.retain(|(other, _)| *other != link);
    }

    /// Forgets what the other bridge must have found out by now.
    pub fn forget(&mut self, patience_ns: u64, now_ns: u64) {
        let known_after_ns = ALONE_NS.max(patience_ns.saturating_mul(4));
        self.alone.retain(|(_, since_ns)| now_ns.saturating_sub(*since_ns) < known_after_ns);
    }

    /// Links that the other bridge may still use.
    pub fn alone(&self) -> impl Iterator<Item = LinkId> {
        self.alone.iter().map(|(link, _)| *link)
    }

    /// Whether there are so many of them that no connection can be made (rule 3).
    #[must_use]
    pub fn are_too_many(&self) -> bool {
        self.alone.len() > ALONE_MAX
    }

    /// The word to say now, if there is one.
    pub fn next(&mut self, now_ns: u64) -> Option<LinkDown> {
        let paid_ns = self.paid_ns.max(now_ns);
        if paid_ns.saturating_sub(now_ns) > (WORDS_AT_ONCE - 1) * WORD_NS {
            return None;
        }
        let word = self.unsaid.pop_front()?;
        self.paid_ns = paid_ns.saturating_add(WORD_NS);
        Some(word)
    }
}

fn push_bounded<T>(kept: &mut VecDeque<T>, new: T) {
    kept.push_back(new);
    if kept.len() > KEPT_MAX {
        kept.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(words: &mut LinkWords, link: LinkId, now_ns: u64) {
        words.lost(LinkDown { link, why: String::new() }, now_ns);
    }

    #[test]
    fn a_link_is_lost_alone_until_the_word_comes_or_would_have_come() {
        let mut words = LinkWords::default();
        (1..4).for_each(|link| lost(&mut words, link, link));
        words.heard(2);
        words.heard(9);
        assert_eq!(words.alone().collect::<Vec<_>>(), [1, 3]);
        words.forget(3_000_000_000, ALONE_NS + 2);
        assert_eq!(words.alone().collect::<Vec<_>>(), [3]);
        words.forget(ALONE_NS, 4 * ALONE_NS);
        assert_eq!(words.alone().count(), 1, "links may be silent for longer");
        words.forget(ALONE_NS, 4 * ALONE_NS + 3);
        assert_eq!(words.alone().count(), 0);
    }

    #[test]
    fn what_the_other_bridge_may_not_know_is_bounded() {
        let mut words = LinkWords::default();
        (0..ALONE_MAX as u64).for_each(|link| lost(&mut words, link, 0));
        assert!(!words.are_too_many());
        (0..100_000).for_each(|link| lost(&mut words, 1000 + link, 0));
        assert!(words.are_too_many() && words.alone.len() == KEPT_MAX && words.unsaid.len() == KEPT_MAX);
    }

    #[test]
    fn words_are_said_at_once_until_there_are_many() {
        let mut words = LinkWords::default();
        (0..300).for_each(|link| lost(&mut words, link, 7));
        let said = |words: &mut LinkWords, now_ns| std::iter::from_fn(|| words.next(now_ns)).count() as u64;
        assert_eq!(said(&mut words, 7), WORDS_AT_ONCE);
        assert_eq!(said(&mut words, 7 + WORD_NS - 1), 0);
        assert_eq!(said(&mut words, 7 + 10 * WORD_NS), 10);
        assert_eq!(said(&mut words, 100_000_000_000), WORDS_AT_ONCE);
        assert_eq!(said(&mut words, 200_000_000_000), 300 - 10 - 2 * WORDS_AT_ONCE);
    }
}
