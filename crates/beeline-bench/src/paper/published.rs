//! What a document gives: a figure for a whole table, one for a message size, or a curve over sizes.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::axis::{Message, parse_bytes, show_bytes};
use super::figure::Figure;

/// A figure that the document gives.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The system and what it did.
    pub what: String,
    pub figure: Spanned<Figure>,
    /// With its unit: `12 us`. None where there is a curve.
    value: Option<Spanned<String>>,
    /// The message size that the value belongs to; none for what holds for the whole table.
    bytes: Option<Message>,
    /// A value for each of several sizes: `{ 1 = "4.92 us", 64 = "5.72 us" }`.
    #[serde(default)]
    curve: BTreeMap<String, Spanned<String>>,
    /// The table that it stands beside, unless it is part of one.
    pub table: Option<Spanned<String>>,
    /// Where it is in the document.
    source: Option<String>,
}

impl Published {
    /// The values as they are written, in the order of the sizes that they belong to.
    fn texts(&self) -> Vec<(Option<u64>, &str)> {
        let size = |text: &String| parse_bytes(text).ok();
        let mut all: Vec<_> = self.curve.iter().map(|(bytes, value)| (size(bytes), value.get_ref().as_str())).collect();
        all.extend(self.value.iter().map(|value| (self.bytes.map(|bytes| bytes.0), value.get_ref().as_str())));
        all.sort_by_key(|(bytes, _)| *bytes);
        all
    }

    /// The values in the figure's unit, each with its size. Plans that were checked have no others.
    pub fn numbers(&self) -> Vec<(Option<u64>, f64)> {
        let figure = self.figure.get_ref();
        self.texts().into_iter().map(|(bytes, text)| (bytes, figure.parse(text).unwrap_or(f64::NAN))).collect()
    }

    /// What is wrong with it, and where.
    pub fn check(&self) -> Result<(), (usize, String)> {
        if self.value.is_some() != self.curve.is_empty() {
            return Err((self.figure.span().start, "expected either `value` or `curve`".into()));
        }
        for value in self.value.iter().chain(self.curve.values()) {
            self.figure.get_ref().parse(value.get_ref()).map_err(|what| (value.span().start, what))?;
        }
        for (bytes, value) in &self.curve {
            parse_bytes(bytes).map_err(|what| (value.span().start, what))?;
        }
        Ok(())
    }

    /// What it is called where it is drawn: a curve's values are seen there.
    pub fn name(&self) -> String {
        match &self.value {
            Some(value) => format!("{}: {}", self.what, value.get_ref()),
            None => self.what.clone(),
        }
    }

    /// A line of text.
    pub fn line(&self) -> String {
        let source = self.source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default();
        let value = |(bytes, text): (Option<u64>, &str)| match bytes.filter(|_| self.value.is_none()) {
            Some(bytes) => format!("{text} at {}", show_bytes(bytes)),
            None => text.to_owned(),
        };
        let values: Vec<String> = self.texts().into_iter().map(value).collect();
        format!("{}: {} {}{source}", self.what, self.figure.get_ref().title(), values.join(", "))
    }
}
