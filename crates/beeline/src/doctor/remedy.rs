//! What a user can do about a reason.

use beeline_stats::Reason;

/// What to do, where there is something: by the reason's name.
pub fn of(name: &str) -> Option<&'static str> {
    let reason = *Reason::ALL.iter().find(|reason| reason.name() == name)?;
    Some(match reason {
        Reason::Disabled => {
            "see `accelerate` and rules in `beeline set PID --list`, /etc/beeline/config.toml and your own"
        }
        Reason::PolicyStrict => "take `policy=strict` back, if no packet filter is to hold between these programs",
        Reason::NotLocal => {
            "for another network namespace start the agent (docs/containers.md), for another host the bridge (docs/bridge.md)"
        }
        Reason::AddressTranslated => "connect to the address itself",
        Reason::NoDoor => "start the server with `beeline run`",
        Reason::CameOverTcp => "start the client with `beeline run`, or ask `beeline doctor` about it",
        Reason::DoorNotTrusted | Reason::ForeignUser => {
            "start both as one user, or allow it with a rule or an option (docs/threat-model.md)"
        }
        Reason::HelloNotTaken | Reason::DoorFull => {
            "none, if the server was stopped or busy for a moment; else `beeline doctor` about the server"
        }
        Reason::VersionMismatch => "restart both ends, after an upgrade the older one",
        Reason::UnknownSocket => "start the program that opens the socket with `beeline run` as well",
        Reason::OptionUnsupported => "docs/semantics.md tells which options lanes honour",
        Reason::ExplicitBindUnsupported => "let the kernel choose the client's port, or start both ends as one user",
        Reason::StdioDescriptor => "give the program /dev/null as its standard descriptors",
        Reason::DescriptorsShort | Reason::DescriptorOutOfRange => {
            "set another limit of open files (ulimit -n); an open lane keeps up to three"
        }
        Reason::MemoryShort => "lower `ring_bytes`, or close connections",
        Reason::AddressSpaceLimited => "raise RLIMIT_AS (ulimit -v)",
        Reason::FileSizeLimited => "raise RLIMIT_FSIZE (ulimit -f)",
        Reason::MemoryLimited => "raise the cgroup's memory limit, or lower `ring_bytes`",
        Reason::MappingsShort => "raise the sysctl vm.max_map_count",
        Reason::MemoryLocked => "raise RLIMIT_MEMLOCK (ulimit -l)",
        Reason::SystemCallDenied | Reason::SystemCallFilter => "docs/containers.md tells which system calls lanes need",
        Reason::NotLoadable => "a dynamically linked build with glibc, and without set-uid or file capabilities",
        Reason::IoUringDenied | Reason::IoUringCarried => {
            "switch io_uring off in the program, if it has such an option"
        }
        Reason::ShortLived => "none: TCP is faster there; `short_lived_lanes=on` has lanes all the same",
        Reason::BridgeShortLived | Reason::AgentShortLived => {
            "none: TCP is faster there; `bridge_short_lived=on` has lanes all the same"
        }
        Reason::BridgeSlower => "none: TCP is faster there at the moment",
        Reason::BridgeNoPeer => "name the other host in /etc/beeline/beelined.toml, if it has a bridge",
        Reason::BridgeNoDoor | Reason::AgentUnknown | Reason::AgentNotTaken => "start the server with `beeline run`",
        Reason::BridgeNoRail => "`beeline bridge rails` tells why each is not used",
        Reason::BridgeSilent | Reason::AgentSilent => "look into the log of `beelined`",
        Reason::AgentRefused => "name both ends in the agent's configuration (docs/containers.md)",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_reasons_have_a_remedy_and_others_none() {
        assert!(Reason::ALL.iter().filter(|reason| of(reason.name()).is_some()).count() > Reason::ALL.len() / 2);
        assert_eq!(of("internal"), None);
        assert_eq!(of("no such reason"), None);
    }
}
