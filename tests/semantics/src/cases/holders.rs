//! Processes that share a connection or a listener, of which one is stopped, killed, replaced by another program, or
//! busy in a handler, in the middle of its work: the others go on.
//!
//! Where the victim is caught is chance, so each case has several rounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use crate::case::axes::FAMILY;
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

pub const GROUP: Group = Group {
    name: "holders",
    cases: &[
        Case::new("stopped_while_it_sends", FAMILY, stopped_while_it_sends),
        Case::new("stopped_while_it_splices_in", FAMILY, stopped_while_it_splices_in),
        Case::new("stopped_while_it_splices_out", FAMILY, stopped_while_it_splices_out),
        Case::new("stopped_while_it_waits_for_room", FAMILY, stopped_while_it_waits_for_room),
        Case::new("killed_in_another_pid_namespace", FAMILY, killed_in_another_pid_namespace),
        Case::new("killed_without_proc", FAMILY, killed_without_proc).on_any_path(),
        Case::new("killed_while_it_sends_urgently", FAMILY, killed_while_it_sends_urgently),
        Case::new("replaced_while_it_sends", FAMILY, replaced_while_it_sends),
        Case::new("given_to_a_program_while_a_splice_waits", FAMILY, given_to_a_program_while_a_splice_waits),
        Case::new("given_to_a_program_while_a_sendfile_waits", FAMILY, given_to_a_program_while_a_sendfile_waits),
        Case::new("stopped_in_accept", FAMILY, stopped_in_accept).on_any_path(),
        Case::new("busy_in_a_handler_in_accept", FAMILY, busy_in_a_handler_in_accept).on_any_path(),
    ],
};

const ROUNDS: u64 = 8;

extern "C" fn interrupt(_: i32) {}

/// The state of a process in /proc, as a letter.
fn state(process: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?')
}

/// Sends until it is killed.
fn send_greedily(client: Fd, bytes: usize) -> ! {
    let message = vec![0; bytes];
    loop {
        sys::send(client.raw, &message, libc::MSG_NOSIGNAL);
    }
}

/// Reads until the end, and counts.
fn drain_aside(server: Fd) -> (Arc<AtomicU64>, JoinHandle<()>) {
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let reader = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let ret = sys::recv(server.raw, &mut buffer, 0);
            if ret.value <= 0 {
                break;
            }
            counted.fetch_add(ret.value as u64, Relaxed);
        }
    });
    (count, reader)
}

/// One round: `fork` starts a process that sends greedily and says whom to catch, `fell` catches that at its work. Then
/// `send` sends a byte, which must not take longer than the given time.
fn round(
    v: Variant,
    number: u64,
    fork: impl FnOnce(Fd, Fd) -> (sys::Ret, i32),
    fell: impl FnOnce(i32),
    send: impl FnOnce(Fd) -> bool,
) -> bool {
    let (client, server) = v.pair();
    let (child, victim) = fork(client, server);
    let (count, reader) = drain_aside(server);
    until("the child sends", || count.load(Relaxed) > 100_000 + 7_001 * number);
    fell(victim);
    let fine = send(client);
    for process in [victim, child.value as i32] {
        sys::kill(process, libc::SIGKILL);
    }
    sys::wait_for(child);
    sys::close(client.raw);
    let _ = reader.join();
    sys::close(server.raw);
    fine
}

/// Whether a byte is sent before a signal comes.
fn sends(client: Fd) -> bool {
    sys::alarm_ms(2_000, 0);
    let sent = sys::send(client.raw, b"x", 0);
    sys::alarm_ms(0, 0);
    sent.value == 1
}

fn greedy(client: Fd, server: Fd) -> (sys::Ret, i32) {
    let child = sys::fork(|| {
        sys::close(server.raw);
        send_greedily(client, 64);
    });
    (child, child.value as i32)
}

fn stop(victim: i32) {
    sys::kill(victim, libc::SIGSTOP);
    until("the child stands", || state(victim) == 'T');
}

fn stopped_while_it_sends(v: Variant) {
    sys::sigaction(libc::SIGALRM, interrupt, 0);
    for number in 0..ROUNDS {
        // One that is stopped exactly within a copy may keep others from theirs, but not from their handlers, and not
        // if they do not want to wait.
        let fine = round(v, number, greedy, stop, |client| {
            let at_once = sys::send(client.raw, b"x", libc::MSG_DONTWAIT);
            sys::alarm_ms(200, 0);
            let patiently = sys::send(client.raw, b"x", 0);
            sys::alarm_ms(0, 0);
            (at_once.value == 1 || at_once.is(libc::EAGAIN)) && (patiently.value == 1 || patiently.is(libc::EINTR))
        });
        trace!("sent or interrupted: {fine}");
    }
}

/// Whether splices between these two return in time, which `shared` is one of: a non-blocking one, and one that a
/// signal interrupts.
fn splices(from: i32, to: i32, shared: Fd) -> bool {
    sys::set_nonblocking(shared.raw, true);
    let at_once = sys::splice(from, None, to, None, 1, 0);
    sys::set_nonblocking(shared.raw, false);
    sys::alarm_ms(200, 0);
    let patiently = sys::splice(from, None, to, None, 1, 0);
    sys::alarm_ms(0, 0);
    (at_once.value == 1 || at_once.is(libc::EAGAIN)) && (patiently.value == 1 || patiently.is(libc::EINTR))
}

fn stopped_while_it_splices_in(v: Variant) {
    sys::sigaction(libc::SIGALRM, interrupt, 0);
    let (_, [out, into]) = sys::pipe2(0);
    let greedy = |client: Fd, server: Fd| {
        let child = sys::fork(|| {
            let (_, [out, into]) = sys::pipe2(0);
            sys::close(server.raw);
            loop {
                sys::write(into, &[0; 64]);
                sys::splice(out, None, client.raw, None, 64, 0);
            }
        });
        (child, child.value as i32)
    };
    for number in 0..ROUNDS {
        sys::write(into, b"xy");
        trace!("moved or interrupted: {}", round(v, number, greedy, stop, |client| splices(out, client.raw, client)));
    }
}

fn stopped_while_it_splices_out(v: Variant) {
    sys::sigaction(libc::SIGALRM, interrupt, 0);
    let (_, [_out, into]) = sys::pipe2(0);
    for number in 0..ROUNDS {
        let (client, server) = v.pair();
        let child = sys::fork(|| {
            let (_, [out, into]) = sys::pipe2(0);
            sys::close(client.raw);
            loop {
                sys::splice(server.raw, None, into, None, 64, 0);
                sys::read(out, &mut [0; 64]);
            }
        });
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        let sender = std::thread::spawn(move || {
            while sys::send(client.raw, &[0; 64], libc::MSG_NOSIGNAL).value == 64 {
                counted.fetch_add(64, Relaxed);
            }
        });
        until("the child has received", || count.load(Relaxed) > 1_000_000 + 7_001 * number);
        stop(child.value as i32);
        trace!("moved or interrupted: {}", splices(server.raw, into, server));
        sys::kill(child.value as i32, libc::SIGKILL);
        sys::wait_for(child);
        sys::shutdown(client.raw, libc::SHUT_RDWR);
        let _ = sender.join();
        sys::close(client.raw);
        sys::close(server.raw);
    }
}

fn stopped_while_it_waits_for_room(v: Variant) {
    sys::sigaction(libc::SIGALRM, interrupt, 0);
    let (client, server) = v.pair();
    let child = sys::fork(|| {
        sys::close(server.raw);
        send_greedily(client, 65_536);
    });
    let victim = child.value as i32;
    // It sleeps for good when there is no room, not for a moment.
    until("the child sleeps", || {
        (0..20).all(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            state(victim) == 'S'
        })
    });
    stop(victim);
    let (_, reader) = drain_aside(server);
    trace!("sent: {}", sends(client));
    sys::kill(victim, libc::SIGKILL);
    finish(child);
    close(client);
    let _ = reader.join();
}

fn finish(child: sys::Ret) {
    trace!("child: {}", sys::wait_for(child));
}

/// A process that sends greedily and lives in a pid namespace of its own, where that is allowed.
fn greedy_elsewhere(client: Fd, server: Fd) -> (sys::Ret, i32) {
    let (_, [from_child, to_parent]) = sys::pipe2(0);
    let child = sys::fork(|| {
        // SAFETY: integers only.
        unsafe {
            if libc::unshare(libc::CLONE_NEWPID) != 0 {
                libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID);
            }
        }
        let (_, victim) = greedy(client, server);
        sys::write(to_parent, &victim.to_ne_bytes());
        loop {
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        }
    });
    let mut victim = [0; 4];
    sys::read(from_child, &mut victim);
    sys::close(from_child);
    sys::close(to_parent);
    (child, i32::from_ne_bytes(victim))
}

fn slay(victim: i32) {
    sys::kill(victim, libc::SIGKILL);
    // SAFETY: all-zero is a valid value of this plain C struct, which is live.
    let of_ours = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PID, victim as u32, &raw mut info, libc::WEXITED | libc::WNOWAIT) == 0
    };
    if !of_ours {
        until("the child is dead", || matches!(state(victim), 'Z' | 'X' | '?'));
    }
}

fn killed_in_another_pid_namespace(v: Variant) {
    sys::sigaction(libc::SIGALRM, interrupt, 0);
    for number in 0..ROUNDS {
        trace!("sent: {}", round(v, number, greedy_elsewhere, slay, sends));
    }
}

/// None of those who share the end has a /proc, where that is allowed.
fn killed_without_proc(v: Variant) {
    sys::sigaction(libc::SIGALRM, interrupt, 0);
    for number in 0..ROUNDS {
        let jailed = sys::fork(|| {
            trace::set_actor("jailed");
            let fork = |client: Fd, server: Fd| {
                // SAFETY: a live string.
                unsafe { libc::chroot(c"/dev".as_ptr()) };
                greedy(client, server)
            };
            trace!("sent: {}", round(v, number, fork, slay, sends));
            0
        });
        finish(jailed);
    }
}

fn become_another_program() {
    // SAFETY: live strings, ended by a null pointer.
    unsafe { libc::execl(c"/bin/sleep".as_ptr(), c"sleep".as_ptr(), c"60".as_ptr(), std::ptr::null::<i8>()) };
}

fn await_another_program(process: i32) {
    let name = format!("/proc/{process}/comm");
    until("the other program runs", || std::fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep"));
}

/// Another thread of the process that sends executes a program, which does not get the connection.
fn replaced_while_it_sends(v: Variant) {
    sys::sigaction(libc::SIGALRM, interrupt, 0);
    for number in 0..ROUNDS {
        let (_, [reader, writer]) = sys::pipe2(libc::O_CLOEXEC);
        let fork = |client: Fd, server: Fd| {
            let child = sys::fork(|| {
                sys::close(server.raw);
                // SAFETY: integers only.
                unsafe { libc::fcntl(client.raw, libc::F_SETFD, libc::FD_CLOEXEC) };
                std::thread::spawn(move || {
                    sys::read(reader, &mut [0]);
                    become_another_program();
                });
                send_greedily(client, 64);
            });
            (child, child.value as i32)
        };
        let replace = |victim: i32| {
            sys::write(writer, b"x");
            await_another_program(victim);
        };
        trace!("sent: {}", round(v, number, fork, replace, sends));
        sys::close(reader);
        sys::close(writer);
    }
}

/// Gives a connection to a program as its input while a thread of this process waits in `moves`, which is to end with
/// the bytes that come after that.
fn given_to_a_program(connection: Fd, moves: impl FnOnce() -> sys::Ret + Send + 'static, comes: impl FnOnce()) {
    let (tell, told) = std::sync::mpsc::channel();
    let mover = std::thread::spawn(move || {
        let _ = tell.send(sys::thread_id());
        moves().to_string()
    });
    if let Ok(thread) = told.recv() {
        await_asleep(thread);
    }
    let child = sys::fork(|| {
        sys::dup2(connection.raw, 0);
        become_another_program();
        1
    });
    await_another_program(child.value as i32);
    comes();
    trace!("moved {}", mover.join().unwrap_or_default());
    sys::kill(child.value as i32, libc::SIGKILL);
    finish(child);
}

fn given_to_a_program_while_a_splice_waits(v: Variant) {
    let (client, server) = v.pair();
    let (_, [out, into]) = sys::pipe2(libc::O_CLOEXEC);
    let moves = move || sys::splice(out, None, client.raw, None, 10, 0);
    given_to_a_program(client, moves, || {
        sys::write(into, b"from a pipe");
        recv(server, 10, libc::MSG_WAITALL);
    });
    send(client, b"and after", 0);
    recv(server, 9, libc::MSG_WAITALL);
}

fn given_to_a_program_while_a_sendfile_waits(v: Variant) {
    let (client, server) = v.pair();
    let (_, [out, into]) = sys::pipe2(libc::O_CLOEXEC);
    let moves = move || sys::sendfile(into, server.raw, None, 11);
    given_to_a_program(server, moves, || {
        send(client, b"into a pipe", 0);
        read(Fd::new(out, "pipe"), 20);
    });
}

/// Says that a handler runs.
static BUSY: AtomicI32 = AtomicI32::new(-1);

extern "C" fn be_busy(_: i32) {
    sys::write(BUSY.load(Relaxed), b"x");
    loop {
        // SAFETY: no preconditions.
        unsafe { libc::pause() };
    }
}

/// Two processes sleep in `accept`, one after the other. `hold` keeps the first from its work; clients are served.
fn of_two_workers(v: Variant, hold: impl FnOnce(i32)) {
    let listener = v.listener();
    let worker = || {
        let child = sys::fork(|| {
            loop {
                let accepted = crate::across::accept(listener.raw).value as i32;
                if sys::recv(accepted, &mut [0; 8], 0).value > 0 {
                    sys::send(accepted, b"served", libc::MSG_NOSIGNAL);
                }
                sys::close(accepted);
            }
        });
        until("the worker sleeps", || state(child.value as i32) == 'S');
        child
    };
    let workers = [worker(), worker()];
    hold(workers[0].value as i32);
    for _ in 0..6 {
        let client = v.client();
        set_timeout(client, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 3_000);
        connect(client, &v.address_of(listener));
        send(client, b"hello", 0);
        recv(client, 16, 0);
        close(client);
    }
    for worker in workers {
        sys::kill(worker.value as i32, libc::SIGKILL);
        finish(worker);
    }
}

fn stopped_in_accept(v: Variant) {
    of_two_workers(v, stop);
}

fn busy_in_a_handler_in_accept(v: Variant) {
    let (_, [reader, writer]) = sys::pipe2(0);
    BUSY.store(writer, Relaxed);
    sys::sigaction(libc::SIGUSR1, be_busy, libc::SA_RESTART);
    of_two_workers(v, |worker| {
        sys::kill(worker, libc::SIGUSR1);
        sys::read(reader, &mut [0]);
    });
}

/// Takes what comes, until nothing more does for a moment.
fn read_all(server: Fd) {
    let more = || sys::poll(&mut [libc::pollfd { fd: server.raw, events: libc::POLLIN, revents: 0 }], 30).value > 0;
    loop {
        while sys::recv(server.raw, &mut [0; 4096], libc::MSG_DONTWAIT).value > 0 {}
        if !more() {
            break;
        }
    }
}

/// What the victim left in the middle of an urgent send, as its owner is told before the byte, is nothing to those who
/// go on, whatever they do first.
fn killed_while_it_sends_urgently(v: Variant) {
    let mut all_right = true;
    for number in 0..2 * ROUNDS {
        let (client, server) = v.pair();
        sys::fcntl(server.raw, libc::F_SETOWN, sys::process_id());
        let child = sys::fork(|| {
            sys::close(server.raw);
            loop {
                sys::send(client.raw, b"U", libc::MSG_OOB | libc::MSG_NOSIGNAL);
            }
        });
        sys::poll(&mut [libc::pollfd { fd: server.raw, events: libc::POLLPRI, revents: 0 }], 10_000);
        std::thread::sleep(std::time::Duration::from_micros(100 + 311 * number));
        sys::kill(child.value as i32, libc::SIGKILL);
        sys::wait_for(child);
        read_all(server);
        sys::setsockopt(client.raw, libc::SOL_SOCKET, libc::SO_LINGER, &[0; 8]);
        let sent = sys::send(client.raw, b"xyz", 0);
        let mut came = Vec::new();
        while !came.ends_with(b"z") {
            let mut bytes = [0; 4096];
            let count = sys::recv(server.raw, &mut bytes, 0).size();
            came.extend_from_slice(&bytes[..count]);
            if count == 0 {
                break;
            }
        }
        // On a busy machine TCP may bring some of the victim's only now.
        came.retain(|byte| *byte != b'U');
        all_right &= sent.value == 3 && came == b"xyz";
        for fd in [client, server] {
            sys::close(fd.raw);
        }
    }
    trace!("the next bytes came {all_right}");
}
