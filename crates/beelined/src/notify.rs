//! Telling systemd how far we are (sd_notify(3)): a datagram to the socket in `NOTIFY_SOCKET`.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The bridge is ready: its sockets are open and it serves.
pub fn ready() {
    tell("READY=1\n");
}

/// It is about to end.
pub fn stopping() {
    tell("STOPPING=1\n");
}

/// It needs more time to end: so many seconds from now on.
pub fn extend(seconds: u64) {
    tell(&format!("EXTEND_TIMEOUT_USEC={}\n", seconds.saturating_mul(1_000_000)));
}

/// A line for `systemctl status`.
pub fn status(line: &str) {
    tell(&format!("STATUS={}\n", line.replace('\n', " ")));
}

fn tell(state: &str) {
    // Without systemd there is nobody to tell; if it does not listen, that is its own affair.
    if let Some(name) = std::env::var_os("NOTIFY_SOCKET") {
        let _ = send(&name, state);
    }
}

fn send(name: &OsStr, state: &str) -> std::io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_sockets_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("beelined-notify-test-{}", std::process::id());
        let abstract_one = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(path.as_os_str(), "READY=1\n").unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1\n").unwrap();
        let mut buffer = [0; 64];
        for (socket, expected) in [(by_path, "READY=1\n"), (abstract_one, "STOPPING=1\n")] {
            let count = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..count], expected.as_bytes());
        }
        assert!(send(OsStr::new("/nonexistent"), "x").is_err());
    }
}
