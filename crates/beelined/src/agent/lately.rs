//! What is counted, or remembered, for a stretch of time.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::quotas::{Holder, Limits, Quotas};

/// How often what is over is swept out of what is full, at most.
const SWEPT: Duration = Duration::from_secs(1);
/// Listeners whose waits are counted.
const LISTENERS_MAX: usize = 4096;

/// Counts within a stretch of time.
#[derive(Debug)]
pub struct Lately {
    since: Instant,
    lasts: Duration,
    limits: Limits,
    counts: Quotas,
}

impl Lately {
    /// Nothing was counted yet.
    pub fn new(lasts: Duration, limits: Limits, now: Instant) -> Self {
        Self { since: now, lasts, limits, counts: Quotas::new(limits) }
    }

    /// What is counted in this stretch.
    pub fn counts(&mut self, now: Instant) -> &mut Quotas {
        if now.saturating_duration_since(self.since) >= self.lasts {
            (self.since, self.counts) = (now, Quotas::new(self.limits));
        }
        &mut self.counts
    }

    /// Counts one more, if there is room.
    pub fn take(&mut self, holder: Holder, now: Instant) -> bool {
        self.counts(now).take(holder)
    }
}

/// Counts faults within a stretch of time. So many merits make up for one.
#[derive(Debug)]
pub struct Faults {
    faults: Lately,
    merits: Lately,
    worth: usize,
}

impl Faults {
    /// Nothing was counted yet.
    pub fn new(lasts: Duration, limits: Limits, worth: usize, now: Instant) -> Self {
        let any = Limits { all: usize::MAX, of_user: usize::MAX, of_holder: usize::MAX };
        Self { faults: Lately::new(lasts, limits, now), merits: Lately::new(lasts, any, now), worth }
    }

    /// What is counted in this stretch.
    pub fn counts(&mut self, now: Instant) -> &mut Quotas {
        self.faults.counts(now)
    }

    /// Counts a fault, if there is room.
    pub fn take(&mut self, holder: Holder, now: Instant) {
        self.faults.take(holder, now);
    }

    /// Counts a merit. None is saved up: where there is no fault it makes up for none that comes.
    pub fn make_up(&mut self, holder: Holder, now: Instant) {
        self.merits.take(holder, now);
        let faults = self.faults.counts(now);
        if self.merits.counts(now).of_holder(holder).is_multiple_of(self.worth) && faults.of_holder(holder) != 0 {
            faults.give(holder);
        }
    }
}

/// Destinations that are remembered for who wants to go there.
#[derive(Debug)]
pub struct Remembered {
    lasts: Duration,
    until: HashMap<(SocketAddr, Holder), Instant>,
    quotas: Quotas,
    sweep_at: Instant,
}

impl Remembered {
    /// None is yet, and each will be for so long.
    pub fn new(lasts: Duration, limits: Limits, now: Instant) -> Self {
        Self { lasts, until: HashMap::new(), quotas: Quotas::new(limits), sweep_at: now }
    }

    /// Remembers one from now on, if there is room.
    pub fn insert(&mut self, address: SocketAddr, holder: Holder, now: Instant) {
        let key = (address, holder);
        if let Some(until) = self.until.get_mut(&key) {
            *until = now + self.lasts;
            return;
        }
        if !self.quotas.has_room(holder) && now >= self.sweep_at {
            // Not each time: those that stand hold for a while.
            self.sweep_at = now + SWEPT;
            let over: Vec<_> = self.until.iter().filter(|(_, until)| **until <= now).map(|(key, _)| *key).collect();
            over.into_iter().for_each(|(address, holder)| self.remove(address, holder));
        }
        if self.quotas.take(holder) {
            self.until.insert(key, now + self.lasts);
        }
    }

    /// Remembers one no more.
    pub fn remove(&mut self, address: SocketAddr, holder: Holder) {
        if self.until.remove(&(address, holder)).is_some() {
            self.quotas.give(holder);
        }
    }

    /// Whether one is remembered.
    pub fn has(&self, address: SocketAddr, holder: Holder, now: Instant) -> bool {
        self.until.get(&(address, holder)).is_some_and(|until| *until > now)
    }
}

/// For how long servers were kept waiting in vain, at each listener, whoever it was for.
#[derive(Debug)]
pub struct Stalls {
    since: Instant,
    lasts: Duration,
    most: Duration,
    /// By network namespace and place.
    at: HashMap<(u64, u32), Duration>,
}

impl Stalls {
    /// Of each stretch of this length so much, at most.
    pub fn new(lasts: Duration, most: Duration, now: Instant) -> Self {
        Self { since: now, lasts, most, at: HashMap::new() }
    }

    /// A server at this listener was kept waiting in vain for so long.
    pub fn count(&mut self, listener: (u64, u32), waited: Duration, now: Instant) {
        if now.saturating_duration_since(self.since) >= self.lasts {
            self.since = now;
            self.at.clear();
        }
        if waited.is_zero() || self.at.len() >= LISTENERS_MAX && !self.at.contains_key(&listener) {
            return;
        }
        *self.at.entry(listener).or_default() += waited;
    }

    /// Whether that was enough for this stretch of time.
    pub fn are_enough(&self, listener: (u64, u32), now: Instant) -> bool {
        now.saturating_duration_since(self.since) < self.lasts
            && self.at.get(&listener).is_some_and(|waited| *waited >= self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_ends_in_its_time_and_each_has_a_share_of_it() {
        let (now, lasts) = (Instant::now(), Duration::from_secs(5));
        let limits = Limits { all: 12, of_user: 8, of_holder: 4 };
        let mut remembered = Remembered::new(lasts, limits, now);
        let at = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        for port in 0..10 {
            remembered.insert(at(port), (1, 1), now);
        }
        assert_eq!((0..10).filter(|port| remembered.has(at(*port), (1, 1), now)).count(), limits.of_holder);
        remembered.insert(at(1), (2, 1), now);
        assert!(remembered.has(at(1), (2, 1), now) && !remembered.has(at(1), (2, 1), now + lasts));
        remembered.remove(at(1), (2, 1));
        remembered.remove(at(1), (2, 1));
        assert!(!remembered.has(at(1), (2, 1), now));
        // What is over makes room.
        remembered.insert(at(9), (1, 1), now + lasts);
        assert!(remembered.has(at(9), (1, 1), now + lasts));
        (0..10).for_each(|port| remembered.remove(at(port), (1, 1)));
        assert!(remembered.quotas.is_unused() && remembered.until.is_empty());
    }

    #[test]
    fn so_many_merits_make_up_for_a_fault_and_none_is_saved_up() {
        let (now, minute) = (Instant::now(), Duration::from_secs(60));
        let mut faults = Faults::new(minute, Limits { all: usize::MAX, of_user: 8, of_holder: 4 }, 3, now);
        (0..30).for_each(|_| faults.make_up((1, 1), now));
        (0..9).for_each(|_| faults.take((1, 1), now));
        assert!(!faults.counts(now).has_room((1, 1)) && faults.counts(now).has_room((1, 2)));
        for left in [4, 4, 3, 3] {
            faults.make_up((1, 1), now);
            assert_eq!(faults.counts(now).of_holder((1, 1)), left);
        }
        (0..30).for_each(|_| faults.make_up((1, 1), now));
        assert_eq!(faults.counts(now).of_holder((1, 1)), 0);
        faults.take((1, 1), now);
        assert_eq!(faults.counts(now + minute).of_holder((1, 1)), 0);
    }

    #[test]
    fn a_listener_is_kept_waiting_only_so_long_and_others_are_not_concerned() {
        let (now, minute) = (Instant::now(), Duration::from_secs(60));
        let mut stalls = Stalls::new(minute, Duration::from_millis(30), now);
        for waited in [0, 15, 15] {
            assert!(!stalls.are_enough((1, 7), now));
            stalls.count((1, 7), Duration::from_millis(waited), now);
        }
        assert!(stalls.are_enough((1, 7), now) && !stalls.are_enough((2, 7), now));
        assert!(!stalls.are_enough((1, 7), now + minute));
        stalls.count((2, 7), minute, now + minute);
        assert!(!stalls.are_enough((1, 7), now + minute) && stalls.are_enough((2, 7), now + minute));
        for listener in 0..10_000 {
            stalls.count((3, listener), minute, now + minute);
        }
        assert!(stalls.at.len() <= LISTENERS_MAX && stalls.are_enough((2, 7), now + minute));
    }
}
