//! When an option may be said.

/// When an option may be said, beside at the start of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Not later: the program has begun by it.
    Start,
    /// While the program runs, for what it does from then on.
    Running,
    /// Likewise, and by a rule for the connections that it matches.
    Rule,
    /// Likewise, and for one connection that is open.
    Connection,
}

impl Reach {
    /// Whether a rule may say it.
    #[must_use]
    pub const fn has_rules(self) -> bool {
        matches!(self, Reach::Rule | Reach::Connection)
    }

    /// For people.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Reach::Start => "at the start",
            Reach::Running => "while it runs",
            Reach::Rule => "while it runs, by rule",
            Reach::Connection => "while it runs, by rule, for one connection",
        }
    }
}
