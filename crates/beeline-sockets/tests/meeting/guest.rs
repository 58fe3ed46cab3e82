//! What guests do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

mod carried;

/// Says something to the test.
fn say(what: impl std::fmt::Display) {
    println!("@{what}");
}

fn parameter(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn required(name: &str) -> String {
    parameter(name).unwrap_or_else(|| panic!("{name} is not set"))
}

fn number(name: &str, otherwise: usize) -> usize {
    parameter(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// Waits until the test lets this guest go on, or ends it. Returns whether it shall go on.
fn wait() -> bool {
    let mut byte = [0];
    matches!(std::io::stdin().read(&mut byte), Ok(1))
}

pub fn run() {
    match required("GUEST").as_str() {
        "server" => server(listen(&required("ADDRESS"))),
        "pair" => pair(),
        "inherited" => server(inherited()),
        "supervisor" => supervisor(),
        "crowd" => crowd(),
        "client" => client(),
        "crowd_client" => crowd_client(),
        "writer" => carried::writer(),
        "together" => carried::together(),
        "watcher" => carried::watcher(),
        "shot" => carried::shot(),
        "stalled" => stalled(),
        "early" => early(),
        "dropped" => dropped(),
        "many" => many(),
        "many_server" => many_server(),
        "sequence" => sequence(),
        "brim" => brim(),
        other => panic!("no role {other}"),
    }
    if number("STAY", 1) != 0 {
        while wait() {}
    }
}

/// A listener of our own making: std sets SO_REUSEADDR, and these tests want SO_REUSEPORT and backlogs, too.
pub fn listen(address: &str) -> TcpListener {
    let address: SocketAddr = address.parse().expect("an address");
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: plain numbers, then a fresh descriptor.
    let listener = unsafe {
        let fd = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        TcpListener::from_raw_fd(fd)
    };
    if number("REUSEPORT", 0) != 0 {
        set(listener.as_raw_fd(), libc::SO_REUSEPORT, 1);
    }
    bind(listener.as_raw_fd(), address);
    if number("PAUSE", 0) != 0 {
        say(cookie(listener.as_raw_fd()));
        wait();
    }
    // SAFETY: a live socket.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), number("BACKLOG", 64) as i32) }, 0);
    say(listener.local_addr().expect("bound"));
    say(cookie(listener.as_raw_fd()));
    listener
}

fn set(fd: RawFd, option: i32, value: i32) {
    // SAFETY: a live int of the size told.
    let result = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const value).cast(), 4) };
    assert_eq!(result, 0);
}

fn bind(fd: RawFd, address: SocketAddr) {
    let name = beeline_sockets::kernel::SockAddr::internet(
        address,
        if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 },
    );
    // SAFETY: a live address of the length told.
    assert_eq!(unsafe { libc::bind(fd, (&raw const name.storage).cast(), name.length) }, 0);
}

fn cookie(fd: RawFd) -> u64 {
    let mut cookie = 0u64;
    let mut length = 8;
    let place = (&raw mut cookie).cast();
    // SAFETY: `place` is a live u64, writable for the eight bytes that `length` tells; `length` is live, too.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, place, &raw mut length) };
    assert_eq!(result, 0);
    cookie
}

/// Answers each line of a connection: who we are, our address, the peer's, the line. One that was reset before it was
/// accepted has no peer any more; the test hears what its first read says, if it asked for that.
fn serve(stream: TcpStream) {
    let local = stream.local_addr().expect("accepted");
    let peer = match stream.peer_addr() {
        Ok(peer) => peer,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
            if number("SAY_RESETS", 0) != 0 {
                say((&stream).read(&mut [0]).expect_err("nothing to read").kind());
            }
            return;
        }
    };
    let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
    let mut writer = stream;
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|length| length != 0) {
        let answer = format!("{} {local} {peer} {line}", std::process::id());
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
        line.clear();
    }
}

/// Serves connections one after the other, in a thread; the main thread waits for the test.
fn server(listener: TcpListener) {
    if let Some(user) = parameter("DROP_TO") {
        let user = user.parse().expect("a uid");
        // SAFETY: plain numbers.
        assert_eq!(unsafe { libc::setresuid(user, user, user) }, 0);
    }
    std::thread::spawn(move || {
        loop {
            serve(listener.accept().expect("a connection").0);
        }
    });
}

/// Two listeners of one SO_REUSEPORT group in one process.
fn pair() {
    let first = listen(&required("ADDRESS"));
    let address = first.local_addr().expect("bound").to_string();
    let second = listen(&address);
    for listener in [first, second] {
        let which = listener.as_raw_fd();
        std::thread::spawn(move || {
            loop {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut line = String::new();
                let _ = BufReader::new(stream.try_clone().expect("a descriptor")).read_line(&mut line);
                let _ = stream.write_all(format!("listener {which}\n").as_bytes());
            }
        });
    }
}

fn inherited() -> TcpListener {
    let fd = required("LISTENER").parse().expect("a number");
    // SAFETY: the test left this descriptor open for us.
    let listener = unsafe { TcpListener::from_raw_fd(fd) };
    say(listener.local_addr().expect("bound"));
    listener
}

/// Listens with the library, and executes a server that does not have it: the door must not outlive the change.
fn supervisor() {
    use std::os::unix::process::CommandExt;
    let listener = listen(&required("ADDRESS"));
    let kept = listener.as_raw_fd();
    if number("ACCEPT_FIRST", 0) != 0 {
        serve(listener.accept().expect("a connection").0);
    }
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::fcntl(kept, libc::F_SETFD, 0) }, 0);
    let mut next = std::process::Command::new(std::env::current_exe().expect("own path"));
    next.args(std::env::args().skip(1)).env("GUEST", "inherited").env("LISTENER", kept.to_string());
    if number("NEXT_PLAIN", 1) != 0 {
        next.env_remove("LD_PRELOAD");
        // A program that cleans the environment of the next does not get rid of the library: this does.
        next.env("BEELINE_OPTIONS", "accelerate=off");
    }
    panic!("{}", next.exec());
}

/// Forked workers that all block in accept.
fn crowd() {
    let listener = listen(&required("ADDRESS"));
    let mut workers = Vec::new();
    for _ in 0..number("WORKERS", 3) {
        // SAFETY: the child only accepts and serves; the harness's threads hold no lock that it needs.
        match unsafe { libc::fork() } {
            0 => loop {
                match listener.accept() {
                    Ok((stream, _)) => serve(stream),
                    Err(error) => panic!("{error}"),
                }
            },
            worker => workers.push(worker),
        }
    }
    for worker in &workers {
        say(worker);
    }
    while wait() {}
    for worker in workers {
        // SAFETY: our own children.
        unsafe {
            libc::kill(worker, libc::SIGKILL);
            libc::waitpid(worker, std::ptr::null_mut(), 0);
        }
    }
}

fn exchange(address: &str, text: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.write_all(format!("{text}\n").as_bytes()).expect("sent");
    let mut answer = String::new();
    let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
    reader.read_line(&mut answer).expect("an answer");
    drop(stream);
    answer.trim_end().to_owned()
}

fn client() {
    let (address, text) = (required("ADDRESS"), required("TEXT"));
    let mut answer = String::new();
    for _ in 0..number("COUNT", 1) {
        answer = exchange(&address, &text);
        assert!(answer.contains(&text) || answer.starts_with("listener"), "{answer:?}");
    }
    say(answer);
}

/// Tells which worker served each connection.
fn crowd_client() {
    let address = required("ADDRESS");
    let mut served = std::collections::BTreeMap::<String, usize>::new();
    for index in 0..number("COUNT", 1) {
        let answer = exchange(&address, &format!("line{index}"));
        assert!(answer.ends_with(&format!("line{index}")), "{answer:?}");
        *served.entry(answer.split(' ').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    say(served.len());
}

/// Whether a thread of this process sleeps.
fn is_asleep(thread: i32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("a thread");
    state.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// Accepts once, so that its door is open, and never again. When it is let go it forks a child that holds the
/// listener without the library's door being served, or simply dies with the test's signal.
fn stalled() {
    let listener = listen(&required("ADDRESS"));
    let first = listener.accept().expect("a connection");
    say("stalled");
    while wait() {}
    drop(first);
}

/// Has clients that come before the server accepts for the first time.
fn early() {
    for _ in 0..number("COUNT", 1) {
        let listener = listen("127.0.0.1:0");
        let address = listener.local_addr().expect("an address");
        let (sender, receiver) = std::sync::mpsc::channel();
        let client = std::thread::spawn(move || {
            // SAFETY: only asks.
            sender.send(unsafe { libc::gettid() }).expect("a listener");
            let mut stream = TcpStream::connect(address).expect("connected");
            stream.write_all(b"x").expect("sent");
            stream.read(&mut [0]).expect("an answer")
        });
        let thread = receiver.recv().expect("a thread");
        // It sleeps in `connect`, or is connected already and sleeps in `read`.
        while !is_asleep(thread) {}
        let mut stream = listener.accept().expect("a connection").0;
        stream.read_exact(&mut [0]).expect("a byte");
        drop(stream);
        client.join().expect("an end of stream");
    }
    say("served");
}

/// Accepts once and then closes the listener, which others hold as well.
fn dropped() {
    let listener = inherited();
    let first = listener.accept().expect("a connection");
    say("stalled");
    wait();
    drop(listener);
    say("dropped");
    while wait() {}
    drop(first);
}

/// Holds many connections at once.
fn many() {
    let address = required("ADDRESS");
    let mut held = Vec::new();
    for index in 0..number("COUNT", 1) {
        match crate::limits::connected(&address) {
            Ok(stream) => held.push(stream),
            Err(error) => {
                say(format!("{index} {error}"));
                return;
            }
        }
    }
    for (index, stream) in held.iter_mut().enumerate() {
        stream.write_all(format!("{index}\n").as_bytes()).expect("sent");
    }
    for (index, stream) in held.iter_mut().enumerate() {
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("an answer");
        assert_eq!(answer, format!("{index}\n"));
    }
    say("held");
    std::iter::repeat_with(wait).take_while(|goes_on| *goes_on).for_each(|_| say(crate::limits::sets_that_fit()));
}

/// Holds all connections, and echoes with one poll loop.
fn many_server() {
    let listener = listen(&required("ADDRESS"));
    std::thread::spawn(move || {
        let mut held: Vec<TcpStream> = Vec::new();
        let mut fds = vec![libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        loop {
            // SAFETY: a live array of the length told.
            assert!(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as u64, -1) } > 0);
            if fds[0].revents != 0 {
                match listener.accept() {
                    Ok((stream, _)) => {
                        fds.push(libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 });
                        held.push(stream);
                    }
                    Err(error) => say(format!("accept: {error}")),
                }
                continue;
            }
            for index in (1..fds.len()).rev() {
                if fds[index].revents == 0 {
                    continue;
                }
                let mut bytes = [0; 64];
                match held[index - 1].read(&mut bytes) {
                    Ok(0) | Err(_) => {
                        fds.remove(index);
                        held.remove(index - 1);
                    }
                    Ok(length) => held[index - 1].write_all(&bytes[..length]).expect("sent"),
                }
            }
        }
    });
}

/// Holds connections, each of which has found one descriptor free, and then answers a line of each.
fn brim() {
    let listener = listen(&required("ADDRESS"));
    let mut held = vec![listener.accept().expect("a connection").0];
    let mut filling = Vec::new();
    while held.len() < number("COUNT", 1) {
        while let Ok(more) = std::fs::File::open("/dev/null") {
            filling.push(more);
        }
        drop(filling.pop().expect("one to give back"));
        held.push(listener.accept().expect("a connection").0);
    }
    drop(filling);
    for stream in &mut held {
        let mut line = String::new();
        BufReader::new(&*stream).read_line(&mut line).expect("a line");
        stream.write_all(line.as_bytes()).expect("sent");
    }
}

/// One connection after the other, each closed at once by the client; tells how many worked.
fn sequence() {
    let address = required("ADDRESS");
    let mut done = 0;
    for index in 0..number("COUNT", 1) {
        let answer = exchange(&address, &format!("n{index}"));
        assert!(answer.ends_with(&format!("n{index}")), "{answer:?}");
        done += 1;
    }
    say(done);
}
