//! Profiles, and options from wherever they come: checked against the library's own table.
//!
//! A profile is a TOML file with a `description`, a table `[options]` and tables `[[rule]]`
//! ([`beeline_stats::tunables::rules`]). The configurations of host and user are such files, too. Whatever else stands
//! in one is an error with its line and column, because an option that is silently not in force costs somebody an
//! afternoon.

mod rules;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use beeline_stats::Tunables;
use beeline_stats::tunables::rules::{LIST_BYTES_MAX, RULES_MAX, Rule};
use beeline_stats::tunables::{ENVIRONMENT, OptionError, OptionSpec, Policy};
use toml::de::{DeTable, DeValue};

use crate::{configuration, library};

/// The profiles that are part of the program.
pub const BUILT_IN: [(&str, &str); 3] = [
    ("latency", include_str!("../../../profiles/latency.toml")),
    ("throughput", include_str!("../../../profiles/throughput.toml")),
    ("lowcpu", include_str!("../../../profiles/lowcpu.toml")),
];

/// Their names.
pub const NAMES: [&str; BUILT_IN.len()] = [BUILT_IN[0].0, BUILT_IN[1].0, BUILT_IN[2].0];

/// Where the configuration of the host is.
const HOSTS: &str = "/etc";
/// The variable that says where those of the user are.
const BASE: &str = "XDG_CONFIG_HOME";
/// A configuration, below either.
const FILE: &str = "beeline/config.toml";

/// Options that somebody has set. The rest is left to the library's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    tunables: Tunables,
    set: BTreeSet<&'static str>,
    /// As the library reads them, the first one that counts first.
    rules: Vec<String>,
    /// The user's configuration, where it is out of reach.
    out_of_reach: Option<String>,
}

impl Chosen {
    pub fn new() -> Self {
        Self { tunables: Tunables::DEFAULT, set: BTreeSet::new(), rules: Vec::new(), out_of_reach: None }
    }

    /// What holds for every `beeline run` before its own options: the bridge's user, the configurations unless they are
    /// left out, a profile, and the environment. Under another `beeline run` the environment is that one's options,
    /// which come before the profile: what is said within wins over what was said around it.
    pub fn usual(with_configuration: bool, profile: Option<&str>) -> anyhow::Result<Self> {
        let mut chosen = Self::new();
        if let Some(user) = configuration::bridge_user() {
            chosen.add_bridge_user(user);
        }
        if with_configuration {
            chosen.add_configuration()?;
        }
        let list = std::env::var_os(ENVIRONMENT);
        let (outer, own) = if list.is_some() && library::is_here() { (list, None) } else { (None, list) };
        if let Some(list) = outer {
            chosen.add_environment(&list)?;
        }
        if let Some(profile) = profile {
            chosen.add_named_profile(profile)?;
        }
        if let Some(list) = own {
            chosen.add_environment(&list)?;
        }
        Ok(chosen)
    }

    /// What is to be said of a configuration that was left out.
    pub fn warning(&self) -> Option<String> {
        let name = self.out_of_reach.as_ref()?;
        Some(format!("the configuration {name} is left out, as its directory may not be entered (HOME)"))
    }

    /// Whether connections that packet filters could concern are left to TCP.
    pub fn is_strict(&self) -> bool {
        self.tunables.policy == Policy::Strict
    }

    /// Whether all connections are left to TCP.
    pub fn is_off(&self) -> bool {
        !self.tunables.accelerate
    }

    /// Whether programs keep statistics.
    pub fn keeps_statistics(&self) -> bool {
        self.tunables.stats
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

    /// How many filters of system calls somebody says have been tried.
    pub fn filters_tried(&self) -> u64 {
        self.tunables.filters_tried
    }

    /// Says that so many filters of system calls have been tried, if nobody has said that of more.
    pub fn add_filters_tried(&mut self, filters: u32) {
        if u64::from(filters) > self.tunables.filters_tried {
            let _ = self.set(b"filters_tried", filters.to_string().as_bytes());
        }
    }

    /// Adds the options of `BEELINE_OPTIONS`.
    pub fn add_environment(&mut self, list: &OsStr) -> anyhow::Result<()> {
        let pairs = list.as_bytes().split(|&byte| byte == b',').filter(|pair| !pair.is_empty());
        self.add_pairs(pairs, |pair| format!("{ENVIRONMENT}: {}", pair.escape_ascii()))
    }

    /// Adds the options of the command line.
    pub fn add_arguments(&mut self, pairs: &[OsString]) -> anyhow::Result<()> {
        self.add_pairs(pairs.iter().map(|pair| pair.as_bytes()), |pair| {
            format!("--option {}", OsStr::from_bytes(pair).display())
        })
    }

    fn add_pairs<'a>(
        &mut self,
        pairs: impl Iterator<Item = &'a [u8]>,
        name: impl Fn(&[u8]) -> String,
    ) -> anyhow::Result<()> {
        let mut rules = Vec::new();
        for pair in pairs {
            let added = match pair.strip_prefix(b"rule=") {
                Some(rule) => Rule::parse(rule)
                    .map(|_| rules.push(String::from_utf8_lossy(rule).into_owned()))
                    .map_err(|error| rules::explain(error, rules::unknown_key(rule))),
                None => self.set_pair(pair),
            };
            added.map_err(|error| anyhow::anyhow!("{}: {error}", name(pair)))?;
        }
        self.add_rules(rules);
        Ok(())
    }

    /// Adds the options and rules of a profile, or of a configuration, as `kind` says. `name` is what its errors begin
    /// with.
    fn add_text(&mut self, kind: &str, name: &str, text: &str) -> anyhow::Result<()> {
        let at = |offset: usize| place(name, text, offset);
        let profile = DeTable::parse(text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            let key = text.get(span.clone()).filter(|_| error.message() == "duplicate key");
            let key = key.map(|key| format!(" `{}`", key.escape_debug())).unwrap_or_default();
            anyhow::anyhow!("{}: {}{key}", at(span.start), error.message())
        })?;
        let mut rules = Vec::new();
        for (key, value) in profile.get_ref() {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("description", DeValue::String(_)) => {}
                ("description", _) => {
                    bail!("{}: description must be a string", at(value.span().start));
                }
                ("options", DeValue::Table(options)) => self.add_options(options, &at)?,
                ("options", _) => {
                    bail!("{}: options must be a table: [options]", at(value.span().start));
                }
                ("rule", DeValue::Array(tables)) => {
                    for rule in tables.iter() {
                        rules.push(rules::text_of(rule, &at)?);
                    }
                }
                ("rule", _) => {
                    bail!("{}: rules must be tables, each of them [[rule]]", at(value.span().start));
                }
                (option, _) if Tunables::DEFAULT.get(option).is_some() => {
                    bail!("{}: `{option}` is an option: write it under [options]", at(key.span().start))
                }
                (other, _) => bail!(
                    "{}: a {kind} has no `{other}`, only `description`, `[options]` and `[[rule]]`",
                    at(key.span().start)
                ),
            }
        }
        self.add_rules(rules);
        Ok(())
    }

    fn add_options(&mut self, options: &DeTable<'_>, at: &dyn Fn(usize) -> String) -> anyhow::Result<()> {
        for (key, value) in options {
            let value_text = rules::plain(value, at)?;
            let name = key.get_ref().as_bytes();
            self.set(name, value_text.as_bytes()).map_err(|error| {
                let known = Tunables::DEFAULT.get(key.get_ref()).is_some();
                let place = if known { value.span() } else { key.span() };
                anyhow::anyhow!("{}: {error}", at(place.start))
            })?;
        }
        Ok(())
    }

    /// Adds rules of a source that wins over those before: they come first. One that was there already, as a
    /// configuration's rule is that an outer `beeline run` has passed on, is there once.
    fn add_rules(&mut self, rules: Vec<String>) {
        self.rules.retain(|rule| !rules.contains(rule));
        self.rules.splice(0..0, rules);
    }

    /// Adds the configuration of this host, and that of the user, as far as there are any.
    pub fn add_configuration(&mut self) -> anyhow::Result<()> {
        self.add_configuration_of(bases().into_iter().rev())
    }

    fn add_configuration_of(&mut self, bases: impl Iterator<Item = PathBuf>) -> anyhow::Result<()> {
        for base in bases {
            let file = base.join(FILE);
            let name = file.display().to_string();
            // Whether it is there is for the reading to find out, so that one that may not be read is an error.
            match trusted_text(&file) {
                Ok(text) => self.add_text("configuration", &name, &text)?,
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                // A service's home is often somebody else's: root's, where it has changed its user and nothing more.
                Err(error) if base != Path::new(HOSTS) && is_denied(&error) && is_out_of_reach(&file) => {
                    self.out_of_reach = Some(name);
                }
                Err(error) => {
                    return Err(error).with_context(|| {
                        format!("cannot read the configuration {name}, which `--no-config` leaves out")
                    });
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
            return self.add_text("profile", &format!("profile {name}"), text);
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
        self.add_text("profile", &name, &text)
    }

    /// The list for `BEELINE_OPTIONS`; `None` when nothing is set.
    ///
    /// # Errors
    /// When there are more rules than the library has room for.
    pub fn list(&self) -> anyhow::Result<Option<String>> {
        let specs = OptionSpec::all();
        let pairs = specs
            .iter()
            .filter(|spec| self.set.contains(spec.key))
            .filter_map(|spec| Some(format!("{}={}", spec.key, self.tunables.get(spec.key)?)));
        let parts: Vec<String> = pairs.chain(self.rules.iter().map(|rule| format!("rule={rule}"))).collect();
        let list = parts.join(",");
        if self.rules.len() > RULES_MAX {
            bail!("there are {} rules, and the library has room for {RULES_MAX}", self.rules.len());
        }
        if list.len() > LIST_BYTES_MAX {
            bail!(
                "the options and rules take {} bytes, and the library has room for {LIST_BYTES_MAX}: shorten patterns, or \
                 leave rules out that are for other programs",
                list.len()
            );
        }
        Ok((!list.is_empty()).then_some(list))
    }
}

/// Whether it may not even be looked at whether there is such a file.
fn is_out_of_reach(file: &Path) -> bool {
    std::fs::metadata(file).is_err_and(|error| is_denied(&error))
}

fn is_denied(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied
}

/// The text of a file that is read without being named: as it says whom a program trusts, nobody else may have written
/// it, even where the environment of somebody else says where it is (sudo(8)).
fn trusted_text(path: &Path) -> std::io::Result<String> {
    const WRITABLE_BY_ANYBODY: u32 = 0o002;
    let mut file = std::fs::File::open(path)?;
    let metadata = file.metadata()?;
    // SAFETY: the call takes no pointers and cannot fail.
    let user = unsafe { libc::geteuid() };
    if metadata.uid() != 0 && metadata.uid() != user {
        return Err(std::io::Error::other("it belongs to another user"));
    }
    if metadata.mode() & WRITABLE_BY_ANYBODY != 0 {
        return Err(std::io::Error::other("anybody may write to it"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Where in a file something is.
fn place(name: &str, text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.matches('\n').count() + 1;
    let column = before[line_start..].chars().count() + 1;
    format!("{name}:{line}:{column}")
}

/// Where configurations are, the user's first.
fn bases() -> Vec<PathBuf> {
    let user = said_base().or_else(home_base);
    user.into_iter().chain([PathBuf::from(HOSTS)]).collect()
}

/// Where the environment says that the user's are.
fn said_base() -> Option<PathBuf> {
    std::env::var_os(BASE).map(PathBuf::from).filter(|base| base.is_absolute())
}

fn home_base() -> Option<PathBuf> {
    std::env::home_dir().map(|home| home.join(".config"))
}

/// A configuration that is there and not looked at, because the environment says another place.
pub fn not_looked_at() -> Option<String> {
    let (said, home) = (said_base()?, home_base()?);
    let [looked_at, file] = [&said, &home].map(|base| base.join(FILE));
    let is_other = file.exists() && std::fs::canonicalize(&file).ok() != std::fs::canonicalize(&looked_at).ok();
    is_other.then(|| format!("the configuration {} is left out, as {BASE} says {}", file.display(), said.display()))
}

fn directories() -> Vec<PathBuf> {
    bases().into_iter().map(|base| base.join("beeline/profiles")).collect()
}

fn explain(error: OptionError, key: &[u8]) -> String {
    match error {
        OptionError::UnknownKey => explain_option(key, "beeline run --help"),
        error => error.to_string(),
    }
}

/// What is wrong with a key that no option has. `lists` is the command that lists them.
pub fn explain_option(key: &[u8], lists: &str) -> String {
    let key = String::from_utf8_lossy(key);
    let nearest = OptionSpec::all()
        .into_iter()
        .map(|spec| (strsim::jaro_winkler(spec.key, &key), spec.key))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((likeness, nearest)) if likeness > 0.75 => {
            format!("there is no option `{key}`; did you mean `{nearest}`?")
        }
        _ => format!("there is no option `{key}`; `{lists}` lists them"),
    }
}

#[cfg(test)]
mod tests;
