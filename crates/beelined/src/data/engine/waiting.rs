//! Connections with something to send for which a link has no credits, or no room in a queue.
//!
//! 1. Each is listed at the link that it waits for, once, and tries again when something comes over that link or is
//!    done on it: nothing else makes room there. So those of a link that hangs cost nothing while others carry much.
//! 2. From time to time all try again, and so does one of which something else is heard.
//! 3. After some looks in vain it is armed and cold like any other ([`super::outward`]).

use super::Engine;

/// The link of a connection that had none.
const NO_LINK: usize = usize::MAX;

impl Engine {
    /// Notes that a connection could not send what it has over a link.
    pub(super) fn note_waiting(&mut self, number: u64, link: Option<usize>) {
        let link = link.filter(|index| self.links.get(*index).is_some_and(Option::is_some)).unwrap_or(NO_LINK);
        let Some(entry) = self.connections.get_mut(number).filter(|entry| entry.waits != Some(link)) else { return };
        if let Some(before) = entry.waits.replace(link) {
            self.waiting_on(before).retain(|other| *other != number);
        } else {
            self.waiters = self.waiters.saturating_add(1);
        }
        self.waiting_on(link).push(number);
    }

    fn waiting_on(&mut self, link: usize) -> &mut Vec<u64> {
        match self.links.get_mut(link) {
            Some(Some(open)) => &mut open.waiting,
            _ => &mut self.waiting,
        }
    }

    /// Lets those try again that wait for a link.
    pub(super) fn heat_waiting_on(&mut self, link: usize) {
        if self.waiters != 0
            && let Some(Some(open)) = self.links.get_mut(link)
        {
            let waiting = std::mem::take(&mut open.waiting);
            self.heat_listed(waiting);
        }
    }

    /// Lets all try again.
    pub(super) fn heat_waiting(&mut self) {
        for link in 0..self.links.len() {
            self.heat_waiting_on(link);
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.heat_listed(waiting);
    }

    /// Lets those try again that were listed, in their order.
    pub(super) fn heat_listed(&mut self, waiting: Vec<u64>) {
        self.waiters = self.waiters.saturating_sub(waiting.len());
        for number in waiting {
            if let Some(entry) = self.connections.get_mut(number) {
                entry.waits = None;
            }
            self.heat(number);
        }
    }
}
