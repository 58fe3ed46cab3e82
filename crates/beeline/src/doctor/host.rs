//! What this host, and whoever asks, have and lack.

use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use beeline_stats::Reason;
use beeline_status::{Problem, number};
use beeline_wire::agent::{NAME, SOCKET};
use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::geteuid;

use super::finding::{Finding, State};
use super::trial::{self, Lane};
use crate::cli::DoctorArgs;
use crate::configuration;
use crate::library::Library;
use crate::profile::{self, Chosen};
use crate::stat::absent::Obstacle;
use crate::stat::bridge::Bridge;
use crate::stat::collect::SHARED_MEMORY;

/// Descriptors that a busy server should have at least.
const DESCRIPTORS_FEW: u64 = 1024;
/// 2 where the kernel counts all memory that is promised.
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";
/// What the finding of the trial is called.
pub const TRIAL: &str = "trial";
/// What is to be done about a configuration that cannot be read, or is not trusted.
const READABLE: &str = "make it root's or your own, for you to read and for nobody else to write; or leave it out (`beeline run --no-config`)";
/// What the finding of a limit of the address space is called.
const ADDRESS_SPACE: &str = "address space";
/// Since then the kernel keeps descriptors from those who do not want any (`SO_PASSRIGHTS`).
const KERNEL_FOR_OTHER_USERS: (u32, u32) = (6, 16);

pub fn look(arguments: &DoctorArgs) -> Vec<Finding> {
    // What `beeline run` would give a program.
    let chosen = Chosen::usual(true, None);
    let is_strict = chosen.as_ref().is_ok_and(Chosen::is_strict);
    let is_off = chosen.as_ref().is_ok_and(Chosen::is_off);
    let keeps_statistics = chosen.as_ref().is_ok_and(Chosen::keeps_statistics);
    let left_out = left_out(chosen.as_ref().ok().and_then(Chosen::warning));
    let options = chosen.and_then(|chosen| chosen.list());
    let mut findings = vec![kernel(), library(arguments), configured(&options, is_off)];
    findings.extend(left_out);
    findings.extend(user(geteuid().as_raw()));
    findings.extend(std::fs::read_to_string(OVERCOMMIT).ok().and_then(|says| overcommit(&says)));
    findings.extend(limits());
    findings.extend([shared_memory(), cpus(), packet_filters(is_strict), agent(), bridge()]);
    // What is wrong with library or options would be said twice.
    if findings.iter().all(|finding| finding.state != State::Problem) {
        let trial = tried(arguments, keeps_statistics);
        weigh(&mut findings, &trial);
        findings.push(trial);
    }
    findings
}

/// Under any limit of its address space a server has no lanes. A trial names the reason; where it cannot tell, for want
/// of statistics, the limit itself is the problem.
fn weigh(findings: &mut [Finding], trial: &Finding) {
    if trial.state == State::Note {
        let limits = findings.iter_mut().filter(|finding| finding.what == ADDRESS_SPACE);
        limits.for_each(|finding| finding.state = State::Problem);
    }
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

fn configured(options: &anyhow::Result<Option<String>>, is_off: bool) -> Finding {
    match options {
        Ok(Some(list)) if is_off => {
            Finding::note("options", format!("{}: all connections are TCP", list.replace(',', ", ")))
                .with_remedy_of(Reason::Disabled.name())
        }
        Ok(None) => Finding::good("options", "defaults"),
        Ok(Some(list)) => Finding::good("options", list.replace(',', ", ")),
        Err(error) => {
            let is_unreadable = error.root_cause().is::<std::io::Error>();
            let remedy = if is_unreadable { READABLE } else { "`beeline run --help` lists them" };
            Finding::problem("options", format!("{error:#}")).with_remedy(remedy)
        }
    }
}

/// Configurations that are there and say nothing: what is wrong with others is wrong with the options.
fn left_out(out_of_reach: Option<String>) -> impl Iterator<Item = Finding> {
    let found = [
        (out_of_reach, "HOME is to be the user's own (docs/services.md)"),
        (profile::not_looked_at(), "move it there, or unset XDG_CONFIG_HOME"),
        (configuration::left_out(), "it is to be root's, for nobody else to write, and for all to read"),
    ];
    found.into_iter().filter_map(|(says, remedy)| Some(Finding::note("configuration", says?).with_remedy(remedy)))
}

/// The user that stands for all those whom a user namespace does not have: the kernel's word for it names nobody.
fn user(uid: u32) -> Option<Finding> {
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    let is_nobody = overflow.ok()?.trim().parse() == Ok(uid);
    is_nobody.then(|| {
        let says = format!("{uid} stands for all users that are not known, so its programs have no lanes");
        Finding::problem("user", says).with_remedy("run them as a user of their own (docs/services.md)")
    })
}

/// Where memory is counted strictly there are no lanes.
fn overcommit(says: &str) -> Option<Finding> {
    (says.trim() == "2").then(|| {
        let says = "vm.overcommit_memory is 2: the kernel may refuse a page of a ring, so there are no lanes";
        Finding::problem("memory", says).with_remedy_of(Reason::OvercommitStrict.name())
    })
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
        (Resource::RLIMIT_AS, ADDRESS_SPACE, "address_space_limited"),
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
    let user = geteuid().as_raw();
    let own = format!("{path}/beeline-{user}");
    let obstacle = Obstacle::of_directory(Path::new(&own), &own, user);
    match statvfs(path) {
        Err(error) => Finding::note(what, format!("{path}: {error}; there are no statistics")),
        Ok(mount) if mount.flags().contains(FsFlags::ST_RDONLY) => {
            Finding::note(what, format!("{path} is read-only; there are no statistics"))
        }
        Ok(_) if let Some(obstacle) = &obstacle => {
            Finding::note(what, format!("{}; there are no statistics", obstacle.says())).with_remedy(obstacle.remedy())
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
        1 => Finding::note("CPUs", "one may be used: both ends take turns on it, and gain less than on two")
            .with_remedy("docs/measurements.md tells how much"),
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
    if let Some(finding) = agent_at(Path::new(SOCKET)) {
        return finding;
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

/// Whether an agent listens at its file; `None` where there is none. A connection that ends without a question is
/// nothing to it.
fn agent_at(path: &Path) -> Option<Finding> {
    let shown = path.display();
    match knock(path) {
        Ok(()) => {
            let text = format!("{shown} is there: other network namespaces of this host can be reached");
            Some(Finding::good("agent", text))
        }
        Err(Errno::ENOENT | Errno::ENOTDIR) => None,
        Err(Errno::ECONNREFUSED) => {
            let text =
                format!("{shown} was left by an agent that has ended: connections to other network namespaces are TCP");
            let remedy = "start it again (`systemctl start beeline-agent`, or `beelined agent`), or remove the file";
            Some(Finding::note("agent", text).with_remedy(remedy))
        }
        Err(errno) => {
            let text = format!("{shown} is there; whether an agent listens is not known: {}", errno.desc());
            Some(Finding::note("agent", text))
        }
    }
}

fn knock(path: &Path) -> Result<(), Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let end = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    match connect(end.as_raw_fd(), &UnixAddr::new(path)?) {
        // So many are waiting: somebody listens.
        Ok(()) | Err(Errno::EAGAIN) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn bridge() -> Finding {
    match Bridge::ask(&configuration::admin_socket()) {
        Bridge::Running(running) if running.has_no_rail() => {
            Finding::note("bridge", format!("{}: connections to other hosts are TCP", running.summary()))
                .with_remedy_of(Reason::BridgeNoRail.name())
        }
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
fn tried(arguments: &DoctorArgs, keeps_statistics: bool) -> Finding {
    let lane = match trial::make(arguments, &[]) {
        Ok(outcome) => outcome,
        Err(error) => return Finding::problem(TRIAL, format!("{error:#}")),
    };
    let trip =
        |outcome: &trial::Outcome| format!("8 bytes there and back take {:.2} us", outcome.median.as_secs_f64() * 1e6);
    let mut says = trip(&lane);
    if let Ok(tcp) = trial::make(arguments, &["accelerate=off"]) {
        says += &format!("; over TCP {:.1} us", tcp.median.as_secs_f64() * 1e6);
    }
    match lane.lane {
        Lane::Stood => Finding::good(TRIAL, format!("two programs have a lane: {says}")),
        Lane::Missing(name, sentence) => {
            let reason = name.map(|name| format!("{name}: ")).unwrap_or_default();
            Finding::problem(TRIAL, format!("two programs have no lane. {reason}{sentence}"))
                .with_remedy_of(name.unwrap_or_default())
        }
        Lane::NotKnown(..) if !keeps_statistics => {
            let text =
                format!("{says}; whether two programs have a lane is not known: they keep no statistics (stats=off)");
            Finding::note(TRIAL, text).with_remedy("ask without `stats=off`")
        }
        Lane::NotKnown(sentence, remedy) => {
            let finding =
                Finding::note(TRIAL, format!("{says}; whether two programs have a lane is not known. {sentence}"));
            Finding { remedy: remedy.map(str::to_owned), ..finding }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{Backlog, bind, listen};

    #[test]
    fn an_agent_that_has_ended_is_told_from_one_that_listens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        assert_eq!(agent_at(&path), None);
        let agent = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(agent.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&agent, Backlog::new(1).unwrap()).unwrap();
        assert_eq!(agent_at(&path).unwrap().state, State::Good);
        drop(agent);
        let left = agent_at(&path).unwrap();
        assert!(left.state == State::Note && left.says.contains("left by an agent that has ended"), "{left:?}");
        assert!(left.remedy.unwrap().contains("beelined agent"));
    }

    #[test]
    fn a_limit_of_the_address_space_is_a_problem_where_the_trial_cannot_tell() {
        let limit = Finding::note(ADDRESS_SPACE, "limited");
        let after = |trial: Finding| {
            let mut findings = [Finding::note("CPUs", "one"), limit.clone()];
            weigh(&mut findings, &trial);
            findings.map(|finding| finding.state)
        };
        assert_eq!(after(Finding::note(TRIAL, "not known")), [State::Note, State::Problem]);
        assert_eq!(after(Finding::good(TRIAL, "a lane")), [State::Note; 2]);
        assert_eq!(after(Finding::problem(TRIAL, "address_space_limited")), [State::Note; 2]);
    }

    #[test]
    fn where_memory_is_counted_strictly_there_are_no_lanes() {
        let finding = overcommit("2\n").unwrap();
        assert!(finding.state == State::Problem && finding.remedy.unwrap().contains("vm.overcommit_memory"));
        assert_eq!(["0\n", "1\n", ""].map(overcommit), [None, None, None]);
    }

    #[test]
    fn the_user_who_stands_for_all_others_has_no_lanes() {
        let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap().trim().parse::<u32>().unwrap();
        let finding = user(overflow).unwrap();
        assert!(finding.state == State::Problem && finding.remedy.unwrap().contains("user of their own"));
        assert_eq!(user(overflow - 1), None);
    }
}
