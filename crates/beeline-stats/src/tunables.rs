//! The options: one table, read by the library, the command line, the manual and the tests.
//!
//! 1. An option is `key=value`; several are separated by commas, with no spaces around them.
//!    Numbers are decimal and carry their unit in the key (`spin_ns_max`, `ring_bytes`). A number of bytes may end in
//!    `K`, `M` or `G`, for 2^10, 2^20 or 2^30 of them.
//! 2. The library reads them from the environment variable [`ENVIRONMENT`]. A guest does not stop
//!    its host over a typing error: what it cannot understand it leaves at its default, and tells
//!    the first such place. The command line refuses the same text instead.
//! 3. The last value of a key counts, so a later list overrides an earlier one.
//! 4. A part `rule=...` is no option but a rule ([`rules`]).
//! 5. What of an option may be said later than at the start is its [`Reach`]: while the program runs, by a rule, for
//!    one connection. A new option is one row of the table, whatever its reach.

mod error;
mod reach;
pub mod rules;
mod table;
mod value;

pub use error::{OptionError, ParseError, RuleError};
pub use reach::Reach;
pub use table::{
    CONNECTION_OPTIONS, ForeignUid, KEYS, KINDS, Key, OPTIONS_COUNT, OptionSpec, Policy, REACHES, Standing, Tunables,
    Wait, connection_option, option, said,
};
pub use value::{Kind, OptionType, Threshold, Value};

use rules::Rule;

/// The environment variable that carries options into the library.
pub const ENVIRONMENT: &str = "BEELINE_OPTIONS";

impl Default for Tunables {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Tunables {
    /// Reads a list of options over the defaults. What cannot be understood is left out, and the
    /// first such place is returned.
    #[must_use]
    pub fn parse_env(list: &[u8]) -> (Self, Option<ParseError>) {
        let mut tunables = Self::DEFAULT;
        let error = tunables.apply(list);
        (tunables, error)
    }

    /// Reads a list of options over the present values, like [`Tunables::parse_env`].
    pub fn apply(&mut self, list: &[u8]) -> Option<ParseError> {
        let mut first_error = None;
        let mut offset = 0_usize;
        for part in list.split(|&byte| byte == b',') {
            // Empty parts are allowed: lists are glued together with commas.
            if !part.is_empty()
                && let Err(error) = self.apply_one(part)
                && first_error.is_none()
            {
                first_error = Some(ParseError { offset, error });
            }
            // Part and comma lie within a slice, so the sum cannot reach beyond isize::MAX.
            offset = offset.saturating_add(part.len()).saturating_add(1);
        }
        first_error
    }

    /// Reads one `key=value`. A rule is only looked at.
    ///
    /// # Errors
    /// When it cannot be understood; nothing changes then.
    pub fn apply_one(&mut self, option: &[u8]) -> Result<(), OptionError> {
        if let Some(rule) = option.strip_prefix(rules::PREFIX) {
            return Rule::parse(rule).map(drop).map_err(OptionError::Rule);
        }
        let equals = option.iter().position(|&byte| byte == b'=').ok_or(OptionError::NoEquals)?;
        let (key, value) = option.split_at_checked(equals).ok_or(OptionError::NoEquals)?;
        self.set(key, value.get(1..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
