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
        Reason::NoDoor => "start the server with `beeline run`",
        Reason::CameOverTcp => "start the client with `beeline run`, or ask `beeline doctor` about it",
        Reason::ForeignUser => {
            "start both as one user, or set `foreign_uid=on` (docs/threat-model.md, *Between users*)"
        }
        Reason::HostileClients => {
            "find who does that (docs/threat-model.md); the doors open again by themselves, within a day"
        }
        Reason::DoorNotTrusted => {
            "let the user who opens the listener serve it, or set `trust_root_listeners=on` where root opens it"
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
        Reason::OvercommitStrict => {
            "set vm.overcommit_memory to 0, if the host's programs may do with that (docs/tuning.md, *The program's own limits*)"
        }
        Reason::MappingsShort => "raise the sysctl vm.max_map_count",
        Reason::MemoryLocked => "keep the program from locking all of its memory, if it has such an option",
        Reason::SystemCallDenied | Reason::SystemCallFilter => {
            "docs/services.md tells what a service may forbid itself; where the program sets up the filter, switch that off"
        }
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
        Reason::BridgeNoDoor | Reason::AgentNotTaken => "start the server with `beeline run`",
        Reason::AgentUnknown => "start the server with `beeline run`; if it is, the agent tries it again by itself",
        Reason::BridgeNotTrusted => "set `bridge_uid` to the user who runs it, or run it as root",
        Reason::LookupFailed => "a sandbox that forbids AF_NETLINK does this (docs/services.md)",
        Reason::BridgeNoRail => "`beeline bridge rails` tells why each is not used",
        Reason::BridgeSilent | Reason::AgentSilent => "look into the log of `beelined`",
        Reason::AgentRefused => "name both ends in the agent's configuration (docs/containers.md)",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing helps against what the program does, the kernel says, or another thread or process had to do with it.
    const HOPELESS: [Reason; 28] = [
        Reason::NoListener,
        Reason::DoorDied,
        Reason::ListenerOnlyWatched,
        Reason::PeerRefused,
        Reason::ListenerUnsupported,
        Reason::DoorNameTaken,
        Reason::SharedBeforeConnect,
        Reason::AsyncIo,
        Reason::FastOpen,
        Reason::AddressInUse,
        Reason::ConnectPending,
        Reason::SelfConnect,
        Reason::RightsShort,
        Reason::MapFailed,
        Reason::KernelUnsupported,
        Reason::VforkChild,
        Reason::Internal,
        Reason::BridgeFull,
        Reason::BridgeRejected,
        Reason::BridgeLeaving,
        Reason::RelayFailed,
        Reason::DeeplyBound,
        Reason::RawSystemCalls,
        Reason::OtherNamespace,
        Reason::AgentFull,
        Reason::AgentNotTrusted,
        Reason::AgentPending,
        Reason::AgentUnproved,
    ];

    #[test]
    fn each_reason_has_a_remedy_or_is_hopeless() {
        for reason in Reason::ALL {
            assert_ne!(of(reason.name()).is_some(), HOPELESS.contains(reason), "{}", reason.name());
        }
        assert_eq!(of("no such reason"), None);
    }

    /// A document that is named is there, and the name of an option is one.
    #[test]
    fn remedies_name_what_there_is() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let keys = beeline_stats::tunables::OptionSpec::all().map(|spec| spec.key);
        for reason in Reason::ALL {
            let Some(remedy) = of(reason.name()) else { continue };
            for word in remedy.split(|c: char| c.is_whitespace() || "(),;:".contains(c)) {
                if word.starts_with("docs/") {
                    let text = std::fs::read_to_string(root.join(word)).unwrap();
                    assert!(text.contains(reason.name()), "{word} says nothing of {}", reason.name());
                }
                if let Some((key, _)) = word.trim_matches('`').split_once('=') {
                    assert!(keys.contains(&key), "there is no option {key}");
                }
            }
        }
    }
}
