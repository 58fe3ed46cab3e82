//! A program, or a process: whether Beeline can be in it, and how its connections go.

use std::ffi::OsStr;
use std::path::Path;

use beeline_stats::Reason;

use super::finding::{Finding, State};
use crate::cli::{DoctorArgs, Selection};
use crate::failure::Failure;
use crate::library::Library;
use crate::program::{self, Loading};
use crate::stat::absent::{Absence, Obstacle};
use crate::stat::bridge::Bridge;
use crate::stat::collect::{Collected, SHARED_MEMORY};
use crate::stat::process::{Cause, Process};

/// What is known of it. A number is a process, and anything else a program: a path, or a name that PATH leads to.
pub fn look(subject: &OsStr, arguments: &DoctorArgs) -> anyhow::Result<Vec<Finding>> {
    if let Some(pid) = subject.to_str().and_then(|text| text.parse().ok()) {
        if !Path::new("/proc").join(u32::to_string(&pid)).exists() {
            return Err(Failure::error(Failure::USAGE, format!("there is no process {pid}")));
        }
        return running(&Selection::Pid(pid));
    }
    let mut findings = vec![file(subject, arguments)?];
    if let Some(name) = Path::new(subject).file_name().and_then(OsStr::to_str) {
        findings.extend(running(&Selection::Program(name.to_owned()))?);
    }
    Ok(findings)
}

fn file(command: &OsStr, arguments: &DoctorArgs) -> anyhow::Result<Finding> {
    let path = std::env::var_os("PATH");
    let file = program::find(command, path.as_deref())?;
    let library = Library::find(arguments.library.as_deref())?;
    Ok(match program::inspect(&file, library.architecture, path.as_deref()) {
        Loading::Loads => Finding::good("program", format!("Beeline can be loaded into {}", file.display())),
        Loading::Ignored(why) | Loading::Harmful(why) => {
            Finding::problem("program", why).with_remedy_of(Reason::NotLoadable.name())
        }
    })
}

/// Of processes that run. One that was asked for by its number has to be there.
fn running(selection: &Selection) -> anyhow::Result<Vec<Finding>> {
    let found = Collected::of(Path::new(SHARED_MEMORY), Bridge::left_out(), selection, false)?;
    found.complain();
    let unloaded = found.unloaded.iter().map(|unloaded| {
        Finding::problem(what(unloaded.pid), format!("{}: {}", unloaded.reason, unloaded.sentence))
            .with_remedy_of(unloaded.reason)
    });
    let mut findings: Vec<Finding> = unloaded.chain(found.processes.iter().flat_map(of_process)).collect();
    if let Selection::Pid(pid) = *selection
        && findings.is_empty()
    {
        findings.push(absent(pid, &Absence::of(pid)));
    }
    Ok(findings)
}

/// Of a process without statistics. Only of one without the library is it known that it has no lanes, and of one where
/// what is in the way of statistics is in theirs, too.
fn absent(pid: u32, absence: &Absence) -> Finding {
    let is_open = match absence {
        Absence::Gone | Absence::NotLoaded => false,
        Absence::NotYours | Absence::Unheard => true,
        Absence::Silent(obstacle) => obstacle.as_ref().and_then(Obstacle::reason).is_none(),
    };
    let state = if is_open { State::Note } else { State::Problem };
    let says = absence.sentence(pid);
    Finding { what: what(pid), state, says, remedy: absence.remedy().map(str::to_owned), is_open }
}

fn what(pid: u32) -> String {
    format!("process {pid}")
}

fn of_process(process: &Process) -> Vec<Finding> {
    let what = || what(process.pid);
    let counted = format!(
        "{}: {} over lanes, {} of them open, and {} over TCP",
        process.program, process.accelerated, process.accelerated_open, process.fallen_back
    );
    let mut findings = vec![Finding::good(what(), counted)];
    if let Some(stop) = &process.stopped {
        findings.push(
            Finding::problem(what(), format!("no further connection has a lane. {}: {}", stop.name, stop.sentence))
                .with_remedy_of(stop.name),
        );
    }
    findings.extend(process.reasons.iter().chain(&process.poisons).map(|cause| of_cause(what(), cause)));
    findings
}

fn of_cause(what: String, cause: &Cause) -> Finding {
    let Cause { name, role, count, sentence } = cause;
    let role = role.map(|role| format!(" as {role}")).unwrap_or_default();
    Finding::note(what, format!("{count} times {name}{role}: {sentence}")).with_remedy_of(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_process_without_statistics_has_its_own_hint() {
        let of = |absence: Absence| {
            let finding = absent(7, &absence);
            (finding.state, finding.remedy.unwrap_or_default())
        };
        let (state, remedy) = of(Absence::NotYours);
        assert!(state == State::Note && remedy.contains("as root"), "{remedy}");
        let (state, remedy) = of(Absence::NotLoaded);
        assert!(state == State::Problem && remedy.contains("beeline run"), "{remedy}");
        let (state, remedy) = of(Absence::Silent(Some(Obstacle::ReadOnly)));
        assert!(state == State::Note && remedy.contains("/dev/shm"), "{remedy}");
        assert_eq!(of(Absence::Silent(None)), (State::Note, String::new()));
        assert_eq!(of(Absence::Silent(Some(Obstacle::Disabled))).0, State::Problem);
        assert_eq!(of(Absence::Silent(Some(Obstacle::FileSizeLimited))).0, State::Problem);
    }
}
