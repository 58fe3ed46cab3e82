//! Rules as they stand in a profile, and as the library reads them.

use anyhow::bail;
use beeline_stats::tunables::RuleError;
use beeline_stats::tunables::rules::{CONDITIONS, PATH, Rule, options};
use toml::Spanned;
use toml::de::DeValue;

/// The text of a rule, from its table. `at` names a place in the file.
pub(super) fn text_of(rule: &Spanned<DeValue<'_>>, at: &dyn Fn(usize) -> String) -> anyhow::Result<String> {
    let DeValue::Table(table) = rule.get_ref() else {
        bail!("{}: rules must be tables, each of them [[rule]]", at(rule.span().start));
    };
    let mut parts = Vec::new();
    for (key, value) in table {
        parts.push((key, value, plain(value, at)?));
    }
    let mut checked = Rule::EMPTY;
    for (key, value, text) in &parts {
        checked.set(key.get_ref().as_bytes(), text.as_bytes()).map_err(|error| {
            let place = match error {
                RuleError::UnknownKey | RuleError::NotByRule(_) => key.span(),
                _ => value.span(),
            };
            anyhow::anyhow!("{}: {}", at(place.start), explain(error, key.get_ref().as_bytes()))
        })?;
    }
    checked.check().map_err(|error| anyhow::anyhow!("{}: {error}", at(rule.span().start)))?;
    let parts: Vec<String> = parts.iter().map(|(key, _, text)| format!("{}={text}", key.get_ref())).collect();
    Ok(parts.join(";"))
}

/// What is wrong with a rule. `key` is that which rules do not have, if it is that.
pub(super) fn explain(error: RuleError, key: &[u8]) -> String {
    if error != RuleError::UnknownKey {
        return error.to_string();
    }
    let key = String::from_utf8_lossy(key);
    let known = CONDITIONS.into_iter().chain([PATH]).chain(options());
    let nearest = known.map(|known| (strsim::jaro_winkler(known, &key), known)).max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((likeness, nearest)) if likeness > 0.75 => {
            format!("a rule has no `{key}`; did you mean `{nearest}`?")
        }
        _ => format!("a rule has no `{key}`; `beeline run --help` lists what it has"),
    }
}

/// The first key of a rule, as the library reads it, that rules do not have.
pub(super) fn unknown_key(rule: &[u8]) -> &[u8] {
    let keys = rule.split(|&byte| byte == b';').filter_map(|part| part.split(|&byte| byte == b'=').next());
    let is_unknown = |key: &&[u8]| {
        let mut rule = Rule::EMPTY;
        rule.set(key, b"") == Err(RuleError::UnknownKey)
    };
    keys.into_iter().find(is_unknown).unwrap_or_default()
}

/// A value as options and rules take it.
pub(super) fn plain(value: &Spanned<DeValue<'_>>, at: &dyn Fn(usize) -> String) -> anyhow::Result<String> {
    match value.get_ref() {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Boolean(true) => Ok("on".into()),
        DeValue::Boolean(false) => Ok("off".into()),
        DeValue::Integer(number) => {
            let number = u64::from_str_radix(number.as_str(), number.radix());
            // A number that does not fit is beyond every bound, and the message will say which.
            Ok(number.map_or_else(|_| "out of range".into(), |number| number.to_string()))
        }
        _ => bail!("{}: the value must be a string, a whole number, true or false", at(value.span().start)),
    }
}
