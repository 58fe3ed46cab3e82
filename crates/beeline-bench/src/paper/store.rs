//! The directory of a run.
//!
//! - `plan.toml`: the plan as it was given.
//! - `settings.json`: what the command line said, and what was measured: a resumed run is the same or none.
//! - `samples.jsonl`: one [`Record`] a line, written when it is there. Nothing in it is ever changed.
//!
//! 1. A record is one write of a whole line. One that was cut off, by a full disk or by SIGKILL, is the last one; it is
//!    taken away when the run is resumed.
//! 2. The file of samples is locked while a run writes to it. A lock ends with its process, whatever ends that.
//! 3. `settings.json` is there before anything else and is put in place whole: a directory without it is no run.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::axis::{Beside, Hundredths};
use super::cell::Cell;
use super::figure::Sample;
use super::plan::{PaperPlan, Source};
use crate::acceleration::Carried;
use crate::machine::Machine;

const SCHEMA: &str = "beeline-paper/1";
const PLAN: &str = "plan.toml";
const SETTINGS: &str = "settings.json";
const SAMPLES: &str = "samples.jsonl";

/// Sizes of an axis in a quick run.
const QUICK_SIZES: usize = 5;
/// How narrow an interval is to be, where nobody says otherwise.
pub const WITHIN: Hundredths = Hundredths(500);

/// How a run is made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub schema: String,
    pub version: String,
    pub quick: bool,
    pub rounds: u32,
    pub sample_ms: u64,
    /// The intervals' confidence, in hundredths of a percent; rounds go on until they are narrow, if `within` is there.
    pub confidence: Hundredths,
    pub within: Option<Hundredths>,
    pub rounds_max: u32,
    /// How long a session goes on.
    #[serde(default)]
    pub minutes_max: Option<u32>,
    pub only: Vec<String>,
    pub cpus: Option<(usize, usize)>,
    pub library: Option<PathBuf>,
    /// Tells a library that was built anew from the one that was measured before.
    pub library_hash: Option<String>,
    pub options: Option<String>,
    pub hosts: Option<Between>,
}

/// The hosts of a run between two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Between {
    /// As on the command line.
    pub hosts: String,
    pub address: Option<std::net::IpAddr>,
    pub bridge_sockets: Option<[String; 2]>,
    pub patience: u64,
    pub remote: String,
}

/// A line of the samples.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Record {
    /// The run begins, or goes on.
    Session {
        machine: Machine,
        own_cost_ns: f64,
        /// Hashes of the library at each host, in their order; empty in a run of an older release.
        #[serde(default)]
        libraries: Vec<String>,
        /// Packages of the programs of others that the plan has, each with its version, as far as they are known.
        #[serde(default)]
        packages: Vec<String>,
    },
    /// A cell was measured over both.
    Pair {
        cell: String,
        round: u32,
        /// Seconds since the session's begin, by a clock that does not jump.
        at_s: f64,
        tcp: Sample,
        beeline: Sample,
        carried: Carried,
    },
    /// A cell was measured by other means as well.
    Beside { cell: String, round: u32, by: Beside, sample: Sample },
    /// Why it was not.
    NotBeside { cell: String, by: Beside, reason: String },
    /// A cell was not.
    Failed { cell: String, round: u32, error: String },
    /// A cell that this host cannot have.
    Absent { cell: String, reason: String },
    /// The session ended; `None` when nothing was left to do.
    End { early: Option<String> },
}

/// What is known of a cell.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub tcp: Vec<Sample>,
    pub beeline: Vec<Sample>,
    pub errors: Vec<String>,
    pub absent: Option<String>,
    pub carried: Carried,
    /// By other means, and why not.
    pub beside: BTreeMap<Beside, Vec<Sample>>,
    pub not_beside: BTreeMap<Beside, String>,
}

/// A run, as it is in its directory.
#[derive(Clone)]
pub struct Run {
    pub directory: PathBuf,
    pub plan: PaperPlan,
    /// The plan as it was given.
    pub text: String,
    pub settings: Settings,
    pub cells: Vec<Cell>,
    pub measured: BTreeMap<String, Measured>,
    pub machines: Vec<Machine>,
    /// Hashes of the library at each host.
    pub libraries: Vec<String>,
    /// Packages of programs of others, with their versions.
    pub packages: Vec<String>,
    pub own_cost_ns: Option<f64>,
    /// Why the last session ended early, if it did; also when nobody could say so.
    pub ended_early: Option<String>,
}

/// Where records go.
pub struct Writer {
    file: File,
    path: PathBuf,
}

impl Settings {
    pub fn schema() -> String {
        SCHEMA.to_owned()
    }

    /// The cells of the plan that these settings mean.
    pub fn cells(&self, plan: &PaperPlan) -> Vec<Cell> {
        let sizes_most = self.quick.then_some(QUICK_SIZES);
        let is_meant = |cell: &Cell| self.only.is_empty() || self.only.iter().any(|only| cell.name().contains(only));
        plan.cells(sizes_most).into_iter().filter(is_meant).collect()
    }
}

/// How long another program that measures into the same run is given to end.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

impl Writer {
    /// Makes the directory of a new run.
    pub fn create(directory: &Path, plan: &str, settings: &Settings) -> Result<Writer> {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        if directory.join(SETTINGS).exists() {
            bail!(
                "there is a run in {} already: `beeline bench paper --resume {}` goes on with it",
                directory.display(),
                directory.display()
            );
        }
        write_whole(&directory.join(PLAN), plan.as_bytes())?;
        let mut settings = serde_json::to_string_pretty(settings)?;
        settings.push('\n');
        write_whole(&directory.join(SETTINGS), settings.as_bytes())?;
        Writer::open(directory)
    }

    /// Locks the samples of a run, and takes a record away that was cut off.
    pub fn open(directory: &Path) -> Result<Writer> {
        let path = directory.join(SAMPLES);
        let file = OpenOptions::new().create(true).read(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        // A program that was killed just now may have children left, for a moment, that have the file open, too.
        let until = Instant::now() + LOCK_PATIENCE;
        let mut locked = file.try_lock();
        while matches!(locked, Err(TryLockError::WouldBlock)) && Instant::now() < until {
            std::thread::sleep(LOCK_PAUSE);
            locked = file.try_lock();
        }
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!("another program measures into {}", directory.display()),
            Err(TryLockError::Error(error)) => return Err(error).context(format!("cannot lock {}", path.display())),
        }
        let text = std::fs::read(&path)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        if whole < text.len() {
            file.set_len(whole as u64).with_context(|| format!("cannot repair {}", path.display()))?;
        }
        Ok(Writer { file, path })
    }

    /// Adds a record.
    pub fn add(&mut self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        self.file
            .write_all(&line)
            .with_context(|| format!("cannot write {}: what was measured before is kept", self.path.display()))
    }
}

/// Under another name first, so that a file is there whole or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&unfinished, path)
    };
    let result = write();
    if result.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    result.with_context(|| format!("cannot write {}", path.display()))
}

impl Run {
    /// Reads a run.
    ///
    /// # Errors
    /// With the file and the line that is not understood.
    pub fn read(directory: &Path) -> Result<Run> {
        let file = |name: &str| directory.join(name);
        let read = |name: &str| {
            std::fs::read_to_string(file(name))
                .with_context(|| format!("there is no run in {}: cannot read {name}", directory.display()))
        };
        let settings = read(SETTINGS)?;
        let settings: Settings = serde_json::from_str(&settings)
            .with_context(|| format!("{} is not what a run of this release has", file(SETTINGS).display()))?;
        ensure!(
            settings.schema == SCHEMA,
            "{}: form {} is not understood: expected {SCHEMA}",
            file(SETTINGS).display(),
            settings.schema
        );
        let text = read(PLAN)?;
        let plan = PaperPlan::parse(&Source { name: file(PLAN).display().to_string(), text: &text })?;
        let mut run = Run {
            directory: directory.to_owned(),
            cells: settings.cells(&plan),
            plan,
            text,
            settings,
            measured: BTreeMap::new(),
            machines: Vec::new(),
            libraries: Vec::new(),
            packages: Vec::new(),
            own_cost_ns: None,
            ended_early: Some("nothing was measured".into()),
        };
        let path = file(SAMPLES);
        let samples = match std::fs::read(&path) {
            // Ended between its beginning and its first record.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let samples = String::from_utf8_lossy(&samples);
        for (number, line) in samples.split_inclusive('\n').enumerate() {
            // One that was cut off is not counted (rule 1).
            let Some(line) = line.strip_suffix('\n') else { break };
            let record = serde_json::from_str(line)
                .with_context(|| format!("{}:{}: expected a record of a run", path.display(), number + 1))?;
            run.take(record);
        }
        Ok(run)
    }

    /// Takes a record in.
    pub fn take(&mut self, record: Record) {
        match record {
            Record::Session { machine, own_cost_ns, libraries, packages } => {
                self.machines.push(machine);
                (self.libraries, self.packages) = (libraries, packages);
                self.own_cost_ns = Some(own_cost_ns);
                self.ended_early = Some("it was killed, or is still being made".into());
                // What failed is tried again, and a host may have become able.
                for measured in self.measured.values_mut() {
                    measured.errors.clear();
                    measured.absent = None;
                    measured.not_beside.clear();
                }
            }
            Record::Pair { cell, tcp, beeline, carried, .. } => {
                let measured = self.measured.entry(cell).or_default();
                measured.tcp.push(tcp);
                measured.beeline.push(beeline);
                measured.carried.add(&carried);
            }
            Record::Beside { cell, by, sample, .. } => {
                self.measured.entry(cell).or_default().beside.entry(by).or_default().push(sample);
            }
            Record::NotBeside { cell, by, reason } => {
                self.measured.entry(cell).or_default().not_beside.insert(by, reason);
            }
            Record::Failed { cell, error, .. } => self.measured.entry(cell).or_default().errors.push(error),
            Record::Absent { cell, reason } => self.measured.entry(cell).or_default().absent = Some(reason),
            Record::End { early } => self.ended_early = early,
        }
    }

    /// What is known of a cell.
    pub fn of(&self, cell: &Cell) -> Option<&Measured> {
        self.measured.get(&cell.name())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::paper::figure::Figure;

    pub const PLAN_TEXT: &str = "format = 1\nname = \"p\"\ntitle = \"P\"\ndocument = \"D\"\n\
        [[table]]\nid = \"t\"\ntitle = \"T & <U>\"\nsource = \"S\"\nwork = \"latency\"\nbytes = [8, 64, \"64K\"]\n\
        [[table.published]]\nwhat = \"them\"\nfigure = \"p50\"\nvalue = \"12 us\"\n\
        [[table]]\nid = \"u\"\ntitle = \"U\"\nsource = \"S\"\nnot_measured = \"it cannot be\"\n";

    pub fn settings() -> Settings {
        Settings {
            schema: Settings::schema(),
            version: "0".into(),
            quick: false,
            rounds: 3,
            sample_ms: 10,
            confidence: Hundredths(9500),
            within: None,
            rounds_max: 30,
            minutes_max: None,
            only: Vec::new(),
            cpus: None,
            library: None,
            library_hash: None,
            options: None,
            hosts: None,
        }
    }

    pub fn pair(cell: &str, round: u32, tcp: f64, beeline: f64) -> Record {
        let sample = |value: f64| Sample::from([(Figure::P50, value), (Figure::P99, 2.0 * value)]);
        Record::Pair {
            cell: cell.into(),
            round,
            at_s: 0.0,
            tcp: sample(tcp),
            beeline: sample(beeline),
            carried: Carried::default(),
        }
    }

    #[test]
    fn a_record_that_was_cut_off_is_taken_away_and_the_rest_stays() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(directory.path(), PLAN_TEXT, &settings()).unwrap();
        writer.add(&pair("t/bytes=8", 0, 10.0, 1.0)).unwrap();
        assert!(Writer::open(directory.path()).is_err_and(|error| error.to_string().contains("another program")));
        writer.file.write_all(br#"{"event":"pair","cell":"t/by"#).unwrap();
        drop(writer);
        assert_eq!(Run::read(directory.path()).unwrap().measured["t/bytes=8"].tcp.len(), 1);
        let mut writer = Writer::open(directory.path()).unwrap();
        writer.add(&pair("t/bytes=8", 1, 10.0, 1.0)).unwrap();
        writer.add(&Record::End { early: None }).unwrap();
        let run = Run::read(directory.path()).unwrap();
        assert_eq!((run.measured["t/bytes=8"].tcp.len(), run.ended_early, run.cells.len()), (2, None, 3));
        let error = Writer::create(directory.path(), PLAN_TEXT, &settings()).err().unwrap().to_string();
        assert!(error.contains("--resume"), "{error}");
    }

    #[test]
    fn a_run_that_was_ended_before_its_first_record_is_a_run() {
        let directory = tempfile::tempdir().unwrap();
        drop(Writer::create(directory.path(), PLAN_TEXT, &settings()).unwrap());
        std::fs::remove_file(directory.path().join(SAMPLES)).unwrap();
        let run = Run::read(directory.path()).unwrap();
        assert_eq!((run.cells.len(), run.measured.len(), run.ended_early.is_some()), (3, 0, true));
        let mut writer = Writer::open(directory.path()).unwrap();
        writer.add(&pair("t/bytes=8", 0, 10.0, 1.0)).unwrap();
        assert_eq!(Run::read(directory.path()).unwrap().measured["t/bytes=8"].tcp.len(), 1);
    }

    #[test]
    fn a_line_that_is_no_record_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(directory.path(), PLAN_TEXT, &settings()).unwrap();
        writer.add(&pair("t/bytes=8", 0, 10.0, 1.0)).unwrap();
        writer.file.write_all(b"{\"event\":\"walk\"}\n").unwrap();
        writer.add(&Record::End { early: None }).unwrap();
        let error = format!("{:#}", Run::read(directory.path()).err().unwrap());
        assert!(error.contains("samples.jsonl:2:") && error.contains("walk"), "{error}");
        let empty = tempfile::tempdir().unwrap();
        assert!(Run::read(empty.path()).err().unwrap().to_string().contains("there is no run"));
    }

    #[test]
    fn a_full_disk_is_an_error_that_says_what_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut writer = Writer { file, path: directory.path().join(SAMPLES) };
        let error = format!("{:#}", writer.add(&Record::End { early: None }).unwrap_err());
        assert!(error.contains("is kept") && error.contains("No space"), "{error}");
    }

    #[test]
    fn what_failed_is_forgotten_when_the_run_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(directory.path(), PLAN_TEXT, &settings()).unwrap();
        writer.add(&Record::Failed { cell: "t/bytes=8".into(), round: 0, error: "no luck".into() }).unwrap();
        writer.add(&Record::Absent { cell: "t/bytes=64".into(), reason: "not here".into() }).unwrap();
        let run = Run::read(directory.path()).unwrap();
        assert_eq!(run.measured["t/bytes=8"].errors, ["no luck"]);
        assert_eq!(run.measured["t/bytes=64"].absent.as_deref(), Some("not here"));
        writer
            .add(&Record::Session {
                machine: Machine::describe().unwrap(),
                own_cost_ns: 20.0,
                libraries: Vec::new(),
                packages: vec!["iperf3 3.12".into()],
            })
            .unwrap();
        let run = Run::read(directory.path()).unwrap();
        assert!(run.measured["t/bytes=8"].errors.is_empty() && run.measured["t/bytes=64"].absent.is_none());
        assert!(run.ended_early.is_some());
        assert_eq!(run.packages, ["iperf3 3.12"]);
    }
}
