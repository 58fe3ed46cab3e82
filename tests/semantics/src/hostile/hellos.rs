//! Hellos that are wrong in every way.

use super::{Case, Target};
use anyhow::{Result, ensure};
use beeline_testkit::hostile::{self, LANE_SEALS, Lane, Lingering, Locked};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

const RING: u32 = 1 << 16;

pub const CASES: &[Case] = &[
    Case { name: "hello_cut_short", body: hello_cut_short },
    Case { name: "hello_in_two_parts", body: hello_in_two_parts },
    Case { name: "hello_too_long", body: hello_too_long },
    Case { name: "hello_wrong_magic", body: |target| altered(target, 0, b"X", "hello_magic") },
    Case { name: "hello_of_another_version", body: hello_of_another_version },
    Case { name: "hello_unknown_flags", body: |target| altered(target, 10, &[0x80, 0], "hello_flags") },
    Case { name: "hello_reserved_set", body: |target| altered(target, 63, &[1], "hello_reserved") },
    Case { name: "hello_ring_not_a_power", body: |target| altered(target, 12, &[1, 0, 1, 0], "hello_ring_bytes") },
    Case { name: "hello_ring_enormous", body: |target| altered(target, 12, &[0, 0, 0, 0x80], "hello_ring_bytes") },
    Case { name: "hello_size_mismatch", body: |target| altered(target, 16, &[1], "hello_size") },
    Case { name: "hello_of_random_bytes", body: hello_of_random_bytes },
    Case { name: "hello_without_descriptor", body: hello_without_descriptor },
    Case { name: "hello_with_two_descriptors", body: |target| with_descriptors(target, 2) },
    Case { name: "hello_with_253_descriptors", body: |target| with_descriptors(target, 253) },
    Case { name: "hello_with_strange_descriptors", body: hello_with_strange_descriptors },
    Case { name: "hello_reuses_an_unknown_lane", body: hello_reuses_an_unknown_lane },
    Case { name: "hello_names_another_inode", body: hello_names_another_inode },
    Case { name: "lane_without_seals", body: |target| odd_lane(target, libc::MFD_ALLOW_SEALING, 0, 0, "hello_seals") },
    Case { name: "lane_that_cannot_be_sealed", body: |target| odd_lane(target, 0, 0, 0, "hello_seals") },
    Case { name: "lane_with_some_seals", body: lane_with_some_seals },
    Case { name: "lane_sealed_against_writing", body: lane_sealed_against_writing },
    Case {
        name: "lane_too_small",
        body: |target| odd_lane(target, libc::MFD_ALLOW_SEALING, LANE_SEALS, -4096, "hello_size"),
    },
    Case {
        name: "lane_too_large",
        body: |target| odd_lane(target, libc::MFD_ALLOW_SEALING, LANE_SEALS, 4096, "hello_size"),
    },
    Case { name: "lane_of_no_bytes", body: lane_of_no_bytes },
    Case { name: "lane_of_huge_pages", body: lane_of_huge_pages },
    Case { name: "lane_offered_twice", body: lane_offered_twice },
    Case { name: "lingering_sockets_with_hello", body: lingering_sockets_with_hello },
    Case { name: "lingering_socket_as_lane", body: lingering_socket_as_lane },
    Case { name: "lingering_socket_behind_hello", body: lingering_socket_behind_hello },
    Case { name: "locked_socket_as_lane", body: locked_socket_as_lane },
    Case { name: "lingering_sockets_with_half_a_hello", body: lingering_sockets_with_half_a_hello },
];

/// A correct hello with some bytes changed.
fn altered(target: &mut Target, offset: usize, bytes: &[u8], poison: &str) -> Result<()> {
    let client = altered_client(target, offset, bytes)?;
    target.expect_poison(poison, 1)?;
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

fn altered_client(target: &mut Target, offset: usize, bytes: &[u8]) -> Result<hostile::Client> {
    let lane = Lane::correct(RING)?;
    let mut message = lane.hello().encode();
    message[offset..offset + bytes.len()].copy_from_slice(bytes);
    let client = target.client()?;
    client.send(&message, &[lane.fd.as_raw_fd()])?;
    target.visit()?;
    Ok(client)
}

/// No offence, but a program that was started before an upgrade: it is to go on over TCP.
fn hello_of_another_version(target: &mut Target) -> Result<()> {
    let client = altered_client(target, 8, &[77, 0])?;
    target.expect_within("the reason is counted", |target| {
        Ok(target.carried()?.fallen_back.get("version_mismatch").is_some_and(|count| *count >= 1))
    })?;
    ensure!(target.carried()?.poisoned.is_empty(), "it counts as an offence: {}", target.carried()?);
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

fn hello_cut_short(target: &mut Target) -> Result<()> {
    let lane = Lane::correct(RING)?;
    for length in [1, 7, 63] {
        let client = target.client()?;
        client.send(&lane.hello().encode()[..length], &[lane.fd.as_raw_fd()])?;
        drop(client);
        target.visit()?;
    }
    target.expect_poison("hello_short", 1)
}

fn hello_in_two_parts(target: &mut Target) -> Result<()> {
    // A hello is one message. The first part is a fault by itself, whatever follows.
    let lane = Lane::correct(RING)?;
    let message = lane.hello().encode();
    let client = target.client()?;
    client.send(&message[..32], &[lane.fd.as_raw_fd()])?;
    target.visit()?;
    let _ = client.send(&message[32..], &[]);
    target.visit()?;
    target.expect_poison("hello_short", 1)?;
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

fn hello_too_long(target: &mut Target) -> Result<()> {
    // What follows a correct hello at once can only be doorbells: anything else poisons the connection.
    let lane = Lane::correct(RING)?;
    let mut message = lane.hello().encode().to_vec();
    message.extend([0xff; 100]);
    let client = target.client()?;
    client.send(&message, &[lane.fd.as_raw_fd()])?;
    target.visit()
}

fn hello_of_random_bytes(target: &mut Target) -> Result<()> {
    let mut rng = beeline_testkit::rng::Rng::new(4);
    for _ in 0..50 {
        let bytes: Vec<u8> = (0..rng.between(1, 200)).map(|_| rng.next_u64() as u8).collect();
        let client = target.client()?;
        client.send(&bytes, &[])?;
    }
    target.visit()
}

fn hello_without_descriptor(target: &mut Target) -> Result<()> {
    let lane = Lane::correct(RING)?;
    let client = target.client()?;
    client.send(&lane.hello().encode(), &[])?;
    target.visit()?;
    target.expect_poison("hello_no_lane", 1)?;
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

fn with_descriptors(target: &mut Target, count: usize) -> Result<()> {
    let baseline = beeline_testkit::hostile::open_descriptors(target.process.id());
    let lane = Lane::correct(RING)?;
    let client = target.client()?;
    client.send(&lane.hello().encode(), &vec![lane.fd.as_raw_fd(); count])?;
    target.visit()?;
    target.expect_poison("hello_extra_fds", 1)?;
    ensure!(client.is_sent_away(), "it is still connected");
    target.expect_descriptors(baseline)
}

fn hello_with_strange_descriptors(target: &mut Target) -> Result<()> {
    let lane = Lane::correct(RING)?;
    let directory = File::open("/")?;
    let null = File::open("/dev/null")?;
    let file = File::open("/proc/self/exe")?;
    let (_, pipe) = beeline_testkit::sys::pipe2(libc::O_CLOEXEC);
    let set = beeline_testkit::sys::epoll_create1(libc::EPOLL_CLOEXEC).value as RawFd;
    let (_, pair) = beeline_testkit::sys::socketpair(libc::SOCK_STREAM | libc::SOCK_CLOEXEC);
    let strange = [directory.as_raw_fd(), null.as_raw_fd(), file.as_raw_fd(), pipe[0], pipe[1], set, pair[0]];
    for fd in strange {
        let client = target.client()?;
        client.send(&lane.hello().encode(), &[fd])?;
        target.visit()?;
        ensure!(client.is_sent_away(), "it is still connected");
    }
    target.expect_poison("hello_seals", strange.len() as u64)
}

fn hello_reuses_an_unknown_lane(target: &mut Target) -> Result<()> {
    let lane = Lane::correct(RING)?;
    let mut hello = lane.hello();
    (hello.reuse, hello.generation) = (true, 1);
    let client = target.client()?;
    client.send(&hello.encode(), &[])?;
    target.visit()?;
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

fn hello_names_another_inode(target: &mut Target) -> Result<()> {
    let (one, two) = (Lane::correct(RING)?, Lane::correct(RING)?);
    let client = target.client()?;
    client.send(&one.hello().encode(), &[two.fd.as_raw_fd()])?;
    target.visit()?;
    target.expect_poison("hello_lane_unknown", 1)?;
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

/// A lane that is wrong by its kind, its seals or its size.
fn odd_lane(target: &mut Target, flags: u32, seals: i32, more: i64, poison: &str) -> Result<()> {
    let bytes = beeline_wire::hello::lane_bytes(RING).wrapping_add_signed(more);
    let lane = Lane::odd(RING, bytes, flags, seals)?;
    let client = target.client()?;
    client.say_hello(&lane)?;
    target.visit()?;
    target.expect_poison(poison, 1)?;
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

fn lane_with_some_seals(target: &mut Target) -> Result<()> {
    let some = [libc::F_SEAL_SHRINK, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW, libc::F_SEAL_SEAL];
    for seals in some {
        odd_lane(target, libc::MFD_ALLOW_SEALING, seals, 0, "hello_seals")?;
    }
    target.expect_poison("hello_seals", some.len() as u64)
}

fn lane_sealed_against_writing(target: &mut Target) -> Result<()> {
    odd_lane(target, libc::MFD_ALLOW_SEALING, LANE_SEALS | libc::F_SEAL_WRITE, 0, "hello_seals")
}

fn lane_of_no_bytes(target: &mut Target) -> Result<()> {
    let whole = beeline_wire::hello::lane_bytes(RING) as i64;
    odd_lane(target, libc::MFD_ALLOW_SEALING, LANE_SEALS, -whole, "hello_size")
}

fn lane_of_huge_pages(target: &mut Target) -> Result<()> {
    // Huge pages accept the same seals and raise SIGBUS when the pool is empty. The size must be a multiple of 2 MiB,
    // which no lane has: so the file system must have been looked at before the size, or both agree.
    let flags = libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
    let lane = match Lane::odd(1 << 20, 4 << 20, flags, LANE_SEALS) {
        Ok(lane) => lane,
        // A kernel without huge pages cannot be attacked with them.
        Err(error) if [Some(libc::ENODEV), Some(libc::EINVAL), Some(libc::ENOMEM)].contains(&error.raw_os_error()) => {
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let client = target.client()?;
    client.say_hello(&lane)?;
    target.visit()?;
    target.expect_within("it is refused", |target| {
        let poisoned = target.carried()?.poisoned;
        Ok(poisoned.contains_key("hello_not_tmpfs") || poisoned.contains_key("hello_size"))
    })?;
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

fn lane_offered_twice(target: &mut Target) -> Result<()> {
    // The same memory for several connections mixes their bytes, which harms nobody but the client who does it. The
    // server must neither mind nor count the lane as free when one of them ends.
    let lane = Lane::correct(RING)?;
    for _ in 0..5 {
        let (first, second) = (target.client()?, target.client()?);
        first.say_hello(&lane)?;
        second.say_hello(&lane)?;
        target.visit()?;
        drop(first);
        target.visit()?;
        let third = target.client()?;
        third.say_hello(&lane)?;
        target.expect_honest_service("while a lane is used twice")?;
    }
    Ok(())
}

fn lingering_sockets_with_hello(target: &mut Target) -> Result<()> {
    // Whoever drops the last reference to such a socket waits for its linger time: a minute, unless it is disarmed.
    let lane = Lane::correct(RING)?;
    let client = target.client()?;
    {
        let lingering = [Lingering::new(60)?, Lingering::new(60)?, Lingering::new(60)?];
        let mut fds = vec![lane.fd.as_raw_fd()];
        fds.extend(lingering.iter().map(|socket| socket.socket.as_raw_fd()));
        client.send(&lane.hello().encode(), &fds)?;
        let kept: Vec<_> = lingering.into_iter().map(give_away).collect();
        target.visit()?;
        target.expect_poison("hello_extra_fds", 1)?;
        drop(kept);
    }
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

/// Closes our copy of a lingering socket without waiting for it (the copy in flight is the last one now); the deaf peer
/// stays. A server that was faster has closed its own already: then ours is the last one, and a thread waits for it.
fn give_away(lingering: Lingering) -> Lingering {
    // Closing a copy that is not the last one does not linger, so the socket may simply be dropped later. What matters
    // is that the copy in flight is the last: a duplicate replaces ours by something harmless.
    let fd = lingering.socket.as_raw_fd();
    let replacing = std::thread::spawn(move || {
        if let Ok(null) = File::open("/dev/null") {
            beeline_testkit::sys::dup2(null.as_raw_fd(), fd);
        }
    });
    let until = Instant::now() + Duration::from_secs(1);
    while !replacing.is_finished() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    lingering
}

fn lingering_socket_as_lane(target: &mut Target) -> Result<()> {
    let lane = Lane::correct(RING)?;
    let client = target.client()?;
    let lingering = Lingering::new(60)?;
    client.send(&lane.hello().encode(), &[lingering.socket.as_raw_fd()])?;
    let _kept = give_away(lingering);
    target.visit()?;
    target.expect_poison("hello_seals", 1)?;
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

/// Whoever asks such a socket anything that takes its lock stands, uninterruptibly.
fn locked_socket_as_lane(target: &mut Target) -> Result<()> {
    let lane = Lane::correct(RING)?;
    let Some(locked) = Locked::new()? else {
        eprintln!("locked_socket_as_lane: not tried, as userfaultfd(2) is not permitted here");
        return Ok(());
    };
    let client = target.client()?;
    client.send(&lane.hello().encode(), &[locked.socket.as_raw_fd()])?;
    target.visit()?;
    target.expect_poison("hello_seals", 1)?;
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

/// Another user's client is whole but for what it has sent before the server could refuse descriptors.
fn lingering_socket_behind_hello(target: &mut Target) -> Result<()> {
    const SOMEBODY: u32 = 1000;
    let lane = Lane::correct(RING)?;
    let server = target.process.id() as i32;
    // SAFETY: plain numbers. The call changes this thread alone.
    let become_user = |uid: u32| unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) } == 0;
    let is_root = become_user(SOMEBODY) && become_user(0);
    if !is_root {
        eprintln!("lingering_socket_behind_hello: not tried, as only root can be another user");
        return Ok(());
    }
    // SAFETY: the server is a child of ours, which nobody has waited for.
    unsafe { libc::kill(server, libc::SIGSTOP) };
    become_user(SOMEBODY);
    let client = target.client();
    become_user(0);
    let client = client?;
    client.say_hello(&lane)?;
    let lingering = Lingering::new(60)?;
    client.send(&[0xbe], &[lingering.socket.as_raw_fd()])?;
    let _kept = give_away(lingering);
    // SAFETY: as above.
    unsafe { libc::kill(server, libc::SIGCONT) };
    target.visit()?;
    target.expect_within("it is refused", |target| {
        let carried = target.carried()?;
        Ok(carried.poisoned.contains_key("hello_extra_fds") || carried.fallen_back.contains_key("foreign_user"))
    })?;
    ensure!(client.is_sent_away(), "it is still connected");
    target.visit()
}

fn lingering_sockets_with_half_a_hello(target: &mut Target) -> Result<()> {
    let client = target.client()?;
    let lingering = Lingering::new(60)?;
    client.send(&[1; 5], &[lingering.socket.as_raw_fd()])?;
    let _kept = give_away(lingering);
    drop(client);
    target.visit()?;
    target.expect_poison("hello_short", 1)
}
