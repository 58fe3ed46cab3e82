//! Clients that lie about who they are or say nothing, and doors that belong to somebody else.

use super::{Case, PATIENCE, Target, servers};
use crate::child;
use anyhow::{Context, Result, ensure};
use beeline_testkit::hostile::{self, Client, Lane, open_descriptors, squat};
use beeline_testkit::watch::{Ending, Group};
use beeline_testkit::{preload, sys};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

const RING: u32 = 1 << 16;

/// Some user that is neither root nor we.
const STRANGER: u32 = 54_321;

pub const CASES: &[Case] = &[
    Case { name: "silent_client", body: silent_client },
    Case { name: "silent_clients_by_the_hundred", body: silent_clients_by_the_hundred },
    Case { name: "silent_client_speaks_late", body: silent_client_speaks_late },
    Case { name: "silent_client_sends_an_urgent_byte", body: silent_client_sends_an_urgent_byte },
    Case { name: "urgent_byte_at_a_polled_listener", body: urgent_byte_at_a_polled_listener },
    Case { name: "silent_stranger_who_is_not_let_in", body: silent_stranger_who_is_not_let_in },
    Case { name: "client_without_a_name", body: client_without_a_name },
    Case { name: "client_with_a_strange_name", body: client_with_a_strange_name },
    Case {
        name: "client_claims_a_foreign_address",
        body: |target| claims(target, "8.8.8.8:4000", "hello_address_foreign"),
    },
    Case { name: "client_claims_another_family", body: |target| claims(target, "[::1]:4000", "hello_name_mismatch") },
    Case { name: "client_claims_port_zero", body: |target| claims(target, "127.0.0.1:0", "hello_name_mismatch") },
    Case { name: "stranger_claims_a_privileged_port", body: stranger_claims_a_privileged_port },
    Case { name: "stranger_claims_a_port_in_use", body: stranger_claims_a_port_in_use },
    Case { name: "clients_names_squatted", body: clients_names_squatted },
    Case { name: "client_names_another_server", body: client_names_another_server },
    Case { name: "address_can_be_claimed_once", body: address_can_be_claimed_once },
    Case { name: "strangers_client", body: strangers_client },
    Case { name: "door_name_squatted_by_a_stranger", body: squatted_by_a_stranger },
    Case { name: "strangers_listener", body: |target| hundred_knocks(target, STRANGER, "foreign_uid=off", 0) },
    Case {
        name: "roots_listener_with_a_strangers_door",
        body: |target| hundred_knocks(target, 0, "foreign_uid=off", 5),
    },
    Case {
        name: "roots_listener_with_a_distrusted_door",
        body: |target| hundred_knocks(target, 0, "foreign_uid=on", 5),
    },
];

fn silent_client(target: &mut Target) -> Result<()> {
    let _silent = target.client()?;
    target.visit()?;
    target.expect_honest_service("beside a silent client")
}

fn silent_clients_by_the_hundred(target: &mut Target) -> Result<()> {
    let baseline = open_descriptors(target.process.id());
    let silent: Vec<Client> = (0..200).filter_map(|_| target.client().ok()).collect();
    ensure!(!silent.is_empty(), "no silent client came in");
    // Among so many the door may take an honest client for one more and send it to TCP; it must be served.
    let ending = target.client_program("any_path")?.finish(PATIENCE)?;
    ensure!(ending == Ending::Exit(0), "beside many silent clients an honest one ended with {ending:?}");
    target.visit()?;
    drop(silent);
    // Hidden descriptors that the honest visits left (lanes, threads) stay below this.
    target.expect_descriptors(baseline + 20)
}

fn silent_client_speaks_late(target: &mut Target) -> Result<()> {
    let client = target.client()?;
    target.visit()?;
    target.visit()?;
    let lane = Lane::correct(RING)?;
    let before = target.carried()?.accelerated;
    client.say_hello(&lane)?;
    target.expect_within("the late hello is taken", |target| Ok(target.carried()?.accelerated > before))
}

fn silent_client_sends_an_urgent_byte(target: &mut Target) -> Result<()> {
    expect_urgent_bytes_heard(target, Target::client)
}

/// A client that was silent and sends one urgent byte is heard, and sent away: the kernel tells of it until then.
fn expect_urgent_bytes_heard(target: &mut Target, connect: impl Fn(&mut Target) -> Result<Client>) -> Result<()> {
    /// A server that was kept from running may take the byte out as it looks for a hello, and put the client aside.
    const CLIENTS: usize = 3;
    let mut cost = Vec::new();
    for _ in 0..CLIENTS {
        let client = connect(target)?;
        // What it is waited for, and more.
        std::thread::sleep(Duration::from_millis(300));
        let (began, before) = (Instant::now(), target.cpu_time()?);
        client.send_urgent(b'x', &[])?;
        let mut entry = [libc::pollfd { fd: client.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        sys::poll(&mut entry, 3_000);
        if entry[0].revents != 0 {
            return target.visit();
        }
        cost.push((target.cpu_time()?.saturating_sub(before), began.elapsed()));
    }
    anyhow::bail!("they stay, and the server has used so much CPU time: {cost:?}");
}

fn urgent_byte_at_a_polled_listener(target: &mut Target) -> Result<()> {
    // One that blocks is called readable only for clients that have spoken, so it takes them out of the door.
    let mut polled = Target::start("polling", &target.library)?;
    polled.expect_honest_service("before")?;
    expect_urgent_bytes_heard(&mut polled, Target::client)?;
    expect_urgent_bytes_heard(&mut polled, |polled| as_nobody_special(|| polled.client()))?;
    polled.expect_honest_service("after")
}

fn silent_stranger_who_is_not_let_in(target: &mut Target) -> Result<()> {
    // Whatever it says later it would be sent away for: no place is kept for it.
    if !is_root() {
        return Ok(());
    }
    let mut polled = Target::start_with("polling", &target.library, "foreign_uid=off")?;
    polled.expect_honest_service("before")?;
    let stranger = as_nobody_special(|| polled.client())?;
    ensure!(stranger.is_sent_away(), "it waits");
    ensure!(polled.carried()?.fallen_back.contains_key("foreign_user"), "not counted: {}", polled.carried()?);
    polled.expect_honest_service("after")
}

/// A client that is refused for its name may find the door closed before it has spoken.
fn say_hello_if_still_there(client: &Client) -> Result<()> {
    match client.say_hello(&Lane::correct(RING)?) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn client_without_a_name(target: &mut Target) -> Result<()> {
    let client = Client::unnamed(target.cookie)?;
    say_hello_if_still_there(&client)?;
    target.visit()?;
    target.expect_poison("hello_unnamed", 1)?;
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

fn client_with_a_strange_name(target: &mut Target) -> Result<()> {
    let own = std::process::id();
    for name in [format!("strange-{own}"), format!("beeline/1/conn/{own}"), format!("beeline/2/conn/{own}")] {
        let client = Client::with_name(target.cookie, name.as_bytes())?;
        say_hello_if_still_there(&client)?;
        target.visit()?;
        ensure!(client.is_sent_away(), "{name} is still connected");
    }
    Ok(())
}

fn claims(target: &mut Target, address: &str, poison: &str) -> Result<()> {
    let client = as_nobody_special(|| Ok(Client::claiming(target.cookie, address.parse()?, target.address)?))?;
    say_hello_if_still_there(&client)?;
    target.visit()?;
    target.expect_poison(poison, 1)?;
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

fn client_names_another_server(target: &mut Target) -> Result<()> {
    let other = SocketAddr::new(target.address.ip(), target.address.port().wrapping_add(1));
    let claim = target.claim();
    let client = Client::claiming(target.cookie, claim, other)?;
    say_hello_if_still_there(&client)?;
    target.visit()?;
    target.expect_poison("hello_name_mismatch", 1)?;
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

fn stranger_claims_a_privileged_port(target: &mut Target) -> Result<()> {
    // What TCP says EACCES to. Where every port may be bound by anybody, there is nothing to claim.
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")?;
    if first.trim().parse::<u16>()? <= 700 {
        return Ok(());
    }
    claims(target, "127.0.0.1:700", "hello_address_foreign")
}

fn stranger_claims_a_port_in_use(target: &mut Target) -> Result<()> {
    // What TCP says EADDRINUSE to. Root may claim it: it could do worse.
    if !is_root() {
        return Ok(());
    }
    let in_use = (2_000..20_000).find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).context("no port")?;
    let (cookie, claim, server) = (target.cookie, in_use.local_addr()?, target.address);
    let client = as_nobody_special(|| Ok(Client::claiming(cookie, claim, server)?))?;
    say_hello_if_still_there(&client)?;
    target.visit()?;
    ensure!(client.is_sent_away(), "it has the address of somebody else's listener");
    Ok(())
}

fn clients_names_squatted(target: &mut Target) -> Result<()> {
    // Somebody binds every name that a client could take. Honest clients are served over lanes all the same.
    let baseline = open_descriptors(target.process.id());
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
    let mut ends = range.split_whitespace().map(str::parse::<u16>);
    let (low, high) = (ends.next().context("a range")??, ends.next().context("a range")??);
    let ports: Vec<u16> = (1024..=u16::MAX).filter(|port| *port < low || *port > high).collect();
    let (_, [told, tell]) = sys::pipe2(0);
    let squatters: Vec<_> =
        ports.chunks(descriptor_limit()?).map(|part| squat_names(part, target.address, tell)).collect();
    let mut complete = [0];
    let squatted = squatters.iter().all(|_| sys::read(told, &mut complete).is_ok() && complete == *b"y");
    let served = (0..3).try_for_each(|_| target.expect_honest_service("while all names are taken"));
    for squatter in squatters {
        sys::kill(squatter.value as i32, libc::SIGKILL);
        sys::wait_for(squatter);
    }
    ensure!(squatted, "not all names could be taken");
    served?;
    // The ports that the server has held are free again.
    target.expect_descriptors(baseline + 8)
}

/// How many sockets a process may hold, besides a few other descriptors.
fn descriptor_limit() -> Result<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live structure.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: a live structure.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    Ok(usize::try_from(limit.rlim_max)?.saturating_sub(100).clamp(1, 1 << 16))
}

/// A child that holds the names of clients with these ports, and writes `y` to `tell` once it has them all.
fn squat_names(ports: &[u16], server: SocketAddr, tell: i32) -> sys::Ret {
    sys::fork(|| {
        let names = ports.iter().map(|port| hostile::bound(SocketAddr::new(server.ip(), *port), server));
        let names: Vec<_> = names.filter_map(Result::ok).collect();
        // One name is the connection that is just being closed.
        sys::write(tell, if names.len() + 2 >= ports.len() { b"y" } else { b"n" });
        std::thread::sleep(4 * PATIENCE);
        0
    })
}

fn address_can_be_claimed_once(target: &mut Target) -> Result<()> {
    let claim = target.claim();
    let _first = Client::claiming(target.cookie, claim, target.address)?;
    let second = Client::claiming(target.cookie, claim, target.address);
    ensure!(second.is_err(), "two clients have the same address");
    Ok(())
}

/// Connects as a user who may not speak for other hosts. Root may: it could be the bridge.
fn as_nobody_special<R>(connect: impl FnOnce() -> Result<R>) -> Result<R> {
    if !is_root() {
        return connect();
    }
    become_user(STRANGER)?;
    let connected = connect();
    become_user(0)?;
    connected
}

/// The effective user of this thread alone, which the kernel notes of who connects and listens.
fn become_user(uid: u32) -> Result<()> {
    // SAFETY: plain numbers; the saved and the real user stay root, so that there is a way back.
    let done = unsafe { libc::syscall(libc::SYS_setresuid, u32::MAX, uid, u32::MAX) };
    ensure!(done == 0, "cannot become user {uid}");
    Ok(())
}

fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Runs `body` as another user, in a child; false when it failed.
fn as_stranger(body: impl FnOnce() -> Result<()>) -> bool {
    let child = sys::fork(|| {
        // SAFETY: integers only.
        let changed = unsafe { libc::setgid(STRANGER) == 0 && libc::setuid(STRANGER) == 0 };
        i32::from(!changed || body().is_err())
    });
    sys::wait_for(child) == "exit 0"
}

fn strangers_client(target: &mut Target) -> Result<()> {
    // Another user's correct hello is taken or declined, by option and kernel; nothing else may happen.
    if !is_root() {
        return Ok(());
    }
    let (cookie, claim, server) = (target.cookie, target.claim(), target.address);
    let served = as_stranger(|| {
        let client = Client::claiming(cookie, claim, server)?;
        client.say_hello(&Lane::correct(RING)?)?;
        servers::ask(server, PATIENCE)
    });
    ensure!(served, "another user could not even use TCP");
    Ok(())
}

/// A hundred clients of another user connect to a listener of `owner` whose door is the stranger's, which they may not
/// enter: he is woken `most` times.
fn hundred_knocks(target: &mut Target, owner: u32, options: &str, most: usize) -> Result<()> {
    const CLIENT: u32 = STRANGER + 1;
    if !is_root() {
        return Ok(());
    }
    become_user(owner)?;
    let listener = TcpListener::bind("127.0.0.1:0");
    become_user(STRANGER)?;
    let door = listener.and_then(|listener| {
        let door = squat(servers::cookie(listener.as_raw_fd()))?;
        Ok((door, listener))
    });
    become_user(0)?;
    let (door, listener) = door?;
    let mut client = child::program(&format!("hundred_knocks:{}", listener.local_addr()?));
    preload::apply(&mut client, Some(&target.library));
    preload::options(&mut client, options);
    client.uid(CLIENT).gid(CLIENT);
    let client = Group::start(&mut client)?;
    let (mut visits, mut waiting) = (0, Vec::new());
    let until = Instant::now() + PATIENCE;
    loop {
        ensure!(Instant::now() < until, "{} of a hundred have come", waiting.len());
        let look = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut looks = [look(door.as_raw_fd()), look(listener.as_raw_fd())];
        sys::poll(&mut looks, 100);
        let [at_door, over_tcp] = looks.map(|look| look.revents != 0);
        if at_door {
            sys::close(sys::accept(door.as_raw_fd()).value as i32);
            visits += 1;
        }
        if over_tcp {
            waiting.push(listener.accept()?);
        }
        if waiting.len() == 100 && !at_door {
            break;
        }
    }
    let ending = client.finish(PATIENCE)?;
    ensure!(ending == Ending::Exit(0), "the client ended with {ending:?}");
    ensure!(visits <= most, "{visits} visits in vain");
    Ok(())
}

fn squatted_by_a_stranger(target: &mut Target) -> Result<()> {
    // A stranger takes the name of a door before the listener's owner does: the server stays without a door, and no
    // client gives the stranger its bytes.
    if !is_root() {
        return Ok(());
    }
    let mut command = child::program("serve_later:");
    preload::apply(&mut command, Some(&target.library));
    let mut process = Group::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let (input, output, _) = process.pipes();
    let mut output = BufReader::new(output.context("output")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    let cookie: u64 = line.trim().parse()?;
    let (_, [told, tell]) = sys::pipe2(0);
    let squatter = sys::fork(|| {
        // SAFETY: integers only.
        unsafe { libc::setuid(STRANGER) };
        let Ok(door) = squat(cookie) else { return 1 };
        sys::write(tell, b"x");
        // Whoever comes in is a client that has been fooled.
        let mut entry = [libc::pollfd { fd: door.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        sys::poll(&mut entry, 60_000);
        let guest = sys::accept(door.as_raw_fd());
        let mut hello = [0; 64];
        let said = sys::recv(guest.value as i32, &mut hello, 0);
        // Connecting is how a client finds out whose door it is; saying hello would be the mistake.
        if said.value > 0 { 2 } else { 0 }
    });
    sys::read(told, &mut [0]);
    writeln!(input.context("input")?, "listen")?;
    line.clear();
    output.read_line(&mut line)?;
    let address: SocketAddr = line.trim().parse()?;
    let mut client = child::program(&format!("any_path:{address}"));
    preload::apply(&mut client, Some(&target.library));
    let ending = Group::start(&mut client)?.finish(PATIENCE)?;
    ensure!(ending == Ending::Exit(0), "the client ended with {ending:?}");
    sys::kill(squatter.value as i32, libc::SIGTERM);
    let how = sys::wait_for(squatter);
    ensure!(how == "exit 0" || how == "signal SIGTERM", "the squatter got a hello: {how}");
    Ok(())
}
