//! How many connections one peer may have: a bridge that opens them without end must leave room for the others' and for
//! the memory of this host.

/// Connections with one peer, in either direction.
#[derive(Debug, Default)]
pub struct Quota {
    carried: u64,
    /// Whether it was told that there are too many, since there last were not.
    told: bool,
}

/// There is no room for another connection.
#[derive(Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// Nobody was told yet.
    pub first: bool,
}

impl Quota {
    /// A connection more, if there are not `limit` already.
    ///
    /// # Errors
    /// When there are.
    pub fn enter(&mut self, limit: u64) -> Result<(), Exhausted> {
        if self.carried >= limit {
            return Err(Exhausted { first: !std::mem::replace(&mut self.told, true) });
        }
        self.carried = self.carried.saturating_add(1);
        Ok(())
    }

    /// A connection less.
    pub fn leave(&mut self) {
        self.carried = self.carried.saturating_sub(1);
        self.told = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_gets_no_more_than_the_limit_and_it_is_told_once() {
        let mut quota = Quota::default();
        assert_eq!((quota.enter(2), quota.enter(2)), (Ok(()), Ok(())));
        assert_eq!(quota.enter(2), Err(Exhausted { first: true }));
        assert_eq!(quota.enter(2), Err(Exhausted { first: false }));
        quota.leave();
        assert_eq!(quota.enter(2), Ok(()));
        assert_eq!(quota.enter(2), Err(Exhausted { first: true }));
        // The limit can be changed at any time.
        assert_eq!(quota.enter(1), Err(Exhausted { first: false }));
        assert_eq!(quota.enter(3), Ok(()));
    }
}
