//! The socket, with both its ends.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use serde_json::json;

use super::*;

struct Bridge {
    tunables: Tunables,
}

fn document(tunables: Tunables) -> Document {
    let data = Data {
        uptime_s: 100,
        rails: Vec::new(),
        links: Vec::new(),
        connections: Vec::new(),
        paths: Vec::new(),
        draining: None,
        refusals: [("no_peer".to_owned(), 5)].into(),
        totals: Counts::new(),
        share: beeline_status::document::Medians::default(),
    };
    Document {
        version: "1".into(),
        pid: 7,
        name: "alpha".into(),
        instance: 9,
        insecure: false,
        listen: vec!["[::]:4797".into()],
        speaks_for: vec!["10.0.0.1".into()],
        certificate_days: Some(300),
        peers: Vec::new(),
        control_ends: [("silent".to_owned(), 2), ("tls".to_owned(), 0)].into(),
        tunables: settings(tunables),
        data,
    }
}

impl Backend for Bridge {
    fn document(&self) -> Document {
        document(self.tunables)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        self.tunables.set(key, value)
    }

    fn reload(&mut self) -> Result<Vec<String>, String> {
        Ok(vec!["x.crt is left out".into()])
    }

    fn drain(&mut self) -> bool {
        true
    }
}

/// A bridge with its socket, in a thread of its own until it is dropped.
struct Served {
    path: PathBuf,
    _directory: tempfile::TempDir,
    stop: mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn serve() -> Served {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run/beelined.sock");
    Admin::make_directory(&path, None).unwrap();
    let mut admin = Admin::new(&path).unwrap();
    let (stop, stopped) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut bridge = Bridge { tunables: Tunables::DEFAULT };
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
            nix::poll::poll(&mut [PollFd::new(admin.as_fd(), PollFlags::POLLIN)], PollTimeout::from(10_u8)).unwrap();
            admin.turn(Instant::now(), &mut bridge);
        }
    });
    Served { path, _directory: directory, stop, thread: Some(thread) }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_bridge_tells_and_takes_settings() {
    let served = serve();
    let set = |key: &str, value: &str| ask(&served.path, &Request::Set { key: key.into(), value: value.into() });
    assert_eq!(set("spin_us", "9").unwrap(), Value::Null);
    assert!(set("spin_us", "x").unwrap_err().to_string().contains("must be a number from 0"));
    assert!(set("spin", "1").unwrap_err().to_string().contains("did you mean `spin_us`"));
    let status = beeline_status::ask::status(&served.path).unwrap();
    assert_eq!(status.tunables["spin_us"], 9);
    assert_eq!(status, document(Tunables { spin_us: 9, ..Tunables::DEFAULT }));
    assert_eq!(ask(&served.path, &Request::Reload {}).unwrap(), json!(["x.crt is left out"]));
}

#[test]
fn what_is_no_request_is_answered_so_and_long_lines_are_cut_off() {
    let served = serve();
    let say = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(&served.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    for bad in ["\n", "{}\n", "{\"request\":\"stop\"}\n", "{\"request\":\"status\",\"x\":1}\n", "\u{fffd}\n"] {
        assert!(say(bad.as_bytes()).starts_with("{\"error\":\"the request is not understood"), "{bad}");
    }
    assert_eq!(say(b"{\"request\":\"reload\"}\n{\"request\":\"reload\"}\n").lines().count(), 2);
    assert_eq!(say(b"{\"request\":\"reload\"}"), "", "not a whole line");
    assert!(say(&[b'x'; 4097]).contains("too long"));
}

#[test]
fn many_clients_that_say_nothing_do_not_stay() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let mut admin = Admin::new(&path).unwrap();
    let mut bridge = Bridge { tunables: Tunables::DEFAULT };
    let now = Instant::now();
    let mut clients: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(&path).unwrap()).collect();
    for _ in 0..20 {
        admin.turn(now, &mut bridge);
    }
    assert_eq!(admin.deadline(), Some(now + Duration::from_secs(10)));
    let mut refused = 0;
    for client in &mut clients {
        client.set_nonblocking(true).unwrap();
        refused += usize::from(client.read(&mut [0]).is_ok());
    }
    assert_eq!(refused, 12);
    admin.turn(now + Duration::from_secs(10), &mut bridge);
    assert_eq!(admin.deadline(), None);
}

#[test]
fn whoever_comes_late_finds_the_places_of_those_who_said_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let mut admin = Admin::new(&path).unwrap();
    let mut bridge = Bridge { tunables: Tunables::DEFAULT };
    let now = Instant::now();
    let _silent: Vec<UnixStream> = (0..8).map(|_| UnixStream::connect(&path).unwrap()).collect();
    (0..8).for_each(|_| admin.turn(now, &mut bridge));
    let mut late = UnixStream::connect(&path).unwrap();
    late.write_all(b"{\"request\":\"reload\"}\n").unwrap();
    late.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    (0..2).for_each(|_| admin.turn(now + Duration::from_secs(10), &mut bridge));
    let mut answer = [0; 5];
    late.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"{\"ok\"");
}

#[test]
fn a_long_answer_is_taken_in_parts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let mut admin = Admin::new(&path).unwrap();
    let mut bridge = Bridge { tunables: Tunables::DEFAULT };
    let mut client = UnixStream::connect(&path).unwrap();
    let status = b"{\"request\":\"status\"}\n";
    // More answers than a socket takes at once.
    client.write_all(&status.repeat(2000)).unwrap();
    client.set_nonblocking(true).unwrap();
    let (mut text, mut part) = (Vec::new(), [0; 10_000]);
    while text.iter().filter(|byte| **byte == b'\n').count() < 2000 {
        admin.turn(Instant::now(), &mut bridge);
        if let Ok(count) = client.read(&mut part) {
            text.extend_from_slice(&part[..count]);
        }
    }
    let expected = Answer::Ok(document(Tunables::DEFAULT));
    for line in text.split(|byte| *byte == b'\n').take(2000) {
        assert_eq!(serde_json::from_slice::<Answer<Document>>(line).unwrap(), expected);
    }
}

#[test]
fn a_socket_that_was_left_behind_is_replaced_and_one_in_use_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    assert!(ask(&path, &Request::Reload {}).unwrap_err().to_string().contains("no bridge is running"));
    let admin = Admin::new(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let error = format!("{:#}", Admin::new(&path).err().unwrap());
    assert!(error.contains("another beelined is running"), "{error}");
    drop(admin);
    assert!(!path.exists());
    assert!(ask(&path, &Request::Status {}).is_err());
}
