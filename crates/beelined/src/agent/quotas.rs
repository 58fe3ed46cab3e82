//! Quotas of what is scarce.
//!
//! A holder is a user within a network namespace, since root of one container is not root of another. But whoever is
//! root of a container makes namespaces as he likes, so a user has a share as well, however many namespaces it is in.
//! And where many users together have taken everything, the one with the most gives way.

use std::collections::HashMap;

/// Whom things are counted for: a user, as the host sees it, within a network namespace.
pub type Holder = (u32, u64);

/// How much there is.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// In all.
    pub all: usize,
    /// For a user.
    pub of_user: usize,
    /// For a user in one network namespace.
    pub of_holder: usize,
}

/// Whether there is room for one more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// There is.
    Yes,
    /// There is not.
    No,
    /// There is, if this user gives one back.
    InPlaceOf(u32),
}

/// See the module.
#[derive(Debug)]
pub struct Quotas {
    limits: Limits,
    all: usize,
    of_users: HashMap<u32, usize>,
    of_holders: HashMap<Holder, usize>,
}

impl Quotas {
    /// With nothing taken.
    pub fn new(limits: Limits) -> Self {
        Self { limits, all: 0, of_users: HashMap::new(), of_holders: HashMap::new() }
    }

    fn of_user(&self, user: u32) -> usize {
        self.of_users.get(&user).copied().unwrap_or(0)
    }

    /// How many a user has in a namespace.
    pub fn of_holder(&self, holder: Holder) -> usize {
        self.of_holders.get(&holder).copied().unwrap_or(0)
    }

    /// Whether there is room for one more of these.
    pub fn room(&self, holder: Holder) -> Room {
        let own = self.of_user(holder.0);
        let in_namespace = self.of_holder(holder);
        if own >= self.limits.of_user || in_namespace >= self.limits.of_holder {
            return Room::No;
        }
        if self.all < self.limits.all {
            return Room::Yes;
        }
        match self.of_users.iter().max_by_key(|(_, count)| **count) {
            Some((user, most)) if *most > own + 1 => Room::InPlaceOf(*user),
            _ => Room::No,
        }
    }

    /// Whether there is room without anybody's giving way.
    pub fn has_room(&self, holder: Holder) -> bool {
        self.room(holder) == Room::Yes
    }

    /// Takes one, if there is room.
    pub fn take(&mut self, holder: Holder) -> bool {
        let has_room = self.has_room(holder);
        if has_room {
            self.all += 1;
            *self.of_users.entry(holder.0).or_default() += 1;
            *self.of_holders.entry(holder).or_default() += 1;
        }
        has_room
    }

    /// Gives one back that was taken.
    pub fn give(&mut self, holder: Holder) {
        fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) {
            if let std::collections::hash_map::Entry::Occupied(mut count) = counts.entry(key) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        self.all -= 1;
        less(&mut self.of_users, holder.0);
        less(&mut self.of_holders, holder);
    }

    /// Whether nothing is taken.
    pub fn is_unused(&self) -> bool {
        self.all == 0 && self.of_users.is_empty() && self.of_holders.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { all: 10, of_user: 6, of_holder: 4 };

    #[test]
    fn namespaces_do_not_multiply_a_users_share() {
        let mut quotas = Quotas::new(LIMITS);
        assert_eq!((0..10).filter(|_| quotas.take((1, 1))).count(), 4);
        assert_eq!((2..99).filter(|namespace| quotas.take((1, *namespace))).count(), 2);
        assert_eq!(quotas.room((1, 1000)), Room::No);
        assert_eq!(quotas.room((2, 1)), Room::Yes);
    }

    #[test]
    fn who_has_the_most_gives_way() {
        let mut quotas = Quotas::new(LIMITS);
        (0..6).for_each(|namespace| assert!(quotas.take((1, namespace))));
        (2..6).for_each(|user| assert!(quotas.take((user, 1))));
        assert_eq!(quotas.room((9, 1)), Room::InPlaceOf(1));
        assert!(!quotas.take((9, 1)));
        quotas.give((1, 0));
        assert!(quotas.take((9, 1)));
        for holder in [(9, 1), (2, 1), (3, 1), (4, 1), (5, 1)] {
            quotas.give(holder);
        }
        (1..6).for_each(|namespace| quotas.give((1, namespace)));
        assert!(quotas.is_unused());
    }
}
