//! Asking the bridge's program for its rails.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use beeline_topo::Report;

/// Looking for fabrics can take a second; a program that says nothing for this long will not.
const PATIENCE: Duration = Duration::from_secs(5);
/// A report is some kilobytes; more than this is none.
const REPORT_BYTES_MAX: u64 = 16 << 20;

/// The report of the bridge at `program`, or of the one beside this command; else why there is none.
pub fn ask(program: Option<&Path>) -> Result<Report, String> {
    let program = program.map_or_else(beside, |path| Ok(path.to_owned()))?;
    if !program.is_file() {
        return Err(format!("no bridge is installed beside this command ({} is missing)", program.display()));
    }
    let said = |why: &str| format!("`{} rails --json` {why}", program.display());
    let mut child = Command::new(&program)
        .args(["rails", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| said(&format!("cannot be started: {error}")))?;
    let output = read_all(child.stdout.take());
    let complaint = read_all(child.stderr.take());
    let Ok(text) = output.recv_timeout(PATIENCE) else {
        end(&mut child);
        return Err(said(&format!("said nothing for {} s", PATIENCE.as_secs())));
    };
    // Its output ended; one that goes on in spite of that is not waited for.
    let complaint = complaint.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
    let status = match child.try_wait() {
        Ok(Some(status)) => Some(status),
        _ => {
            std::thread::sleep(Duration::from_millis(100));
            child.try_wait().ok().flatten()
        }
    };
    let Some(status) = status else {
        end(&mut child);
        return Err(said("did not end"));
    };
    if !status.success() {
        let line = complaint.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("without a word").trim();
        return Err(said(&format!("failed: {line}")));
    }
    Report::read(&text).map_err(|error| said(&format!("was not understood: {error}")))
}

fn beside() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("this command does not know where it is: {error}"))?;
    Ok(own.with_file_name("beelined"))
}

fn read_all(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is what there is.
        let _ = pipe.map(|pipe| pipe.take(REPORT_BYTES_MAX).read_to_end(&mut bytes));
        // Nobody listens any more after the time is up.
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

fn end(child: &mut Child) {
    // It may have ended by itself in this moment, which is as well.
    let _ = child.kill();
    let _ = child.wait();
}
