//! The links that a connection has lost, and what the other bridge knows of it.
//!
//! 1. For each link that is lost the other bridge is owed a word: what we have of the connection. It is said over
//!    another link, which may be lost as well; then it is owed again.
//! 2. A word is known to have been heard when a later message of the same link was: messages are gone through in order,
//!    each to its end. Then it is forgotten, so that links that come and go for years cost nothing.
//! 3. What is neither said nor known to have been heard is bounded ([`LOSSES_MAX`]): a network in which links are made
//!    and lost that often with no word getting through carries nothing.

use super::link::Link;
use super::sender::LinkId;

/// Losses of one connection that the other bridge may not know of. All links of two hosts with many rails may be lost
/// at once, and again while the words are on their way.
pub const LOSSES_MAX: usize = 256;

/// See the module.
#[derive(Default)]
pub struct Losses {
    owed: Vec<LinkId>,
    said: Vec<Said>,
}

/// A word that was said.
struct Said {
    /// The link that is lost.
    link: LinkId,
    over: LinkId,
    /// The number of the message that it stands in.
    message: u64,
}

/// There are too many.
#[derive(Debug, PartialEq, Eq)]
pub struct TooMany;

impl Losses {
    /// Those with which a connection begins: [`LOSSES_MAX`] at most.
    #[must_use]
    pub fn owing(links: impl Iterator<Item = LinkId>) -> Losses {
        Losses { owed: links.take(LOSSES_MAX).collect(), said: Vec::new() }
    }

    /// A link is lost. `heard` says of another one's message whether the other bridge has gone through it.
    ///
    /// # Errors
    /// See rule 3. The loss is not noted then: the connection cannot go on.
    pub fn add(&mut self, link: LinkId, heard: impl Fn(LinkId, u64) -> bool) -> Result<(), TooMany> {
        self.said.retain(|said| !heard(said.over, said.message));
        let again = self.said.extract_if(.., |said| said.over == link);
        self.owed.extend(again.map(|said| said.link));
        if self.owed.len().saturating_add(self.said.len()) >= LOSSES_MAX {
            return Err(TooMany);
        }
        self.owed.push(link);
        Ok(())
    }

    /// The next lost link to say a word of.
    #[must_use]
    pub fn next(&self) -> Option<LinkId> {
        self.owed.first().copied()
    }

    /// The word of [`Losses::next`] stands in the message that `over` sends next.
    pub fn said(&mut self, over: &Link) {
        if !self.owed.is_empty() {
            let link = self.owed.remove(0);
            self.said.push(Said { link, over: over.id, message: over.next_message() });
        }
    }

    /// Nobody is there to hear it.
    pub fn clear(&mut self) {
        self.owed.clear();
        self.said.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_fabric::EndpointId;

    fn link(id: LinkId) -> Link {
        Link::new(id, 0, 0, 0, EndpointId::default(), 0)
    }

    fn nothing_heard(_: LinkId, _: u64) -> bool {
        false
    }

    #[test]
    fn a_word_that_may_be_lost_with_its_link_is_owed_again() {
        let mut losses = Losses::default();
        losses.add(1, nothing_heard).unwrap();
        assert_eq!(losses.next(), Some(1));
        losses.said(&link(2));
        assert_eq!(losses.next(), None);
        losses.add(2, nothing_heard).unwrap();
        assert_eq!((losses.owed.as_slice(), losses.said.len()), (&[1, 2][..], 0));
    }

    #[test]
    fn a_word_that_was_heard_is_forgotten() {
        let mut losses = Losses::default();
        let mut over = link(2);
        losses.add(1, nothing_heard).unwrap();
        losses.said(&over);
        let message = over.next_message();
        over.messages_sent += 2;
        // It was received; whether it was gone through only the next one tells.
        over.returned = message;
        assert!(!over.has_heard(message));
        over.returned += 1;
        assert!(over.has_heard(message));
        losses.add(2, |link, message| link == 2 && over.has_heard(message)).unwrap();
        assert_eq!(losses.owed, [2]);
    }

    #[test]
    fn links_that_flap_cost_nothing_while_another_one_carries_the_word() {
        let mut losses = Losses::default();
        for flap in 10..100_000 {
            losses.add(flap, |_, _| true).unwrap();
            losses.said(&link(2));
            assert!(losses.owed.is_empty() && losses.said.len() == 1);
        }
    }

    #[test]
    fn words_that_never_get_through_are_bounded() {
        let mut losses = Losses::default();
        let mut flaps = (0..).take_while(|flap| {
            losses.said(&link(*flap));
            losses.add(*flap, nothing_heard) == Ok(())
        });
        assert_eq!(flaps.by_ref().count(), LOSSES_MAX);
        drop(flaps);
        assert_eq!(losses.owed.len() + losses.said.len(), LOSSES_MAX);
    }
}
