//! Which sequence: its seed and length, the calls that take part, and what is left of it once it has been shrunk.
//!
//! A plan is passed to the process that runs it as `SEED:OPS:CALLS:ONLY`, where `ONLY` is a list of numbers or empty.

use anyhow::{Context, Result};
use clap::ValueEnum;
use std::fmt;

/// Which calls take part in a sequence: fewer make a difference easier to understand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Calls {
    /// Data, closing, duplicates, options, poll and select
    Data,
    /// Also epoll, level-triggered
    Level,
    /// Also edge-triggered, oneshot and exclusive epoll
    All,
}

impl Calls {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Level => "level",
            Self::All => "all",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub ops: usize,
    pub calls: Calls,
    /// The numbers of the operations to run; all of them when there is no list.
    pub only: Option<Vec<usize>>,
}

impl Plan {
    /// The numbers of the operations, in order.
    #[must_use]
    pub fn steps(&self) -> Vec<usize> {
        self.only.clone().unwrap_or_else(|| (0..self.ops).collect())
    }

    /// The same sequence, reduced to these operations.
    #[must_use]
    pub fn reduced_to(&self, steps: Vec<usize>) -> Self {
        Self { only: Some(steps), ..self.clone() }
    }

    /// The arguments of `semantics` that run this plan.
    #[must_use]
    pub fn arguments(&self) -> String {
        let Self { seed, ops, calls, only } = self;
        let mut text = format!("random --seed {seed} --ops {ops} --calls {}", calls.name());
        if let Some(steps) = only {
            text.push_str(&format!(" --only {}", list(steps)));
        }
        text
    }

    /// # Errors
    /// When the text is no plan.
    pub fn parse(text: &str) -> Result<Self> {
        let mut words = text.split(':');
        let mut word = || words.next().context("a plan has four parts");
        let (seed, ops) = (word()?.parse()?, word()?.parse()?);
        let calls = Calls::from_str(word()?, false).map_err(anyhow::Error::msg)?;
        let only = match word()? {
            "" => None,
            steps => Some(steps.split(',').map(str::parse).collect::<Result<_, _>>()?),
        };
        Ok(Self { seed, ops, calls, only })
    }
}

fn list(steps: &[usize]) -> String {
    steps.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

impl fmt::Display for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.only.as_deref().map(list).unwrap_or_default();
        write!(out, "{}:{}:{}:{steps}", self.seed, self.ops, self.calls.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_survive_being_text() {
        let whole = Plan { seed: 7, ops: 30, calls: Calls::Level, only: None };
        for plan in [whole.clone(), whole.reduced_to(vec![3, 5, 29])] {
            assert_eq!(Plan::parse(&plan.to_string()).ok(), Some(plan));
        }
    }
}
