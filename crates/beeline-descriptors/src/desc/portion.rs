//! How much a program reads after an edge before it is told that there is nothing.
//!
//! Whose set tells of edges reads each connection until there is nothing. Over TCP that is soon, as a sender is slower
//! than a reader. Over a lane it is as fast, on a CPU of its own: such a loop would read one connection for ever, while
//! the others of its set wait.
//!
//! 1. A report by an edge gives a portion: what lies unread then, and [`BYTES_MIN`] at least.
//! 2. Reads take from it. Once it is spent, one call that must not block is told that there is nothing, as if what lies
//!    there had come a moment later. Then there is no limit until the next report.
//! 3. So that nobody waits for what is there: that call looks whether bytes have come since the marks of that report
//!    were taken. If so they are an edge of their own, which the next wait tells of; if not, it reads on.
//! 4. More has been read than lay there, so the sender sends at this very time. Where both ends share a CPU it does
//!    not, and nobody is kept from reading what was sent before. Who has finished sending keeps nobody waiting.
//! 5. What lies there can be as much as a ring. Where others of the set were reported lately, too, the sender is asked
//!    to stay below that (`io/ahead.rs` of beeline-sockets).
//! 6. Only the set that has given a portion is sure to tell of the rest. So a connection that is in several sets has
//!    none, nor has one in a set that others watch; there is no limit any more once a set becomes one of those.

use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

/// Some tens of microseconds.
const BYTES_MIN: u32 = 256 * 1024;
/// There is no limit.
const ALL: u32 = 0;
/// Nothing is left; what is left counts from here.
const SPENT: u32 = 1;
/// Reports in a row, with nobody else's in between, after which the connection is alone in its set.
const COMPANY_REPORTS: u32 = 64;

/// See the module. Valid when zeroed: there is no limit.
#[derive(Default)]
#[repr(C)]
pub struct Portion {
    left: AtomicU32,
    /// The peer's tail by the marks of the last report.
    tail: AtomicU32,
    /// Whether the limit was lifted since, perhaps while somebody took from it.
    lifted: AtomicBool,
    /// The number of the last report among those of its set; 0 if there was none.
    report: AtomicU32,
    /// Reports until the connection is alone.
    company: AtomicU32,
}

impl Portion {
    /// Begins anew, for another connection.
    pub fn begin(&self) {
        self.lift();
        self.report.store(0, Relaxed);
        self.company.store(0, Relaxed);
    }

    /// An edge is reported, with so many bytes unread; `tail` is that of its marks, and `report` its number among those
    /// of its set.
    pub fn give(&self, unread: u32, tail: u32, report: u32) {
        let before = self.report.load(Relaxed);
        let company = match report.wrapping_sub(before) {
            _ if before == 0 => 0,
            1 => self.company.load(Relaxed).saturating_sub(1),
            _ => COMPANY_REPORTS,
        };
        self.report.store(report, Relaxed);
        self.company.store(company, Relaxed);
        self.tail.store(tail, Relaxed);
        self.lifted.store(false, Relaxed);
        self.left.store(unread.max(BYTES_MIN).saturating_add(SPENT), Release);
    }

    /// Whether others of its set were reported lately.
    #[must_use]
    pub fn has_company(&self) -> bool {
        self.company.load(Relaxed) != 0
    }

    /// So many bytes were read.
    #[inline]
    pub fn take(&self, bytes: usize) {
        let left = self.left.load(Relaxed);
        if left != ALL {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            self.left.store(left.saturating_sub(bytes).max(SPENT), Relaxed);
        }
    }

    /// Whether it is spent, so that [`Portion::end`] is to be asked.
    #[inline]
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.left.load(Acquire) == SPENT
    }

    /// There is no limit until the next report.
    pub fn lift(&self) {
        self.lifted.store(true, Relaxed);
        self.left.store(ALL, Relaxed);
    }

    /// It is spent: there is no limit until the next report. Whether bytes have come since the last one, by the peer's
    /// present tail.
    pub fn end(&self, tail: u32) -> bool {
        self.left.store(ALL, Relaxed);
        tail != self.tail.load(Relaxed) && !self.lifted.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lay_there_and_a_little_more_is_read_before_a_call_finds_nothing() {
        let portion = Portion::default();
        portion.take(1 << 30);
        assert!(!portion.is_spent(), "nothing was reported by an edge");
        for (unread, bytes) in [(0, BYTES_MIN as usize), (3 * BYTES_MIN, 3 * BYTES_MIN as usize)] {
            portion.give(unread, 7, 1);
            portion.take(bytes - 1);
            assert!(!portion.is_spent());
            portion.take(1);
            assert!(portion.is_spent());
            portion.take(1);
            assert!(portion.is_spent());
            assert!(portion.end(8) && !portion.is_spent());
        }
        portion.give(0, 7, 1);
        portion.lift();
        portion.left.store(SPENT, Relaxed);
        assert!(!portion.end(8), "whoever took meanwhile does not bring it back");
        portion.give(u32::MAX, 7, 1);
        portion.take(usize::MAX);
        assert!(portion.is_spent() && !portion.end(7), "nothing has come since: nobody would tell of what is there");
    }

    #[test]
    fn who_is_reported_beside_others_has_company_for_a_while() {
        let portion = Portion::default();
        let report = |numbers: core::ops::Range<u32>| numbers.for_each(|number| portion.give(0, 7, number));
        report(5..200);
        assert!(!portion.has_company(), "nobody else was reported");
        report(201..202);
        assert!(portion.has_company());
        report(202..201 + COMPANY_REPORTS);
        assert!(portion.has_company());
        report(201 + COMPANY_REPORTS..202 + COMPANY_REPORTS);
        assert!(!portion.has_company());
        report(500..501);
        portion.begin();
        assert!(!portion.has_company());
        report(900..901);
        assert!(!portion.has_company(), "it is another connection");
    }
}
