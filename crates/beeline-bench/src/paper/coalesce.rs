//! When an interface interrupts: what `ethtool -C` sets. It is set at both ends of the way between two hosts while a
//! cell is measured.
//!
//! 1. What an interface cannot have, such as a veth, which raises no interrupts, is a reason, and nothing is set.
//! 2. What was set is read back: drivers take a value and keep another one.
//! 3. All that ethtool says of it is as before when the cell has ended, whether or not it succeeded: drivers move one
//!    value with another.

use std::fmt;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Deserializer, de::Error};

use super::cell::Cell;
use super::links;
use crate::hosts::Host;
use crate::process::Output;

/// Microseconds that an interface may wait at most, for any that there is.
const USECS_MAX: u32 = 65_535;
/// In the order in which they are set back: the first one may move the second.
const KEYS: [Key; 2] = [Key::AdaptiveRx, Key::RxUsecs];
/// For a program that is not there the shell has an exit code of its own, wherever it runs.
const SHELL: [&str; 3] = ["sh", "-c", r#"exec "$0" "$@""#];
const NOT_FOUND: i32 = 127;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The driver chooses how long to wait by what arrives.
    AdaptiveRx,
    /// How long it waits after a packet.
    RxUsecs,
}

impl Key {
    fn word(self) -> &'static str {
        match self {
            Key::AdaptiveRx => "adaptive-rx",
            Key::RxUsecs => "rx-usecs",
        }
    }

    fn takes(self, value: &str) -> bool {
        match self {
            Key::AdaptiveRx => matches!(value, "on" | "off"),
            Key::RxUsecs => value.parse().is_ok_and(|usecs: u32| usecs <= USECS_MAX && usecs.to_string() == value),
        }
    }

    /// Its value in what `ethtool -c` prints; `None` for one that the interface has not.
    fn read(self, text: &str) -> Option<String> {
        let label = match self {
            Key::AdaptiveRx => "Adaptive RX:",
            Key::RxUsecs => "rx-usecs:",
        };
        let rest = text.lines().find_map(|line| line.trim().strip_prefix(label))?;
        rest.split_whitespace().next().filter(|value| self.takes(value)).map(str::to_owned)
    }
}

/// `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub key: Key,
    pub value: String,
}

impl Setting {
    pub fn parse(text: &str) -> Result<Setting, String> {
        let found = text.split_once('=').and_then(|(word, value)| {
            let key = KEYS.into_iter().find(|key| key.word() == word && key.takes(value))?;
            Some(Setting { key, value: value.to_owned() })
        });
        found.ok_or_else(|| {
            format!("`{text}` is no coalescing: expected \"as-is\", \"adaptive-rx=on\", \"adaptive-rx=off\" or \"rx-usecs=0\" to {USECS_MAX}")
        })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key.word(), self.value)
    }
}

/// What a plan has of it; `"as-is"` leaves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coalescing(pub Option<String>);

impl<'de> Deserialize<'de> for Coalescing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "as-is" {
            return Ok(Coalescing(None));
        }
        Setting::parse(&text).map(|setting| Coalescing(Some(setting.to_string()))).map_err(D::Error::custom)
    }
}

/// An interface, and how ethtool is asked about it.
struct Interface<'a> {
    name: String,
    ethtool: &'a dyn Fn(&[&str]) -> Result<Output>,
}

impl Interface<'_> {
    /// What it has of [`KEYS`].
    ///
    /// # Errors
    /// The reason for which it has nothing.
    fn read(&self) -> Result<Result<Vec<Option<String>>, String>> {
        let output = (self.ethtool)(&["ethtool", "-c", &self.name])?;
        Ok(match output.status.success() {
            true => Ok(KEYS.iter().map(|key| key.read(&output.text)).collect()),
            false if output.status.code() == Some(NOT_FOUND) => {
                Err("host has no ethtool (Debian package: ethtool)".to_owned())
            }
            false => {
                let said = output.complaint.lines().chain(output.text.lines()).find(|line| !line.trim().is_empty());
                let said = said.map_or_else(|| output.status.to_string(), |said| said.trim().to_owned());
                Err(format!("{} cannot have it: ethtool says `{said}`", self.name))
            }
        })
    }

    fn set(&self, key: Key, value: &str) -> Result<()> {
        let output = (self.ethtool)(&["ethtool", "-C", &self.name, key.word(), value])?;
        ensure!(output.status.success(), "{}: {} cannot be {value}: {output}", self.name, key.word());
        Ok(())
    }

    /// Why it cannot be set so, if it cannot.
    fn objection(&self, setting: &Setting) -> Result<Option<String>> {
        Ok(match self.read()? {
            Err(reason) => Some(reason),
            Ok(values) => {
                let has = KEYS.iter().zip(values).any(|(key, value)| *key == setting.key && value.is_some());
                (!has).then(|| format!("{} has no {}", self.name, setting.key.word()))
            }
        })
    }

    /// Sets it, and says what was there before.
    fn change(&self, setting: &Setting) -> Result<Vec<Option<String>>> {
        let before = self.read()?.map_err(anyhow::Error::msg)?;
        let set = || -> Result<()> {
            self.put(setting.key, Some(&setting.value))?;
            let now = self.read()?.map_err(anyhow::Error::msg)?;
            let kept = KEYS.iter().zip(now).find(|(key, _)| **key == setting.key).and_then(|(_, value)| value);
            ensure!(kept.as_ref() == Some(&setting.value), "{}: {setting} was set, and it is {kept:?}", self.name);
            Ok(())
        };
        if let Err(why) = set() {
            self.restore(&before)?;
            return Err(why);
        }
        Ok(before)
    }

    /// Sets what is not so yet: some drivers refuse what changes nothing.
    fn put(&self, key: Key, value: Option<&String>) -> Result<()> {
        let now = self.read()?.map_err(anyhow::Error::msg)?;
        let is = KEYS.iter().zip(now).find(|(known, _)| **known == key).and_then(|(_, value)| value);
        match value {
            Some(value) if is.as_ref() != Some(value) => self.set(key, value),
            _ => Ok(()),
        }
    }

    fn restore(&self, before: &[Option<String>]) -> Result<()> {
        let put = |(key, value): (&Key, &Option<String>)| self.put(*key, value.as_ref());
        let all: Vec<Result<()>> = KEYS.iter().zip(before).map(put).collect();
        all.into_iter()
            .collect::<Result<()>>()
            .with_context(|| format!("{}: interrupts could not be set back", self.name))
    }
}

/// Why the interfaces between the hosts cannot be set as the cell says, if they cannot.
pub fn objection(cell: &Cell, hosts: &[Host; 2], server: std::net::IpAddr) -> Result<Option<String>> {
    let Some(setting) = setting(cell)? else { return Ok(None) };
    let ends = ["the client's", "the server's"];
    for ((host, end), name) in hosts.iter().zip(ends).zip(links::between(hosts, server)?) {
        let ethtool = |words: &[&str]| links::output(host, SHELL.iter().chain(words).copied());
        if let Some(reason) = (Interface { name, ethtool: &ethtool }).objection(&setting)? {
            return Ok(Some(format!("{end} {reason}")));
        }
    }
    Ok(None)
}

/// Runs something while the interfaces between the hosts are set as the cell says.
pub fn with_coalescing<T>(
    cell: &Cell,
    hosts: &[Host; 2],
    server: std::net::IpAddr,
    run: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let Some(setting) = setting(cell)? else { return run() };
    let names = links::between(hosts, server)?;
    let ethtools =
        hosts.each_ref().map(|host| move |words: &[&str]| links::output(host, SHELL.iter().chain(words).copied()));
    let ends: Vec<Interface> =
        names.into_iter().zip(&ethtools).map(|(name, ethtool)| Interface { name, ethtool }).collect();
    changed(&ends, &setting, run)
}

fn changed<T>(ends: &[Interface], setting: &Setting, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut before = Vec::new();
    let set: Result<()> = ends.iter().try_for_each(|end| {
        before.push((end, end.change(setting)?));
        Ok(())
    });
    let result = set.and_then(|()| run());
    let restored: Vec<Result<()>> = before.iter().map(|(end, before)| end.restore(before)).collect();
    let result = result?;
    restored.into_iter().collect::<Result<()>>()?;
    Ok(result)
}

fn setting(cell: &Cell) -> Result<Option<Setting>> {
    cell.coalescing.as_deref().map(Setting::parse).transpose().map_err(anyhow::Error::msg)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use anyhow::bail;

    use super::*;

    fn says(code: i32, text: String) -> Output {
        Output { status: ExitStatus::from_raw(code << 8), text, complaint: String::new() }
    }

    /// An interface as drivers are: adaptive waiting forgets how long it was to wait.
    fn driver(state: &RefCell<(bool, u32)>, words: &[&str]) -> Result<Output> {
        let (adaptive, usecs) = *state.borrow();
        let on = if adaptive { "on" } else { "off" };
        match words {
            ["ethtool", "-c", _] => {
                return Ok(says(
                    0,
                    format!(
                        "Coalesce parameters for e:\nAdaptive RX: {on}  TX: n/a\nrx-usecs:\t{usecs}\nrx-frames:\tn/a\n"
                    ),
                ));
            }
            ["ethtool", "-C", _, "adaptive-rx", value] => *state.borrow_mut() = (*value == "on", 0),
            ["ethtool", "-C", _, "rx-usecs", value] => state.borrow_mut().1 = value.parse::<u32>()?.min(1000),
            _ => bail!("{words:?}"),
        }
        Ok(says(0, String::new()))
    }

    #[test]
    fn what_is_set_is_set_back_whatever_happens() {
        let states = [RefCell::new((false, 50)), RefCell::new((true, 0))];
        let ethtools = states.each_ref().map(|state| move |words: &[&str]| driver(state, words));
        let ends: Vec<Interface> = ethtools.iter().map(|ethtool| Interface { name: "e".into(), ethtool }).collect();
        let setting = Setting::parse("adaptive-rx=on").unwrap();
        let seen = changed(&ends, &setting, || Ok(states.each_ref().map(|state| *state.borrow()))).unwrap();
        assert_eq!(seen, [(true, 0), (true, 0)]);
        let now = || states.each_ref().map(|state| *state.borrow());
        assert_eq!(now(), [(false, 50), (true, 0)]);
        assert!(changed::<()>(&ends, &setting, || bail!("no luck")).is_err());
        assert_eq!(now(), [(false, 50), (true, 0)]);
        // A value that the driver does not keep is no measurement of it.
        let too_long = Setting::parse("rx-usecs=2000").unwrap();
        let why = changed(&ends, &too_long, || Ok(())).unwrap_err().to_string();
        assert!(why.contains("rx-usecs=2000 was set"), "{why}");
        assert_eq!(now(), [(false, 50), (true, 0)]);
    }

    #[test]
    fn what_an_interface_cannot_have_is_a_reason() {
        let veth = |_: &[&str]| Ok(says(1, "netlink error: Operation not supported".into()));
        let objection = |ethtool: &dyn Fn(&[&str]) -> Result<Output>, setting: &str| {
            let end = Interface { name: "veth0".into(), ethtool };
            end.objection(&Setting::parse(setting).unwrap()).unwrap()
        };
        assert!(objection(&veth, "rx-usecs=0").unwrap().contains("Operation not supported"));
        let simple = |_: &[&str]| Ok(says(0, "Adaptive RX: n/a  TX: n/a\nrx-usecs:\t3\n".into()));
        assert_eq!(objection(&simple, "rx-usecs=0"), None);
        assert_eq!(objection(&simple, "adaptive-rx=on").unwrap(), "veth0 has no adaptive-rx");
        let none = |_: &[&str]| Ok(says(127, String::new()));
        assert!(objection(&none, "rx-usecs=0").unwrap().contains("has no ethtool"));
    }

    #[test]
    fn settings_are_those_of_ethtool() {
        assert_eq!(Setting::parse("rx-usecs=125").unwrap().to_string(), "rx-usecs=125");
        for wrong in
            ["", "as-is", "adaptive-rx", "adaptive-rx=yes", "rx-usecs=-1", "rx-usecs=01", "rx-usecs=70000", "tx=on"]
        {
            assert!(Setting::parse(wrong).is_err(), "{wrong}");
        }
    }
}
