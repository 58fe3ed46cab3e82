//! Programs of others as work: MPIs, NetPIPE, iperf and its like, an iSCSI disk. The instrument builds none of them; it
//! finds what Debian's packages bring, or says which package is missing.
//!
//! 1. A program is a script of the shell ([`SCRIPTS`], or a file that a plan names), so that a reader sees what is run.
//!    Its words are those of `programs/common.sh`; it prints its figures in one form.
//! 2. Over Beeline the whole script has the library preloaded, daemons and launchers with it, and nothing else differs.
//! 3. A program may have other transports of its own, such as shared memory: columns beside, where a plan asks for
//!    them.
//! 4. All that a script started ends with it ([`family`]), also when the instrument is interrupted.
//! 5. Between hosts the script runs at the client's, and reaches the server's as [`apart`] tells it.

pub mod apart;
mod family;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use super::axis::Beside;
use super::cell::Work;
use super::figure::{Figure, Sample};
use crate::acceleration::Carried;
use crate::hosts::Host;
use crate::process::find;
use apart::Apart;
use family::Family;

/// Starting daemons and ending them, beside the sample.
const PATIENCE: Duration = Duration::from_secs(60);
/// Ports of programs.
const PORTS: std::ops::Range<u16> = 12_000..30_000;
/// The exit code of a script on a host that cannot have it, with the reason as its last line.
const ABSENT: i32 = 77;
const COMMON: &str = include_str!("programs/common.sh");
/// What runs the patterns [`PATTERNS`], of every MPI.
const PATTERNS_PY: &str = include_str!("programs/patterns.py");
const PATTERNS: [&str; 2] = ["sendrecv", "exchange"];

/// A program that comes with the instrument.
struct Script {
    name: &'static str,
    text: &'static str,
    /// What the script is asked for, where it can do several things.
    pattern: &'static str,
    /// Programs, each with the Debian package that brings it; those without one are Intel's.
    needs: &'static [(&'static str, &'static str)],
    /// Whether it times messages there and back; else it has a stream.
    has_latency: bool,
    /// Other transports that it has.
    beside: &'static [Beside],
    /// Whether its two ends can be on two hosts.
    is_between: bool,
    /// Milliseconds that a sample takes longer than it lasts: daemons start and end. For the estimate of a whole run.
    idle_ms: u64,
}

/// Of most programs.
const IDLE_MS: u64 = 400;

const PYTHON: (&str, &str) = ("/usr/bin/python3", "python3");
const OPENMPI: Script = Script {
    name: "openmpi",
    text: include_str!("programs/openmpi.sh"),
    pattern: "pingpong",
    needs: &[("mpirun.openmpi", "openmpi-bin"), ("NPopenmpi", "netpipe-openmpi")],
    has_latency: true,
    beside: &[Beside::SharedMemory, Beside::Ucx, Beside::Libfabric, Beside::Verbs],
    is_between: true,
    idle_ms: IDLE_MS,
};
const OPENMPI_PATTERN: Script = Script { needs: &[("mpirun.openmpi", "openmpi-bin"), PYTHON], ..OPENMPI };
const MPICH: Script = Script {
    name: "mpich",
    text: include_str!("programs/mpich.sh"),
    pattern: "pingpong",
    needs: &[("mpirun.mpich", "mpich"), ("NPmpich2", "netpipe-mpich2")],
    has_latency: true,
    beside: &[Beside::SharedMemory, Beside::Ucx, Beside::Verbs],
    is_between: true,
    idle_ms: IDLE_MS,
};
const MPICH_PATTERN: Script = Script { needs: &[("mpirun.mpich", "mpich"), PYTHON], ..MPICH };
const LAM: Script = Script {
    name: "lam",
    text: include_str!("programs/lam.sh"),
    pattern: "pingpong",
    needs: &[("lamboot", "lam-runtime"), ("mpirun.lam", "lam-runtime"), ("NPlam", "netpipe-lam")],
    has_latency: true,
    beside: &[Beside::SharedMemory],
    is_between: false,
    idle_ms: 3_600,
};
const LAM_PATTERN: Script =
    Script { needs: &[("lamboot", "lam-runtime"), ("mpirun.lam", "lam-runtime"), PYTHON], ..LAM };
const IMB: Script = Script {
    name: "imb-pingpong",
    text: include_str!("programs/imb.sh"),
    pattern: "PingPong",
    needs: &[("IMB-MPI1", ""), ("mpiexec.hydra", "")],
    has_latency: true,
    beside: &[Beside::SharedMemory],
    is_between: true,
    idle_ms: IDLE_MS,
};
const STREAM: Script = Script {
    name: "",
    text: "",
    pattern: "stream",
    needs: &[],
    has_latency: false,
    beside: &[],
    is_between: true,
    idle_ms: 700,
};

/// All of them.
const SCRIPTS: &[Script] = &[
    OPENMPI,
    Script { name: "openmpi-sendrecv", pattern: "sendrecv", ..OPENMPI_PATTERN },
    Script { name: "openmpi-exchange", pattern: "exchange", ..OPENMPI_PATTERN },
    MPICH,
    Script { name: "mpich-both", pattern: "both", ..MPICH },
    Script { name: "mpich-sendrecv", pattern: "sendrecv", ..MPICH_PATTERN },
    Script { name: "mpich-exchange", pattern: "exchange", ..MPICH_PATTERN },
    LAM,
    Script { name: "lam-sendrecv", pattern: "sendrecv", ..LAM_PATTERN },
    Script { name: "lam-exchange", pattern: "exchange", ..LAM_PATTERN },
    IMB,
    Script { name: "imb-sendrecv", pattern: "Sendrecv", ..IMB },
    Script { name: "imb-exchange", pattern: "Exchange", ..IMB },
    Script {
        name: "netpipe",
        text: include_str!("programs/netpipe.sh"),
        pattern: "pingpong",
        needs: &[("NPtcp", "netpipe-tcp")],
        has_latency: true,
        beside: &[],
        is_between: true,
        idle_ms: IDLE_MS,
    },
    Script {
        name: "pvm",
        text: include_str!("programs/pvm.sh"),
        pattern: "pingpong",
        needs: &[("pvmd", "pvm"), ("NPpvm", "netpipe-pvm"), ("ip", "iproute2"), ("unshare", "util-linux")],
        has_latency: true,
        beside: &[],
        is_between: false,
        idle_ms: IDLE_MS,
    },
    Script { name: "iperf3", text: include_str!("programs/iperf3.sh"), needs: &[("iperf3", "iperf3")], ..STREAM },
    Script { name: "iperf", text: include_str!("programs/iperf.sh"), needs: &[("iperf", "iperf")], ..STREAM },
    Script { name: "nuttcp", text: include_str!("programs/nuttcp.sh"), needs: &[("nuttcp", "nuttcp")], ..STREAM },
    Script {
        name: "iscsi",
        text: include_str!("programs/iscsi.sh"),
        needs: &[("tgtd", "tgt"), ("tgtadm", "tgt"), ("iscsi-perf", "libiscsi-bin")],
        is_between: false,
        ..STREAM
    },
];

/// Why a plan cannot have the program, if it cannot: an unknown one, or one that has other figures than the work.
pub fn objection(program: &str, work: Work) -> Option<String> {
    if program.contains('/') {
        return None;
    }
    let Some(script) = SCRIPTS.iter().find(|script| script.name == program) else {
        let names: Vec<&str> = SCRIPTS.iter().map(|script| script.name).collect();
        return Some(format!(
            "there is no program \"{program}\": expected a script's path or one of {}",
            names.join(", ")
        ));
    };
    let is_fit = script.has_latency || work == Work::ProgramStream;
    (!is_fit).then(|| format!("{program} times no messages there and back: expected `work` to be \"program-stream\""))
}

/// How long a sample takes longer than it lasts, about.
pub fn idle_time(program: &str) -> Duration {
    let script = SCRIPTS.iter().find(|script| script.name == program);
    Duration::from_millis(script.map_or(IDLE_MS, |script| script.idle_ms))
}

/// Why this host cannot run the program.
pub fn missing(program: &str) -> Option<String> {
    let Some(script) = SCRIPTS.iter().find(|script| script.name == program) else {
        return (!Path::new(program).is_file()).then(|| format!("there is no script {program}"));
    };
    let lacks = |(program, _): &&(&str, &str)| !is_there(program);
    let (program, package) = script.needs.iter().find(lacks)?;
    Some(match package.is_empty() {
        false => format!("{program} is not installed (Debian package: {package})"),
        true => format!(
            "{program} is neither in PATH nor in $I_MPI_ROOT/bin; Intel's MPI has it (PyPI's impi-rt), and no Debian package"
        ),
    })
}

/// Why a program cannot have its two ends on two hosts.
pub fn not_between(program: &str) -> Option<String> {
    let script = SCRIPTS.iter().find(|script| script.name == program)?;
    (!script.is_between).then(|| match program {
        _ if script.text == LAM.text => "LAM refuses root, and what it starts on another host takes that".to_owned(),
        _ => format!("the instrument runs {program} on one host only"),
    })
}

/// Why a program has no such column beside.
pub fn without(program: &str, beside: Beside) -> Option<String> {
    let script = SCRIPTS.iter().find(|script| script.name == program)?;
    (!script.beside.contains(&beside)).then(|| format!("{program} has no such transport as Debian builds it"))
}

fn is_there(program: &str) -> bool {
    match program.starts_with('/') {
        true => Path::new(program).exists(),
        // Daemons lie where a user's PATH may not lead, and Intel's MPI where its own variable says.
        false => find(program).is_some() || Path::new("/usr/sbin").join(program).is_file() || is_intels(program),
    }
}

fn is_intels(program: &str) -> bool {
    std::env::var_os("I_MPI_ROOT").is_some_and(|root| Path::new(&root).join("bin").join(program).is_file())
}

/// The packages of these programs with their versions, as Debian's package manager knows them: which MPI it is moves
/// figures as much as which library.
pub fn packages<'a>(programs: impl Iterator<Item = &'a str>) -> Vec<String> {
    let programs: BTreeSet<&str> = programs.collect();
    let needs = SCRIPTS.iter().filter(|script| programs.contains(script.name)).flat_map(|script| script.needs);
    let packages: BTreeSet<&str> = needs.map(|(_, package)| *package).filter(|package| !package.is_empty()).collect();
    if packages.is_empty() {
        return Vec::new();
    }
    let asked =
        Command::new("dpkg-query").args(["--show", "--showformat=${Package} ${Version}\\n"]).args(packages).output();
    let told = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    told.lines().filter(|line| line.contains(' ') && !line.ends_with(' ')).map(str::to_owned).collect()
}

/// How a program is run.
pub struct Way<'a> {
    /// Preloaded, for Beeline's column, with the options of the library.
    pub library: Option<(&'a Path, &'a str)>,
    /// A transport of the program's own instead of TCP.
    pub beside: Option<Beside>,
    /// The CPUs of its two ends; nothing of it uses others.
    pub cpus: [Option<usize>; 2],
    pub sample: Duration,
    /// The hosts of its two ends, where they are not this one.
    pub apart: Option<Apart>,
}

/// What came of it.
pub enum Ran {
    Measured(Sample, Carried),
    /// The script says that this host cannot have it.
    Absent(String),
}

/// Runs a program once with messages of a size.
///
/// # Errors
/// When it fails, does not end, or gives no figure.
pub fn run(program: &str, bytes: u64, way: &Way) -> Result<Ran> {
    let script = SCRIPTS.iter().find(|script| script.name == program);
    let text = match script {
        Some(script) => script.text.to_owned(),
        None => std::fs::read_to_string(program).with_context(|| format!("cannot read the script {program}"))?,
    };
    let work = tempfile::tempdir().context("no directory for the program's files")?;
    let pattern = script.map_or("", |script| script.pattern);
    if PATTERNS.contains(&pattern) {
        let path = work.path().join("patterns.py");
        std::fs::write(&path, PATTERNS_PY).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let text = format!("{COMMON}\n{text}");
    let words = ["sh", "-euc", &text, program];
    let mut command = match &way.apart {
        Some(apart) => apart.command(words),
        None => Host::Local.command(words.into_iter()),
    };
    let each = way.sample.as_secs_f64();
    let patience = way.apart.as_ref().map_or(PATIENCE, |apart| apart.patience.max(PATIENCE));
    let cpu = |cpu: Option<usize>| cpu.map_or(String::new(), |cpu| cpu.to_string());
    command
        .env_remove("LD_PRELOAD")
        .env("LC_ALL", "C")
        .env("PORT", two_ports()?.to_string())
        .env("CPU_FIRST", cpu(way.cpus[0]))
        .env("CPU_SECOND", cpu(way.cpus[1]))
        .env("BYTES", bytes.to_string())
        .env("SECONDS_EACH", format!("{each:.3}"))
        .env("SECONDS_WHOLE", format!("{:.0}", each.ceil().max(1.0)))
        .env("SECONDS_MOST", (patience / 3).as_secs().to_string())
        .env("WAY", way.beside.map_or("tcp".to_owned(), crate::everyday::cell::word))
        .env("PATTERN", pattern);
    if let Some((library, options)) = way.library {
        command.env("LD_PRELOAD", library).env("BEELINE_OPTIONS", options);
    }
    // Those of another host are its own.
    let here = if way.apart.as_ref().is_some_and(Apart::is_far) { 1 } else { 2 };
    let cpus: Vec<usize> = way.cpus.into_iter().take(here).flatten().collect();
    let mut family = Family::start(command, &cpus, ("WORK", work.path()))?;
    let ended = family.wait(patience + 8 * way.sample);
    let carried = match way.library {
        Some(_) => family.carried(),
        None => Carried::default(),
    };
    drop(family);
    let ended = ended.with_context(|| program.to_owned())?;
    if ended.status.code() == Some(ABSENT) {
        return Ok(Ran::Absent(ended.last_complaint()));
    }
    ensure!(ended.status.success(), "{program}: {} ({})", ended.last_complaint(), ended.status);
    let sample = read(&ended.text).with_context(|| format!("{program} gave no figure: {}", ended.last_complaint()))?;
    Ok(Ran::Measured(sample, carried))
}

/// A port that was free a moment ago, and whose next one was. They lie below those that the kernel gives out itself,
/// which on a busy machine are taken by the time that a program comes to them.
fn two_ports() -> Result<u16> {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_micros());
    let count = u32::from(PORTS.end - PORTS.start);
    let candidates = (0..count).step_by(2).map(|step| PORTS.start + ((now + step) % count) as u16);
    let mut free = candidates.filter(|&port| is_free(port) && is_free(port + 1));
    free.next().context("no two ports are free")
}

/// The figures that a script printed; other lines are its programs' own.
fn read(text: &str) -> Option<Sample> {
    let mut sample = Sample::new();
    for line in text.lines() {
        let Some((word, number)) = line.split_once(' ') else { continue };
        let Ok(number) = number.trim().parse::<f64>() else { continue };
        match word {
            "mean_us" => sample.insert(Figure::Mean, number * 1e3),
            "bytes_per_second" => sample.insert(Figure::Throughput, number),
            _ => None,
        };
    }
    (!sample.is_empty() && sample.values().all(|value| value.is_finite() && *value > 0.0)).then_some(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> (tempfile::TempDir, String) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("own.sh");
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        (directory, path)
    }

    fn plain() -> Way<'static> {
        Way { library: None, beside: None, cpus: [None; 2], sample: Duration::from_millis(20), apart: None }
    }

    #[test]
    fn a_script_gives_figures_among_other_words() {
        let (_directory, path) =
            script("echo Hello 3; echo mean_us 2.5; echo bytes_per_second $((BYTES * 10)); [ -d \"$WORK\" ]");
        let Ran::Measured(sample, _) = run(&path, 4, &plain()).unwrap() else { panic!() };
        assert_eq!(sample, Sample::from([(Figure::Mean, 2500.0), (Figure::Throughput, 40.0)]));
    }

    #[test]
    fn a_script_that_fails_or_says_nothing_is_an_error_with_its_last_words() {
        for (text, expected) in [
            ("echo one >&2; echo 'no luck' >&2; exit 3", "no luck"),
            ("echo 'nothing to say' >&2", "gave no figure: nothing to say"),
            ("echo mean_us nan", "gave no figure"),
            ("await false", "in vain"),
        ] {
            let (_directory, path) = script(text);
            let error = format!("{:#}", run(&path, 4, &plain()).err().unwrap());
            assert!(error.contains(expected), "{text}: {error}");
        }
        let (_directory, path) = script("absent 'there is no moon'");
        let Ran::Absent(reason) = run(&path, 4, &plain()).unwrap() else { panic!() };
        assert_eq!(reason, "there is no moon");
    }

    #[test]
    fn programs_are_known_and_fit_their_work() {
        for script in SCRIPTS {
            assert_eq!(objection(script.name, Work::ProgramStream), None);
            assert_eq!(objection(script.name, Work::ProgramLatency).is_none(), script.has_latency, "{}", script.name);
            assert!(!script.needs.is_empty() && !script.text.is_empty(), "{}", script.name);
        }
        assert!(objection("nonsense", Work::ProgramLatency).unwrap().contains("openmpi"));
        assert_eq!(objection("./own.sh", Work::ProgramLatency), None);
        assert!(missing("./no-such-script").unwrap().contains("no-such-script"));
        assert!(without("lam", Beside::Ucx).is_some() && without("lam", Beside::SharedMemory).is_none());
    }

    #[test]
    fn scripts_are_shell() {
        for script in SCRIPTS {
            let text = format!("{COMMON}\n{}", script.text);
            let status = Command::new("sh").args(["-nc", &text]).status().unwrap();
            assert!(status.success(), "{}", script.name);
        }
    }
}
