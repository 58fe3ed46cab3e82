//! What this host, and whoever asks, have and lack.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use beeline_status::{Problem, number};
use beeline_wire::agent::{NAME, SOCKET};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::finding::{Finding, State};
use super::trial;
use crate::cli::DoctorArgs;
use crate::configuration;
use crate::library::Library;
use crate::profile::Chosen;
use crate::stat::bridge::Bridge;
use crate::stat::collect::SHARED_MEMORY;

/// Descriptors that a busy server should have at least.
const DESCRIPTORS_FEW: u64 = 1024;
/// Since then the kernel keeps descriptors from those who do not want any (`SO_PASSRIGHTS`).
const KERNEL_FOR_OTHER_USERS: (u32, u32) = (6, 16);

pub fn look(arguments: &DoctorArgs) -> Vec<Finding> {
    // What `beeline run` would give a program.
    let chosen = Chosen::usual(true, None);
    let is_strict = chosen.as_ref().is_ok_and(Chosen::is_strict);
    let options = chosen.and_then(|chosen| chosen.list());
    let mut findings = vec![kernel(), library(arguments), configured(&options)];
    findings.extend(limits());
    findings.extend([shared_memory(), cpus(), packet_filters(is_strict), agent(), bridge()]);
    // What is wrong with library or options would be said twice.
    if findings.iter().all(|finding| finding.state != State::Problem) {
        findings.push(tried(arguments));
    }
    findings
}

fn kernel() -> Finding {
    let Ok(system) = nix::sys::utsname::uname() else { return Finding::note("kernel", "it does not say what it is") };
    let (release, machine) = (system.release().to_string_lossy(), system.machine().to_string_lossy());
    let says = format!("Linux {release}, {machine}");
    if machine != "x86_64" {
        return Finding::problem("kernel", says).with_remedy("lanes are for x86_64 alone");
    }
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < KERNEL_FOR_OTHER_USERS {
        return Finding::note("kernel", format!("{says}: lanes between different users need 6.16"))
            .with_remedy("`foreign_uid=on` allows them; docs/threat-model.md says what that means");
    }
    Finding::good("kernel", says)
}

fn library(arguments: &DoctorArgs) -> Finding {
    let library = match Library::find(arguments.library.as_deref()) {
        Ok(library) => library,
        Err(error) => return Finding::problem("library", format!("{error:#}")),
    };
    let path = library.path.display().to_string();
    if statvfs(&library.path).is_ok_and(|mount| mount.flags().contains(FsFlags::ST_NOEXEC)) {
        return Finding::problem("library", format!("{path} lies on a file system that is mounted noexec"));
    }
    // A program that runs as another user opens it as that user.
    let is_open_to_all = |path: &Path, bits: u32| {
        std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & bits == bits)
    };
    let directories = library.path.ancestors().skip(1);
    match directories.into_iter().all(|directory| is_open_to_all(directory, 0o001))
        && is_open_to_all(&library.path, 0o004)
    {
        true => Finding::good("library", path),
        false => {
            Finding::note("library", format!("{path} cannot be read by all users: programs of others run without it"))
                .with_remedy("install it (`make install`, or the Debian package)")
        }
    }
}

fn configured(options: &anyhow::Result<Option<String>>) -> Finding {
    match options {
        Ok(None) => Finding::good("options", "defaults"),
        Ok(Some(list)) => Finding::good("options", list.replace(',', ", ")),
        Err(error) => Finding::problem("options", format!("{error:#}")).with_remedy("`beeline run --help` lists them"),
    }
}

/// Limits of whoever asks, which programs inherit.
fn limits() -> Vec<Finding> {
    let soft = |resource| getrlimit(resource).map_or(RLIM_INFINITY, |(soft, _)| soft);
    let mut findings = Vec::new();
    let descriptors = soft(Resource::RLIMIT_NOFILE);
    findings.push(match descriptors {
        DESCRIPTORS_FEW.. => Finding::good("descriptors", format!("up to {descriptors}")),
        _ => Finding::note(
            "descriptors",
            format!("up to {descriptors}: a server with many connections has lanes for a part of them"),
        )
        .with_remedy("ulimit -n"),
    });
    for (resource, name, reason) in [
        (Resource::RLIMIT_AS, "address space", "address_space_limited"),
        (Resource::RLIMIT_FSIZE, "file size", "file_size_limited"),
    ] {
        let limit = soft(resource);
        if limit != RLIM_INFINITY {
            let says = format!("limited to {}, which counts for lanes ({reason})", number::bytes(limit));
            findings.push(Finding::note(name, says).with_remedy_of(reason));
        }
    }
    findings
}

fn shared_memory() -> Finding {
    let (what, path) = ("shared memory", SHARED_MEMORY);
    match statvfs(path) {
        Err(error) => Finding::note(what, format!("{path}: {error}; there are no statistics")),
        Ok(mount) if mount.flags().contains(FsFlags::ST_RDONLY) => {
            Finding::note(what, format!("{path} is read-only; there are no statistics"))
        }
        Ok(mount) => {
            let free = mount.blocks_available().saturating_mul(mount.fragment_size());
            let says = format!("{path} has {} free", number::bytes(free));
            if free < 1 << 20 {
                Finding::note(what, says).with_remedy("statistics need 100 KiB a process")
            } else {
                Finding::good(what, says)
            }
        }
    }
}

fn cpus() -> Finding {
    match std::thread::available_parallelism().map_or(1, std::num::NonZero::get) {
        1 => Finding::note(
            "CPUs",
            "one may be used: both ends take turns on it, and gain less than on two (docs/measurements.md)",
        ),
        more => Finding::good("CPUs", format!("{more} may be used")),
    }
}

/// Rules that hold for TCP and not for lanes, as far as the commands that list them are there and answer.
fn packet_filters(is_strict: bool) -> Finding {
    let what = "packet filter";
    let lists = [("nft", &["list", "tables"][..]), ("iptables-save", &[]), ("ip6tables-save", &[])];
    let mut asked = false;
    let mut rules = 0;
    for (command, arguments) in lists {
        let Some(list) = Command::new(command).args(arguments).output().ok().filter(|output| output.status.success())
        else {
            continue;
        };
        asked = true;
        let text = String::from_utf8_lossy(&list.stdout).into_owned();
        rules += text.lines().filter(|line| line.starts_with("table ") || line.starts_with("-A ")).count();
    }
    match (asked, rules, is_strict) {
        (false, ..) => Finding::note(
            what,
            "whether there are rules is not known: nft and iptables are not here, or answer root alone",
        )
        .with_remedy("if rules are to hold between programs of this host: `policy=strict`"),
        (true, 0, _) => Finding::good(what, "no tables"),
        (true, _, true) => Finding::good(what, "there are rules, and `policy=strict` leaves connections to TCP"),
        (true, ..) => Finding::note(what, "there are rules; lanes within a network namespace do not pass them")
            .with_remedy("if they are to hold between programs of this host: `policy=strict` (docs/threat-model.md)"),
    }
}

fn agent() -> Finding {
    if std::fs::metadata(SOCKET).is_ok() {
        let text = format!("{SOCKET} is there: other network namespaces of this host can be reached");
        return Finding::good("agent", text);
    }
    let name = String::from_utf8_lossy(NAME);
    let names = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    if names.lines().any(|line| line.ends_with(&format!(" @{name}"))) {
        let text =
            format!("somebody listens as `{name}` in this network namespace: the host's agent, or who poses as it");
        return Finding::note("agent", text);
    }
    Finding::note("agent", "none: connections to other network namespaces of this host are TCP")
        .with_remedy("docs/containers.md")
}

fn bridge() -> Finding {
    match Bridge::ask(&configuration::admin_socket()) {
        Bridge::Running(running) => Finding::good("bridge", running.summary()),
        Bridge::Unknown(problem @ Problem::NotRunning(_)) => {
            Finding::note("bridge", format!("{problem}: connections to other hosts are TCP"))
                .with_remedy("docs/bridge.md")
        }
        Bridge::Unknown(problem) => {
            Finding::note("bridge", format!("what goes to other hosts is not known: {problem}"))
        }
    }
}

/// A lane, and TCP beside it.
fn tried(arguments: &DoctorArgs) -> Finding {
    let lane = match trial::make(arguments, &[]) {
        Ok(outcome) => outcome,
        Err(error) => return Finding::problem("trial", format!("{error:#}")),
    };
    let trip =
        |outcome: &trial::Outcome| format!("8 bytes there and back take {:.2} us", outcome.median.as_secs_f64() * 1e6);
    let mut says = trip(&lane);
    if let Ok(tcp) = trial::make(arguments, &["accelerate=off"]) {
        says += &format!("; over TCP {:.1} us", tcp.median.as_secs_f64() * 1e6);
    }
    match lane.lane {
        Ok(()) => Finding::good("trial", format!("two programs have a lane: {says}")),
        Err((name, sentence)) => {
            let reason = name.map(|name| format!("{name}: ")).unwrap_or_default();
            Finding::problem("trial", format!("two programs have no lane. {reason}{sentence}"))
                .with_remedy_of(name.unwrap_or_default())
        }
    }
}
