//! Rules as they stand in a profile, and as the library reads them.

use anyhow::bail;
use beeline_stats::tunables::RuleError;
use beeline_stats::tunables::rules::Rule;
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
            anyhow::anyhow!("{}: {error}", at(place.start))
        })?;
    }
    checked.check().map_err(|error| anyhow::anyhow!("{}: {error}", at(rule.span().start)))?;
    let parts: Vec<String> = parts.iter().map(|(key, _, text)| format!("{}={text}", key.get_ref())).collect();
    Ok(parts.join(";"))
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
