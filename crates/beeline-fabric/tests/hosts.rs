//! Two hosts: two processes that share nothing but a network.
//!
//! The two roles are run as tests of this binary with `BEELINE_FABRIC_ROLE` set, and meet by a file: here in two
//! network namespaces joined by a veth, in `make test-rdma` in two virtual machines.

mod common;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use beeline_fabric::{Access, EndpointId, Event, Filter, Flags, Message, Options, Port, Remote, Slice, ports};
use beeline_testkit::rng::{Hash, Rng, fill_stream};
use common::{Side, patience, provider, taken};

const WINDOW: usize = 256 << 10;
const WRITES: u64 = 200;
const ROUNDS: u64 = 200;

/// This host's port: the one of the address in the environment, or else the only one there is.
fn port() -> Port {
    match env::var("BEELINE_FABRIC_ADDRESS") {
        Ok(address) => common::port_at(address.parse::<IpAddr>().unwrap()),
        Err(_) => {
            let found = ports(&Filter { providers: vec![provider()], ..Filter::default() }).unwrap();
            assert_eq!(found.len(), 1, "no loopback, no link-local address: {found:?}");
            found.into_iter().next().unwrap()
        }
    }
}

fn role(wanted: &str) -> Option<PathBuf> {
    let is_ours = env::var("BEELINE_FABRIC_ROLE").is_ok_and(|role| role == wanted);
    is_ours.then(|| PathBuf::from(env::var("BEELINE_FABRIC_MEET").unwrap()))
}

/// Waits asleep until `found` gives something.
fn wait<T>(side: &mut Side, what: &str, mut found: impl FnMut(&mut Side) -> Option<T>) -> T {
    let deadline = Instant::now() + patience();
    loop {
        side.look();
        if let Some(result) = found(side) {
            return result;
        }
        assert!(Instant::now() < deadline, "{what}: nothing for {:?}", patience());
        side.sleep(Duration::from_secs(1));
    }
}

fn message(side: &mut Side, what: &str) -> Message {
    wait(side, what, Side::take_message)
}

fn done(side: &mut Side, context: u64) {
    assert!(wait(side, "a completion", |side| side.take_done(context)));
}

/// Sends `number` and waits for it to come back.
fn echo(side: &mut Side, far: EndpointId, number: u64) {
    taken(side.rail.send(far, &number.to_le_bytes(), number));
    let answer = message(side, "an answer");
    assert_eq!(answer.bytes(), number.to_le_bytes());
    side.rail.recycle(answer).unwrap();
    done(side, number);
}

#[test]
fn the_far_host() {
    let Some(meet) = role("far") else { return };
    let mut side = Side::on(&port(), Options::default());
    let at = side.rail.listen(0).unwrap();
    fs::write(meet.with_extension("new"), at.to_string()).unwrap();
    fs::rename(meet.with_extension("new"), &meet).unwrap();
    let (region, memory) = side.region(WINDOW, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let Remote { address, key } = side.remote(region);
    let request = wait(&mut side, "a request", Side::take_request);
    assert_eq!(request.data, b"near");
    let near = side.rail.accept(request, &[address.to_le_bytes(), key.to_le_bytes()].concat()).unwrap();
    wait(&mut side, "connected", Side::take_connected);
    for number in 0..WRITES {
        let told = message(&mut side, "word of a write");
        let part = |at: usize| u64::from_le_bytes(told.bytes()[at..at + 8].try_into().unwrap());
        let (offset, length, hash) = (part(0) as usize, part(8) as usize, part(16));
        let mut bytes = vec![0; length];
        memory.copy_out(offset, &mut bytes);
        assert_eq!(Hash::of(&bytes).0, hash, "write {number}: {length} bytes at {offset}");
        side.rail.recycle(told).unwrap();
        taken(side.rail.send(near, b"looked", number));
        done(&mut side, number);
    }
    for _ in 0..=ROUNDS {
        let question = message(&mut side, "a question");
        taken(side.rail.send(near, question.bytes(), 0));
        side.rail.recycle(question).unwrap();
        done(&mut side, 0);
    }
    let gone = |side: &mut Side| side.is_down(near).then_some(());
    wait(&mut side, "the end", gone);
    side.rail.close(near).unwrap();
    side.rail.close_region(region).unwrap();
    wait(&mut side, "free memory", |side| side.is_region_closed(region).then_some(()));
}

#[test]
fn the_near_host() {
    let Some(meet) = role("near") else { return };
    let deadline = Instant::now() + patience();
    let to: SocketAddr = loop {
        if let Ok(text) = fs::read_to_string(&meet) {
            break text.parse().unwrap();
        }
        assert!(Instant::now() < deadline, "the far host is not there");
        thread::sleep(Duration::from_millis(20));
    };
    let mut side = Side::on(&port(), Options::default());
    let far = side.rail.connect(to, b"near").unwrap();
    let data = wait(&mut side, "an answer", |side| match side.events.pop()? {
        Event::Connected { data, .. } => Some(data),
        other => panic!("{other:?}"),
    });
    let number = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
    let remote = Remote { address: number(0), key: number(8) };
    let (source, local) = side.region(WINDOW, Access::SOURCE | Access::TARGET);
    let mut rng = Rng::new(3);
    let mut bytes = vec![0; WINDOW];
    for number in 0..WRITES {
        let length = 1 + rng.below(WINDOW);
        let offset = rng.below(WINDOW - length + 1);
        fill_stream(number, 0, &mut bytes[..length]);
        local.copy_in(offset, &bytes[..length]);
        let hash = Hash::of(&bytes[..length]).0;
        let told = [offset as u64, length as u64, hash].map(u64::to_le_bytes).concat();
        taken(side.rail.write(
            far,
            Slice { region: source, offset, bytes: length },
            remote.at(offset as u64),
            2 * number,
            Flags::MORE,
        ));
        taken(side.rail.send(far, &told, 2 * number + 1));
        done(&mut side, 2 * number);
        done(&mut side, 2 * number + 1);
        // The window changes only when the far host has looked at it.
        let looked = message(&mut side, "a look");
        side.rail.recycle(looked).unwrap();
    }
    for number in 0..ROUNDS {
        echo(&mut side, far, number);
    }
    taken(side.rail.read(far, Slice { region: source, offset: 0, bytes: WINDOW }, remote, 1, Flags::empty()));
    done(&mut side, 1);
    echo(&mut side, far, 2);
    side.rail.close(far).unwrap();
}

struct Namespaces(Vec<String>);

impl Namespaces {
    /// Two of them, with a veth between and an address at each end.
    fn new() -> Namespaces {
        let names: Vec<String> = ["far", "near"].map(|end| format!("fabric-{end}-{}", std::process::id())).into();
        let namespaces = Namespaces(names);
        let [far, near] = namespaces.0.as_slice() else { unreachable!() };
        for name in [far, near] {
            ip(&["netns", "add", name]);
        }
        ip(&["-n", far, "link", "add", "v0", "type", "veth", "peer", "name", "v0", "netns", near]);
        for (name, address) in [(far, "10.77.0.1/24"), (near, "10.77.0.2/24")] {
            ip(&["-n", name, "link", "set", "lo", "up"]);
            ip(&["-n", name, "addr", "add", address, "dev", "v0"]);
            ip(&["-n", name, "link", "set", "v0", "up"]);
        }
        // A device that does not run yet is no port.
        let deadline = Instant::now() + patience();
        while ![far, near].iter().all(|name| runs(name)) {
            assert!(Instant::now() < deadline, "the veth does not come up");
            thread::sleep(Duration::from_millis(20));
        }
        namespaces
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
}

fn runs(namespace: &str) -> bool {
    let shown = Command::new("ip").args(["-n", namespace, "link", "show", "v0"]).output().unwrap();
    String::from_utf8_lossy(&shown.stdout).contains("state UP")
}

fn start(namespace: &str, role: &str, meet: &Path) -> Child {
    Command::new("ip")
        .args(["netns", "exec", namespace])
        .arg(env::current_exe().unwrap())
        .args(["--exact", &format!("the_{role}_host"), "--nocapture"])
        .env("BEELINE_FABRIC_ROLE", role)
        .env("BEELINE_FABRIC_MEET", meet)
        .spawn()
        .unwrap()
}

#[test]
fn two_namespaces_talk_over_a_veth() {
    // In a guest the roles are run one by one; and only root may make namespaces.
    // SAFETY: geteuid has no conditions.
    if provider() != "tcp" || env::var("BEELINE_FABRIC_ROLE").is_ok() || unsafe { libc::geteuid() } != 0 {
        eprintln!("not run: needs root and the tcp provider");
        return;
    }
    let namespaces = Namespaces::new();
    let meet = env::temp_dir().join(format!("fabric-meet-{}", std::process::id()));
    let _ = fs::remove_file(&meet);
    let far = start(&namespaces.0[0], "far", &meet);
    let near = start(&namespaces.0[1], "near", &meet);
    let ends: Vec<ExitStatus> = [far, near].map(|mut child| child.wait().unwrap()).into();
    fs::remove_file(&meet).unwrap();
    assert!(ends.iter().all(ExitStatus::success), "{ends:?}");
}
