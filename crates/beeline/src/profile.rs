//! Profiles, and options from wherever they come: checked against the library's own table.
//!
//! A profile is a TOML file with a `description` and a table `[options]`. Whatever else stands in it is
//! an error with its line and column, because an option that is silently not in force costs
//! somebody an afternoon.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use beeline_stats::Tunables;
use beeline_stats::tunables::{ENVIRONMENT, OptionError, OptionSpec};
use toml::de::{DeTable, DeValue};

/// The profiles that are part of the program.
pub const BUILT_IN: [(&str, &str); 3] = [
    ("latency", include_str!("../../../profiles/latency.toml")),
    ("throughput", include_str!("../../../profiles/throughput.toml")),
    ("lowcpu", include_str!("../../../profiles/lowcpu.toml")),
];

/// Their names.
pub const NAMES: [&str; BUILT_IN.len()] = [BUILT_IN[0].0, BUILT_IN[1].0, BUILT_IN[2].0];

/// Options that somebody has set. The rest is left to the library's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    tunables: Tunables,
    set: BTreeSet<&'static str>,
}

impl Chosen {
    pub fn new() -> Self {
        Self { tunables: Tunables::DEFAULT, set: BTreeSet::new() }
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.tunables.set(key, value).map_err(|error| explain(error, key))?;
        let spec = OptionSpec::all().into_iter().find(|spec| spec.key.as_bytes() == key);
        self.set.extend(spec.map(|spec| spec.key));
        Ok(())
    }

    fn set_pair(&mut self, pair: &[u8]) -> Result<(), String> {
        let mut parts = pair.splitn(2, |&byte| byte == b'=');
        let key = parts.next().unwrap_or_default();
        let value = parts.next().ok_or_else(|| explain(OptionError::NoEquals, key))?;
        self.set(key, value)
    }

    /// Says who may run the bridge. Everything that is added later goes before it.
    pub fn add_bridge_user(&mut self, user: u32) {
        // The number of a user fits the option; (uid_t)-1 is none.
        let _ = self.set(b"bridge_uid", user.to_string().as_bytes());
    }

    /// Adds the options of `BEELINE_OPTIONS`.
    pub fn add_environment(&mut self, list: &OsStr) -> anyhow::Result<()> {
        for pair in list.as_bytes().split(|&byte| byte == b',') {
            if !pair.is_empty() {
                self.set_pair(pair)
                    .map_err(|error| anyhow::anyhow!("{ENVIRONMENT}: {}: {error}", pair.escape_ascii()))?;
            }
        }
        Ok(())
    }

    /// Adds an option of the command line.
    pub fn add_argument(&mut self, pair: &OsStr) -> anyhow::Result<()> {
        self.set_pair(pair.as_bytes()).map_err(|error| anyhow::anyhow!("--option {}: {error}", pair.display()))
    }

    /// Adds the options of a profile. `name` is what its errors begin with.
    fn add_profile(&mut self, name: &str, text: &str) -> anyhow::Result<()> {
        let at = |offset: usize| {
            let before = text.get(..offset).unwrap_or(text);
            let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
            let line = before.matches('\n').count() + 1;
            let column = before[line_start..].chars().count() + 1;
            format!("{name}:{line}:{column}")
        };
        let profile = DeTable::parse(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            anyhow::anyhow!("{}: {}", at(offset), error.message())
        })?;
        for (key, value) in profile.get_ref() {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("description", DeValue::String(_)) => {}
                ("description", _) => {
                    bail!("{}: description must be a string", at(value.span().start));
                }
                ("options", DeValue::Table(options)) => {
                    for (key, value) in options {
                        let value_text = value_text(value.get_ref()).ok_or_else(|| {
                            anyhow::anyhow!(
                                "{}: the value must be a string, a whole number, true or false",
                                at(value.span().start)
                            )
                        })?;
                        let name = key.get_ref().as_bytes();
                        self.set(name, value_text.as_bytes()).map_err(|error| {
                            let known = Tunables::DEFAULT.get(key.get_ref()).is_some();
                            let place = if known { value.span() } else { key.span() };
                            anyhow::anyhow!("{}: {error}", at(place.start))
                        })?;
                    }
                }
                ("options", _) => {
                    bail!("{}: options must be a table: [options]", at(value.span().start));
                }
                (other, _) => {
                    bail!("{}: a profile has no `{other}`, only `description` and `[options]`", at(key.span().start))
                }
            }
        }
        Ok(())
    }

    /// Adds a profile: a built-in one, one from the user's or the system's directory, or a file.
    pub fn add_named_profile(&mut self, name: &str) -> anyhow::Result<()> {
        if name.contains('/') || name.ends_with(".toml") {
            return self.add_profile_file(Path::new(name));
        }
        let directories = directories();
        for directory in &directories {
            let file = directory.join(format!("{name}.toml"));
            if file.exists() {
                return self.add_profile_file(&file);
            }
        }
        if let Some((_, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
            return self.add_profile(&format!("profile {name}"), text);
        }
        let places: Vec<String> = directories.iter().map(|directory| directory.display().to_string()).collect();
        bail!(
            "there is no profile `{name}`: built in are {}; others are looked for in {}; or name a \
             file that ends in .toml",
            NAMES.join(", "),
            places.join(" and ")
        )
    }

    fn add_profile_file(&mut self, file: &Path) -> anyhow::Result<()> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read the profile {name}"))?;
        self.add_profile(&name, &text)
    }

    /// The list for `BEELINE_OPTIONS`; `None` when nothing is set.
    pub fn list(&self) -> Option<String> {
        let pairs: Vec<String> = OptionSpec::all()
            .iter()
            .filter(|spec| self.set.contains(spec.key))
            .filter_map(|spec| Some(format!("{}={}", spec.key, self.tunables.get(spec.key)?)))
            .collect();
        (!pairs.is_empty()).then(|| pairs.join(","))
    }
}

fn value_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Boolean(true) => Some("on".into()),
        DeValue::Boolean(false) => Some("off".into()),
        DeValue::Integer(number) => {
            let number = u64::from_str_radix(number.as_str(), number.radix());
            // A number that does not fit is beyond every bound, and the message will say which.
            Some(number.map_or_else(|_| "out of range".into(), |number| number.to_string()))
        }
        _ => None,
    }
}

fn directories() -> Vec<PathBuf> {
    let user = std::env::var_os("XDG_CONFIG_HOME")
        .filter(|home| Path::new(home).is_absolute())
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".config")));
    user.into_iter().chain([PathBuf::from("/etc")]).map(|base| base.join("beeline/profiles")).collect()
}

fn explain(error: OptionError, key: &[u8]) -> String {
    if error != OptionError::UnknownKey {
        return error.to_string();
    }
    let key = String::from_utf8_lossy(key);
    let nearest = OptionSpec::all()
        .into_iter()
        .map(|spec| (strsim::jaro_winkler(spec.key, &key), spec.key))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((likeness, nearest)) if likeness > 0.75 => {
            format!("there is no option `{key}`; did you mean `{nearest}`?")
        }
        _ => format!("there is no option `{key}`; `beeline run --help` lists them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(text: &str) -> Result<Option<String>, String> {
        let mut chosen = Chosen::new();
        match chosen.add_profile("p.toml", text) {
            Ok(()) => Ok(chosen.list()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn built_in_profiles_are_valid_and_say_what_they_are_for() {
        for (name, text) in BUILT_IN {
            let mut chosen = Chosen::new();
            chosen.add_profile(name, text).unwrap();
            assert!(chosen.list().is_some(), "{name}");
            assert!(text.contains("\ndescription = "), "{name}");
        }
    }

    #[test]
    fn each_kind_of_value_is_taken() {
        let text = "[options]\nstats = false\nwait = 'poll'\nspin_ns_max = 1_000\nring_bytes = 0x10000\n";
        assert_eq!(profile(text), Ok(Some("wait=poll,spin_ns_max=1000,ring_bytes=65536,stats=off".into())));
        assert_eq!(profile(""), Ok(None));
        assert_eq!(profile("description = 'x'\n[options]\n"), Ok(None));
    }

    #[test]
    fn errors_have_their_line_and_column() {
        for (text, message) in [
            ("[options]\nspin_ns = 5\n", "p.toml:2:1: there is no option `spin_ns`; did you mean `spin_ns_max`?"),
            ("[options]\nqqq = 5\n", "p.toml:2:1: there is no option `qqq`; `beeline run --help` lists them"),
            ("[options]\n\nwait = 'fast'\n", "p.toml:3:8: wait must be one of lazy, poll, wait"),
            ("[options]\nring_bytes = 65537\n", "p.toml:2:14: ring_bytes must be a power of two from 64K to 16M"),
            ("[options]\nspin_ns_max = -1\n", "p.toml:2:15: spin_ns_max must be a number from 0 to 10000000"),
            (
                "[options]\nspin_ns_max = 1.5\n",
                "p.toml:2:15: the value must be a string, a whole number, true or false",
            ),
            ("options = 3\n", "p.toml:1:11: options must be a table: [options]"),
            ("description = 3\n", "p.toml:1:15: description must be a string"),
            ("wait = 'poll'\n", "p.toml:1:1: a profile has no `wait`, only `description` and `[options]`"),
        ] {
            assert_eq!(profile(text), Err(message.into()), "{text}");
        }
    }

    #[test]
    fn syntax_errors_have_their_line_too() {
        let error = profile("[options]\nwait = \n").unwrap_err();
        assert!(error.starts_with("p.toml:2:"), "{error}");
        let error = profile("# ä\n[options]\nwait = 'lazy'\nwait = 'poll'\n").unwrap_err();
        assert!(error.starts_with("p.toml:4:1:"), "{error}");
    }

    #[test]
    fn the_later_source_wins() {
        let mut chosen = Chosen::new();
        chosen.add_profile("p", "[options]\nwait = 'poll'\nspin_ns_max = 1\n").unwrap();
        chosen.add_environment(OsStr::new("spin_ns_max=2,,stats=off")).unwrap();
        chosen.add_argument(OsStr::new("stats=on")).unwrap();
        assert_eq!(chosen.list().unwrap(), "wait=poll,spin_ns_max=2,stats=on");
        assert!(chosen.add_argument(OsStr::new("stats")).is_err());
        assert!(chosen.add_environment(OsStr::new("stats=maybe")).is_err());
    }
}
