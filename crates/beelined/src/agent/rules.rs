//! Who may meet: `[namespaces]` of the configuration.
//!
//! 1. Two ends may meet if they are in one group, or everybody may (`all`). Without either nobody may.
//! 2. An end is in a group if it fits each kind of thing that the group names: network namespace, address, user.
//! 3. Namespace and user are those of the program that asks, by the kernel's word. The address is the one that it says,
//!    if the kernel says that its namespace has it. A namespace is named by its file in `/run/netns`; the agent's own
//!    one is `host`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use crate::prefix::without_host_bits;
use crate::user::User;

/// The name of the agent's own network namespace.
pub const HOST: &str = "host";
/// A set of groups is a word.
const GROUPS_MAX: usize = 63;
/// The group of everybody.
const EVERYBODY: u64 = 1 << GROUPS_MAX;

/// What becomes of a connection whose TCP connection is cut by a filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnCut {
    /// It ends.
    #[default]
    Cut,
    /// It goes on.
    Keep,
}

/// `[namespaces]` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Everybody may meet everybody.
    #[serde(default)]
    pub all: bool,
    /// What becomes of a connection whose TCP connection is cut.
    #[serde(default)]
    pub on_cut: OnCut,
    /// Whether the agent listens in the network namespaces that it finds, for programs that do not see its socket file.
    #[serde(default = "yes")]
    pub find: bool,
    /// Who may meet.
    #[serde(default)]
    pub groups: Vec<Group>,
}

fn yes() -> bool {
    true
}

/// Ends that may meet each other.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, try_from = "WrittenGroup")]
pub struct Group {
    namespaces: BTreeSet<String>,
    addresses: Vec<IpNet>,
    users: BTreeSet<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenGroup {
    #[serde(default)]
    namespaces: BTreeSet<String>,
    #[serde(default)]
    addresses: Vec<Net>,
    #[serde(default)]
    users: Vec<WrittenUser>,
}

/// An address, or a prefix.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Net(IpNet);

impl TryFrom<String> for Net {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let net: IpNet = net
            .map_err(|_| format!("`{}` is neither an IP address nor a prefix like 10.0.0.0/24", text.escape_debug()))?;
        without_host_bits(net).map(Self)
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a user's name or number")]
enum WrittenUser {
    Number(u32),
    Name(String),
}

impl TryFrom<WrittenGroup> for Group {
    type Error = String;

    fn try_from(written: WrittenGroup) -> Result<Self, String> {
        if written.namespaces.is_empty() && written.addresses.is_empty() && written.users.is_empty() {
            return Err("a group names `namespaces`, `addresses` or `users`; for everybody write `all = true`".into());
        }
        let number = |user| match user {
            WrittenUser::Number(uid) => Ok(uid),
            WrittenUser::Name(name) => match User::find(&name) {
                Ok(Some(user)) => Ok(user.uid()),
                Ok(None) => Err(format!("there is no user `{name}`")),
                Err(error) => Err(format!("{error:#}")),
            },
        };
        let users = written.users.into_iter().map(number).collect::<Result<_, _>>()?;
        let addresses = written.addresses.into_iter().map(|net| net.0).collect();
        Ok(Self { namespaces: written.namespaces, addresses, users })
    }
}

impl Rules {
    /// What is wrong with them, if anything.
    pub fn check(&self) -> Result<(), String> {
        if self.groups.len() > GROUPS_MAX {
            return Err(format!("there are more than {GROUPS_MAX} groups"));
        }
        Ok(())
    }

    /// Whether a namespace's name matters to anybody.
    pub fn name_namespaces(&self) -> bool {
        self.groups.iter().any(|group| !group.namespaces.is_empty())
    }

    /// Whether an address matters to anybody.
    pub fn name_addresses(&self) -> bool {
        self.groups.iter().any(|group| !group.addresses.is_empty())
    }

    /// The groups that an end is in, or may turn out to be in while its address is not known.
    pub fn groups(&self, namespace: Option<&str>, address: Option<IpAddr>, user: u32) -> u64 {
        let fits = |group: &Group| {
            (group.namespaces.is_empty() || namespace.is_some_and(|name| group.namespaces.contains(name)))
                && (group.users.is_empty() || group.users.contains(&user))
                && (group.addresses.is_empty()
                    || address.is_none_or(|address| group.addresses.iter().any(|net| net.contains(&address))))
        };
        let named = self.groups.iter().enumerate().filter(|(_, group)| fits(group));
        let everybody = if self.all { EVERYBODY } else { 0 };
        named.fold(everybody, |set, (index, _)| set | 1 << index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        toml::from_str(text).unwrap()
    }

    fn may_meet(rules: &Rules, one: (&str, &str, u32), two: (&str, &str, u32)) -> bool {
        let groups =
            |(namespace, address, user): (&str, &str, u32)| rules.groups(Some(namespace), address.parse().ok(), user);
        groups(one) & groups(two) != 0
    }

    const ANNA: (&str, &str, u32) = ("a", "10.0.0.1", 7);
    const BERT: (&str, &str, u32) = ("b", "10.0.0.2", 8);
    const CARL: (&str, &str, u32) = ("c", "10.9.0.2", 8);

    #[test]
    fn nobody_may_meet_unless_it_is_written() {
        assert!(!may_meet(&rules(""), ANNA, BERT));
        assert!(!may_meet(&rules("on_cut = 'keep'"), ANNA, ANNA));
        assert!(may_meet(&rules("all = true"), ANNA, BERT));
    }

    #[test]
    fn both_ends_must_be_in_one_group() {
        let two = rules("groups = [{ namespaces = ['a', 'b'] }, { namespaces = ['c'] }]");
        assert!(may_meet(&two, ANNA, BERT));
        assert!(!may_meet(&two, ANNA, CARL));
        assert!(may_meet(&two, CARL, CARL));
        assert_eq!(two.groups(None, None, 0), 0, "a namespace without a name");
    }

    #[test]
    fn an_end_must_fit_all_that_a_group_names() {
        let both = rules("groups = [{ addresses = ['10.0.0.0/24'], users = [7, 8] }]");
        assert!(may_meet(&both, ANNA, BERT));
        assert!(!may_meet(&both, ANNA, CARL), "the address");
        assert!(!may_meet(&both, ("a", "10.0.0.3", 9), BERT), "the user");
        let before = both.groups(None, None, 7);
        assert_ne!(before, 0, "the address is not known yet");
        assert_eq!(both.groups(None, ANNA.1.parse().ok(), 7), before);
        assert_eq!(both.groups(None, CARL.1.parse().ok(), 7), 0);
        assert!(both.name_addresses() && !rules("all = true").name_addresses());
    }

    #[test]
    fn an_address_may_stand_for_itself() {
        let one = rules("groups = [{ addresses = ['10.0.0.1', '10.0.0.2', 'fd00::/8'] }]");
        assert!(may_meet(&one, ANNA, BERT) && !may_meet(&one, ANNA, CARL));
    }

    #[test]
    fn an_address_is_not_silently_its_whole_network() {
        for (written, meant) in [("10.89.99.1/24", "10.89.99.0/24"), ("fd00::1/64", "fd00::/64")] {
            let wrong = toml::from_str::<Rules>(&format!("groups = [{{ addresses = ['{written}'] }}]")).unwrap_err();
            let says = format!("`{written}` has bits beyond its length; did you mean `{meant}`?");
            assert!(wrong.message().contains(&says), "{wrong}");
            assert!(toml::from_str::<Rules>(&format!("groups = [{{ addresses = ['{meant}'] }}]")).is_ok(), "{meant}");
        }
    }

    #[test]
    fn what_means_nothing_is_an_error() {
        for wrong in [
            "groups = [{}]",
            "all = 1",
            "groups = [{ users = ['no such user'] }]",
            "on_cut = 'x'",
            "x = 1",
            "groups = [{ addresses = ['x'] }]",
        ] {
            assert!(toml::from_str::<Rules>(wrong).is_err(), "{wrong}");
        }
    }
}
