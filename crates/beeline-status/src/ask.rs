//! The administrator's socket, from its other end.
//!
//! A request is a line of JSON, `{"request": "status"}`; so is the answer, `{"ok": ...}` or `{"error": "..."}`. The
//! socket belongs to the bridge's user, and nobody but that user and root is answered.

use std::fmt;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt::SendTimeout,
};
use nix::sys::time::{TimeVal, TimeValLike};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where the socket is when nobody says otherwise.
pub const PATH: &str = "/run/beeline/beelined.sock";

/// How long each step may take: to be let in, to say what is asked, and each piece of the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Far more than the status of a busy bridge.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Everything: a [`crate::Document`].
    Status {},
    /// Change a setting.
    Set {
        /// Which.
        key: String,
        /// To what.
        value: String,
    },
    /// Read the trusted certificates again.
    Reload {},
    /// Take no new connections, and stop when the last has ended.
    Drain {},
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer<T = Value> {
    /// It is done; this is the result.
    Ok(T),
    /// It is not; this is why.
    Error(String),
}

/// Why there is no answer. Each holds a sentence without its full stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "why", rename_all = "snake_case")]
pub enum Problem {
    /// Nobody listens on the socket.
    NotRunning(String),
    /// The socket is not for us, whoever listens on it.
    NotAllowed(String),
    /// Somebody listens, and does not answer as a bridge of this version does.
    Failed(String),
    /// The bridge has answered with an error.
    Refused(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NotRunning(why) | Self::NotAllowed(why) | Self::Failed(why) | Self::Refused(why)) = self;
        f.write_str(why)
    }
}

impl std::error::Error for Problem {}

/// Asks, and waits for the answer.
///
/// # Errors
/// See [`Problem`].
pub fn ask(path: &Path, request: &Request) -> Result<Value, Problem> {
    ask_within(path, request, PATIENCE)
}

fn ask_within(path: &Path, request: &Request, patience: Duration) -> Result<Value, Problem> {
    let unanswered = |error| Problem::Failed(format!("the bridge does not answer: {error}"));
    let stream = reach(path, patience).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            Problem::NotRunning(format!("no bridge is running (nobody listens on {})", path.display()))
        }
        ErrorKind::PermissionDenied => Problem::NotAllowed(format!(
            "only root and the bridge's own user may ask the bridge ({} is not yours to open)",
            path.display()
        )),
        ErrorKind::WouldBlock => unanswered(error),
        _ => Problem::Failed(format!("cannot reach the bridge at {}: {error}", path.display())),
    })?;
    let text = exchange(stream, request, patience).map_err(unanswered)?;
    if text.is_empty() {
        let why = "the bridge has closed the connection: only root and its own user may ask";
        return Err(Problem::NotAllowed(why.into()));
    }
    match serde_json::from_slice(&text) {
        Ok(Answer::Ok(value)) => Ok(value),
        Ok(Answer::Error(error)) => Err(Problem::Refused(error)),
        Err(error) => Err(Problem::Failed(format!("the bridge's answer is not understood: {error}"))),
    }
}

/// Connects. A bridge that is stopped lets nobody in, and once enough wait to be, `connect` waits as well: for as long
/// as a send may take (unix(7)).
fn reach(path: &Path, patience: Duration) -> std::io::Result<UnixStream> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let milliseconds = i64::try_from(patience.as_millis()).unwrap_or(i64::MAX);
    setsockopt(&socket, SendTimeout, &TimeVal::milliseconds(milliseconds))?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(UnixStream::from(socket))
}

fn exchange(mut stream: UnixStream, request: &Request, patience: Duration) -> std::io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(patience))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    // A bridge that is not ours to ask may have closed the connection already: what it said, or that, is read.
    match stream.write_all(&line) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error),
        _ => {}
    }
    let mut text = Vec::new();
    match BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_until(b'\n', &mut text) {
        // It was closed with the request unread.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(Vec::new()),
        result => result.map(|_| text),
    }
}

/// The bridge's whole status.
///
/// # Errors
/// See [`Problem`].
pub fn status(path: &Path) -> Result<crate::Document, Problem> {
    serde_json::from_value(ask(path, &Request::Status {})?).map_err(|error| {
        let why = "the running bridge is of another version (`beelined status --json` shows what it says)";
        Problem::Failed(format!("{why}: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{Backlog, listen};
    use std::os::unix::net::UnixListener;

    #[test]
    fn each_problem_has_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let asked = || ask(&path, &Request::Reload {});
        assert!(matches!(asked(), Err(Problem::NotRunning(_))));
        let listener = UnixListener::bind(&path).unwrap();
        for (answer, expected) in [
            (&b""[..], "only root and its own user may ask"),
            (b"hello\n", "not understood"),
            (b"{\"error\":\"no\"}\n", "no"),
        ] {
            let problem = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut line = String::new();
                    BufReader::new(&stream).read_line(&mut line).unwrap();
                    assert_eq!(line, "{\"request\":\"reload\"}\n");
                    stream.write_all(answer).unwrap();
                });
                asked().unwrap_err()
            });
            assert!(problem.to_string().contains(expected), "{problem}");
        }
        let problem = std::thread::scope(|scope| {
            // Closed with the rest of the request unread, as by a bridge that does not know who asks.
            scope.spawn(|| listener.accept().unwrap().0.read_exact(&mut [0]).unwrap());
            asked().unwrap_err()
        });
        assert!(matches!(problem, Problem::NotAllowed(_)), "{problem}");
        drop(listener);
        assert!(matches!(asked(), Err(Problem::NotRunning(_))));
    }

    #[test]
    fn a_bridge_that_is_stopped_holds_nobody_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        // The first is where a bridge would take it from, and is not answered; behind it there is no room.
        for _ in 0..2 {
            let problem = ask_within(&path, &Request::Status {}, Duration::from_millis(50)).unwrap_err();
            assert!(matches!(problem, Problem::Failed(_)), "{problem:?}");
            assert!(problem.to_string().contains("does not answer"), "{problem}");
        }
    }
}
