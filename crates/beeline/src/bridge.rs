//! `beeline bridge`: becomes `beelined`, the bridge to other hosts, which is a program of its own because it needs
//! libfabric and this command does not.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::cli::BridgeArgs;
use crate::failure::Failure;
use crate::program;

const NAME: &str = "beelined";

/// Replaces this process by the bridge's command. Returns only when that fails.
pub fn run(arguments: &BridgeArgs) -> anyhow::Result<Infallible> {
    let file = find()?;
    let error = Command::new(&file).arg0(NAME).args(&arguments.arguments).exec();
    Err(Failure::error(Failure::NOT_EXECUTABLE, format!("cannot execute {}: {error}", file.display())))
}

/// Beside this executable, as a build or an installation leaves it, or where programs are.
fn find() -> anyhow::Result<PathBuf> {
    let beside = std::env::current_exe().ok().map(|executable| executable.with_file_name(NAME));
    if let Some(Ok(beside)) = beside.map(|path| program::find(path.as_os_str(), None)) {
        return Ok(beside);
    }
    program::find(OsStr::new(NAME), std::env::var_os("PATH").as_deref()).map_err(|error| {
        if error.downcast_ref::<Failure>().is_none_or(|failure| failure.code != Failure::NOT_FOUND) {
            return error;
        }
        Failure::error(
            Failure::NOT_FOUND,
            format!(
                "the bridge ({NAME}) is not installed: it is neither beside this program nor in PATH. It is built where \
                 libfabric and hwloc are (Debian: libfabric-dev libhwloc-dev libudev-dev): install these, then `make install`"
            ),
        )
    })
}
