//! The socket's other end: asking a running bridge.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

use super::{Answer, Request};

const PATIENCE: Duration = Duration::from_secs(10);
/// Far more than the status of a busy bridge.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Asks, and waits for the answer.
pub fn ask(path: &Path, request: &Request) -> anyhow::Result<Value> {
    let mut stream = UnixStream::connect(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            anyhow::anyhow!("no bridge is running (nobody listens on {})", path.display())
        }
        ErrorKind::PermissionDenied => {
            anyhow::anyhow!("only root and the bridge's own user may ask ({} is not yours to open)", path.display())
        }
        _ => anyhow::Error::new(error).context(format!("cannot reach the bridge at {}", path.display())),
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line).context("cannot ask the bridge")?;
    let mut text = Vec::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_until(b'\n', &mut text).context("the bridge does not answer")?;
    if text.is_empty() {
        bail!("the bridge has closed the connection: only root and its own user may ask");
    }
    match serde_json::from_slice(&text).context("the bridge's answer is not understood")? {
        Answer::Ok(value) => Ok(value),
        Answer::Error(error) => bail!("{error}"),
    }
}
