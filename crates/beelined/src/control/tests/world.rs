//! What the tests share: hosts with keys, a clock, and a raw peer that can say anything.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use tempfile::TempDir;

use super::super::link::Link;
use super::super::message::{Hello, VERSION};
use super::super::*;
use crate::config::Peer;
use crate::keys::{Certificate, Generated, Trusted, file_name, generate};

pub const DAY: Duration = Duration::from_secs(86_400);

/// A host's files and port.
pub struct Host {
    pub directory: TempDir,
    pub name: BridgeName,
    pub generated: Generated,
    pub port: u16,
    pub listener: Option<TcpListener>,
}

impl Host {
    pub fn new(name: &str, address: &str) -> Self {
        Self::with_validity(name, address, SystemTime::now() - DAY, 30 * DAY)
    }

    pub fn with_validity(name: &str, address: &str, not_before: SystemTime, lifetime: Duration) -> Self {
        let name: BridgeName = name.parse().unwrap();
        let generated = generate(&name, &[address.parse().unwrap()], not_before, lifetime).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = |file: &str| directory.path().join(file);
        std::fs::write(path("own.crt"), &generated.certificate).unwrap();
        std::fs::write(path("own.key"), &generated.key).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path("own.key"), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::create_dir(path("trusted")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        Self { directory, name, generated, port, listener: Some(listener) }
    }

    pub fn trust(&self, other: &Host) {
        std::fs::write(self.trusted_path(other), &other.generated.certificate).unwrap();
    }

    pub fn distrust(&self, other: &Host) {
        std::fs::remove_file(self.trusted_path(other)).unwrap();
    }

    fn trusted_path(&self, other: &Host) -> std::path::PathBuf {
        self.directory.path().join("trusted").join(file_name(&other.name))
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// A configuration that dials these.
    pub fn config(&self, peers: &[&Host], identity: Option<&str>) -> Config {
        let mut config = Config::parse("test", "").unwrap();
        config.name = Some(self.name.clone());
        let path = |file: &str| self.directory.path().join(file);
        config.identity = match identity {
            None => Identity::Certificates(CertificatePaths {
                certificate: path("own.crt"),
                key: path("own.key"),
                trusted: path("trusted"),
                user: None,
            }),
            Some(address) => Identity::Insecure { addresses: vec![address.parse().unwrap()] },
        };
        config.peers = peers
            .iter()
            .map(|peer| Peer {
                name: peer.name.clone(),
                control: vec![peer.address()],
                addresses: vec!["10.0.0.0/24".parse().unwrap()],
            })
            .collect();
        config
    }

    pub fn start(&mut self, world: &mut World, peers: &[&Host]) -> usize {
        let config = self.config(peers, None);
        self.start_with(world, &config)
    }

    pub fn start_insecure(&mut self, world: &mut World, peers: &[&Host], address: &str) -> usize {
        let config = self.config(peers, Some(address));
        self.start_with(world, &config)
    }

    pub fn start_with(&mut self, world: &mut World, config: &Config) -> usize {
        let listener = self.listener.take().unwrap_or_else(|| TcpListener::bind(self.address()).unwrap());
        let control = Control::with_listeners(config, vec![listener], world.now).unwrap();
        world.controls.push(Some(control));
        world.events.push(Vec::new());
        world.controls.len() - 1
    }

    /// The certificates and keys as a raw peer uses them, trusting `other`.
    pub fn tls(&self, other: &Host) -> Tls {
        let certificate = |host: &Host| Certificate::from_pem(&host.generated.certificate).unwrap();
        let mut trusted = Trusted::default();
        trusted.insert(certificate(other));
        let key = PrivateKeyDer::from_pem_slice(self.generated.key.as_bytes()).unwrap();
        Tls::new(certificate(self), key, trusted).unwrap()
    }
}

/// Two hosts that trust each other.
pub fn friends() -> (Host, Host) {
    let (alpha, beta) = (Host::new("alpha", "10.0.0.1"), Host::new("beta", "10.0.0.2"));
    alpha.trust(&beta);
    beta.trust(&alpha);
    (alpha, beta)
}

/// All bridges, what they have told, and the time.
pub struct World {
    pub controls: Vec<Option<Control>>,
    pub events: Vec<Vec<Event>>,
    pub now: Instant,
}

impl World {
    pub fn new() -> Self {
        Self { controls: Vec::new(), events: Vec::new(), now: Instant::now() }
    }

    pub fn control(&mut self, index: usize) -> &mut Control {
        self.controls[index].as_mut().unwrap()
    }

    /// Lets every bridge do what it has to do; if none has, time passes.
    pub fn step(&mut self) {
        let ready = self.is_ready();
        if !ready {
            let controls = self.controls.iter().flatten();
            let deadline = controls.map(|control| control.deadline(self.now)).min().unwrap();
            self.now = self.now.max(deadline);
        }
        for (control, events) in self.controls.iter_mut().zip(&mut self.events) {
            if let Some(control) = control {
                events.extend(control.turn(self.now));
            }
        }
    }

    /// Whether a bridge hears something within a moment, which is far longer than loopback needs.
    fn is_ready(&self) -> bool {
        let controls = self.controls.iter().flatten();
        let mut fds: Vec<PollFd<'_>> =
            controls.map(|control| PollFd::new(control.as_fd(), PollFlags::POLLIN)).collect();
        nix::poll::poll(&mut fds, PollTimeout::from(2_u8)).unwrap() > 0
    }

    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = self.now;
        while !done(self) {
            assert!(self.now < start + Duration::from_secs(100), "{what} does not happen: {:?}", self.events);
            self.step();
        }
    }

    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.step();
        }
    }

    pub fn up(&self, index: usize) -> Option<&PeerUp> {
        let mut up = None;
        for event in &self.events[index] {
            match event {
                Event::PeerUp(peer) => {
                    assert!(up.is_none(), "two connections at once");
                    up = Some(&**peer);
                }
                Event::PeerDown { peer, .. } => {
                    assert_eq!(up.map(|up| up.peer), Some(*peer), "down without up");
                    up = None;
                }
                Event::Message(peer, _) => assert_eq!(up.map(|up| up.peer), Some(*peer), "said by nobody"),
            }
        }
        up
    }

    pub fn both_up(&mut self) {
        self.until("both are up", |world| world.up(0).is_some() && world.up(1).is_some());
    }

    pub fn last_down(&self, index: usize) -> Option<&End> {
        self.events[index].iter().rev().find_map(|event| match event {
            Event::PeerDown { why, .. } => Some(why),
            _ => None,
        })
    }

    pub fn ended(&self, index: usize, name: &str) -> u64 {
        self.controls[index].as_ref().unwrap().ends().get(name).copied().unwrap_or(0)
    }
}

/// A peer that says whatever a test wants.
pub struct Raw {
    link: Link,
    outbox: Vec<u8>,
    reader: frame::Reader,
}

impl Raw {
    pub fn connect(address: SocketAddr, tls: Option<&Tls>) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        // Virtual time does not wait for the kernel to put small packets together.
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        let tls = tls.map(|tls| tls.connect(address.ip()).unwrap());
        Self { link: Link::new(socket, tls), outbox: Vec::new(), reader: frame::Reader::default() }
    }

    pub fn say(&mut self, frame: &Frame) {
        assert!(frame::write(&mut self.outbox, &frame.encode()));
    }

    pub fn say_bytes(&mut self, bytes: &[u8]) {
        self.outbox.extend(bytes);
    }

    /// Sends what it can, and hears what there is: frames, or how it ended.
    pub fn exchange(&mut self) -> Result<Vec<Frame>, End> {
        self.link.write(&mut self.outbox)?;
        let mut bytes = Vec::new();
        let ending = self.link.read(&mut bytes)?.ending;
        self.reader.push(&bytes);
        let mut frames = Vec::new();
        while let Some(body) = self.reader.next_body()? {
            frames.push(Frame::decode(body).unwrap());
        }
        self.link.write(&mut self.outbox)?;
        if ending == Ending::Over && frames.is_empty() { Err(End::Closed) } else { Ok(frames) }
    }

    /// What the bridge says last.
    pub fn last_word(&mut self, world: &mut World) -> String {
        let mut word = None;
        world.until("an answer", |_| {
            match self.exchange() {
                Ok(frames) => {
                    for frame in frames {
                        if let Frame::Bye(bye) = frame {
                            word = Some(bye.why);
                        }
                    }
                }
                Err(end) => {
                    word.get_or_insert(end.to_string());
                }
            }
            word.is_some()
        });
        word.unwrap()
    }
}

impl AsFd for Raw {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// A hello of beta.
pub fn hello(speaks_for: &str) -> Frame {
    Frame::Hello(Hello {
        version: VERSION,
        name: "beta".parse().unwrap(),
        instance: 7,
        speaks_for: vec![speaks_for.parse().unwrap()],
        rails: Vec::new(),
        token: Token::from_bytes([1; 32]),
        measure_port: 7,
    })
}

/// A rail to offer.
pub fn rail(id: u32) -> Rail {
    let text = r#"{"name": "tcp/eth0", "provider": "tcp", "protocol": "tcp", "address": "10.0.0.1/24"}"#;
    Rail { id, port: 1, description: serde_json::from_str(text).unwrap() }
}

/// Reads to the end of a plain connection, whatever it is.
pub fn drain(mut socket: &TcpStream) -> usize {
    let mut bytes = Vec::new();
    let _ = socket.read_to_end(&mut bytes);
    bytes.len()
}

/// Writes until the other end takes no more.
pub fn fill(mut socket: &TcpStream, bytes: &[u8]) -> bool {
    socket.write_all(bytes).is_ok()
}
