//! Signals: EINTR and SA_RESTART for every call that can wait, timers, handlers that leave or use the socket.

mod partial;

use super::waiters::*;
use crate::case::axes::{FAMILY, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use crate::with_all_waiters;
use beeline_testkit::sys::{self, EpollCall};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

macro_rules! each_waiter {
    ([$($waiter:ident)*]) => {
        [$(
            Case::new(concat!("no_restart_", stringify!($waiter)), ONCE, |v| interrupted(v, $waiter, 0)),
            Case::new(concat!("restart_", stringify!($waiter)), ONCE, |v| interrupted(v, $waiter, libc::SA_RESTART)),
            Case::new(concat!("hail_of_signals_", stringify!($waiter)), ONCE, |v| hail(v, $waiter)),
        )*]
    };
}

const INTERRUPTED: [Case; 48] = with_all_waiters!(each_waiter);

const OTHERS: [Case; 29] = [
    Case::new("accept_without_restart", FAMILY, |v| accept_interrupted(v, 0)),
    Case::new("accept_with_restart", FAMILY, |v| accept_interrupted(v, libc::SA_RESTART)),
    // Of a kind that a program raises in itself, too.
    Case::new("no_restart_after_an_abort", ONCE, |v| interrupted_by(libc::SIGABRT, v, by_recv, 0)),
    Case::new("restart_after_an_abort", ONCE, |v| interrupted_by(libc::SIGABRT, v, by_recv, libc::SA_RESTART)),
    Case::new("receive_timeout_never_restarts", ONCE, receive_timeout_never_restarts),
    Case::new("alarm_during_recv", ONCE, alarm_during_recv),
    Case::new("posix_timer_during_recv", ONCE, posix_timer_during_recv),
    Case::new("send_when_full", ONCE, |v| send_interrupted(v, 0)),
    Case::new("send_when_full_with_restart", ONCE, |v| send_interrupted(v, libc::SA_RESTART)),
    Case::new("partial_send", ONCE, |v| partial::partial_send(v, 0)),
    Case::new("partial_send_with_restart", ONCE, |v| partial::partial_send(v, libc::SA_RESTART)),
    Case::new("waitall_returns_what_it_has", ONCE, |v| partial::waitall_returns_what_it_has(v, 0)),
    Case::new("waitall_returns_what_it_has_with_restart", ONCE, |v| {
        partial::waitall_returns_what_it_has(v, libc::SA_RESTART)
    }),
    Case::new("the_c_librarys_own_signal_does_not_interrupt", ONCE, the_c_librarys_own_signal_does_not_interrupt),
    Case::new("handler_sends_on_the_socket", FAMILY, handler_sends_on_the_socket),
    Case::new("handler_receives_on_the_socket", ONCE, handler_receives_on_the_socket),
    Case::new("handler_during_busy_traffic", ONCE, handler_during_busy_traffic),
    Case::new("siglongjmp_out_of_recv", FAMILY, siglongjmp_out_of_recv),
    Case::new("siglongjmp_many_times", ONCE, siglongjmp_many_times),
    Case::new("siglongjmp_out_of_sendfile", ONCE, partial::siglongjmp_out_of_sendfile),
    Case::new("ignored_signal_does_not_interrupt", ONCE, ignored_signal_does_not_interrupt),
    Case::new("blocked_signal_does_not_interrupt", ONCE, blocked_signal_does_not_interrupt),
    Case::new("ppoll_mask_lets_it_in", ONCE, ppoll_mask_lets_it_in),
    Case::new("pselect_mask_lets_it_in", ONCE, pselect_mask_lets_it_in),
    Case::new("epoll_pwait_mask_lets_it_in", ONCE, |v| epoll_mask_lets_it_in(v, EpollCall::Pwait)),
    Case::new("epoll_pwait2_mask_lets_it_in", ONCE, |v| epoll_mask_lets_it_in(v, EpollCall::Pwait2)),
    Case::new("mask_with_data_ready", ONCE, mask_with_data_ready),
    Case::new("default_action_kills_the_waiter", ONCE, default_action_kills_the_waiter),
    Case::new("sigpipe_counts", FAMILY, sigpipe_counts),
];

const CASES: [Case; 77] = {
    let mut cases = [OTHERS[0]; 77];
    let mut at = 0;
    while at < 77 {
        cases[at] = if at < 48 { INTERRUPTED[at] } else { OTHERS[at - 48] };
        at += 1;
    }
    cases
};

pub const GROUP: Group = Group { name: "signals", cases: &CASES };

static HANDLED: AtomicI32 = AtomicI32::new(0);
static ENTERING: AtomicBool = AtomicBool::new(false);
static RETURNED: AtomicBool = AtomicBool::new(false);
static HANDLER_FD: AtomicI32 = AtomicI32::new(-1);

extern "C" fn count(_: i32) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

fn handled() -> bool {
    HANDLED.load(Ordering::SeqCst) > 0
}

fn interrupted(v: Variant, wait: Waiter, flags: i32) {
    interrupted_by(libc::SIGUSR1, v, wait, flags);
}

/// One signal while the call sleeps; the data comes after that, once main sleeps again or has returned.
fn interrupted_by(signal: i32, v: Variant, wait: Waiter, flags: i32) {
    let (client, server) = v.pair();
    sys::sigaction(signal, count, flags);
    let (main, main_thread) = (sys::thread_id(), sys::this_thread());
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        until("main is about to wait", || ENTERING.load(Ordering::SeqCst));
        await_asleep(main);
        sys::signal_thread(main_thread, signal);
        until("the handler ran", handled);
        until("main returned or sleeps again", || RETURNED.load(Ordering::SeqCst) || sys::is_asleep(main));
        send(server, b"wake", 0);
        close(server);
    });
    ENTERING.store(true, Ordering::SeqCst);
    wait(client);
    RETURNED.store(true, Ordering::SeqCst);
    let _ = thread.join();
    trace!("handled {}", HANDLED.load(Ordering::SeqCst));
    await_hangup(client);
    poll_now(client);
    recv(client, 64, 0);
}

/// Signals from before the call until it returns: a call that spins must notice them as one that sleeps.
fn hail(v: Variant, wait: Waiter) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGUSR1, count, 0);
    let main_thread = sys::this_thread();
    let thread = std::thread::spawn(move || {
        until("main is about to wait", || ENTERING.load(Ordering::SeqCst));
        until("main returned", || {
            sys::signal_thread(main_thread, libc::SIGUSR1);
            RETURNED.load(Ordering::SeqCst)
        });
    });
    ENTERING.store(true, Ordering::SeqCst);
    wait(client);
    RETURNED.store(true, Ordering::SeqCst);
    let _ = thread.join();
    send(server, b"wake", 0);
    await_queued(client, 4);
    recv(client, 64, 0);
}

fn accept_interrupted(v: Variant, flags: i32) {
    let listener = v.listener();
    sys::sigaction(libc::SIGUSR1, count, flags);
    let (main, main_thread) = (sys::thread_id(), sys::this_thread());
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        until("main is about to wait", || ENTERING.load(Ordering::SeqCst));
        await_asleep(main);
        sys::signal_thread(main_thread, libc::SIGUSR1);
        until("the handler ran", handled);
        until("main returned or sleeps again", || RETURNED.load(Ordering::SeqCst) || sys::is_asleep(main));
        let client = v.client();
        connect(client, &v.address_of(listener));
        trace::write_note(format_args!("pair"));
    });
    ENTERING.store(true, Ordering::SeqCst);
    accept(listener, "server");
    RETURNED.store(true, Ordering::SeqCst);
    let _ = thread.join();
    trace!("handled {}", HANDLED.load(Ordering::SeqCst));
    poll_now(listener);
    sys::set_nonblocking(listener.raw, true);
    accept(listener, "server");
}

fn receive_timeout_never_restarts(v: Variant) {
    let (client, _server) = v.pair();
    set_timeout(client, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 30_000);
    sys::sigaction(libc::SIGALRM, count, libc::SA_RESTART);
    sys::alarm_ms(20, 20);
    recv(client, 16, 0);
    sys::alarm_ms(0, 0);
    trace!("handled: {}", handled());
}

fn alarm_during_recv(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGALRM, count, 0);
    sys::alarm_ms(20, 20);
    recv(client, 16, 0);
    sys::alarm_ms(0, 0);
    send(server, b"after", 0);
    await_queued(client, 5);
    recv(client, 16, 0);
}

extern "C" fn send_on_the_fifth(_: i32) {
    if HANDLED.fetch_add(1, Ordering::SeqCst) == 4 {
        sys::send(HANDLER_FD.load(Ordering::SeqCst), b"from the handler", 0);
    }
}

fn posix_timer_during_recv(v: Variant) {
    let (client, server) = v.pair();
    HANDLER_FD.store(server.raw, Ordering::SeqCst);
    sys::sigaction(libc::SIGUSR2, send_on_the_fifth, libc::SA_RESTART);
    sys::posix_timer_ms(libc::SIGUSR2, 10);
    recv(client, 32, 0);
}

fn send_interrupted(v: Variant, flags: i32) {
    let (client, server) = v.pair();
    let before = fill_firmly(client, 5);
    sys::sigaction(libc::SIGUSR1, count, flags);
    let (main, main_thread) = (sys::thread_id(), sys::this_thread());
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        until("main is about to wait", || ENTERING.load(Ordering::SeqCst));
        await_asleep(main);
        sys::signal_thread(main_thread, libc::SIGUSR1);
        until("the handler ran", handled);
        until("main returned or sleeps again", || RETURNED.load(Ordering::SeqCst) || sys::is_asleep(main));
        drain(server, 5, before);
    });
    ENTERING.store(true, Ordering::SeqCst);
    send(client, b"one more", 0);
    RETURNED.store(true, Ordering::SeqCst);
    let _ = thread.join();
    trace!("handled {}", HANDLED.load(Ordering::SeqCst));
}

/// setuid(2) and its like are a signal to each thread of the process, with a handler of the C library's.
fn the_c_librarys_own_signal_does_not_interrupt(v: Variant) {
    let (client, server) = v.pair();
    let main = sys::thread_id();
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        await_asleep(main);
        // SAFETY: -1 leaves each user as it is.
        let changed = unsafe { libc::setresuid(u32::MAX, u32::MAX, u32::MAX) };
        until("main returned or sleeps again", || RETURNED.load(Ordering::SeqCst) || sys::is_asleep(main));
        trace!("changed {changed}");
        send(server, b"after", 0);
    });
    recv(client, 16, 0);
    RETURNED.store(true, Ordering::SeqCst);
    let _ = thread.join();
}

extern "C" fn send_once(_: i32) {
    if HANDLED.fetch_add(1, Ordering::SeqCst) == 0 {
        sys::send(HANDLER_FD.load(Ordering::SeqCst), b"ping", 0);
    }
}

fn handler_sends_on_the_socket(v: Variant) {
    // The handler runs inside recv and sends on the very same socket; the peer answers.
    let (client, server) = v.pair();
    HANDLER_FD.store(client.raw, Ordering::SeqCst);
    sys::sigaction(libc::SIGALRM, send_once, libc::SA_RESTART);
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        recv(server, 16, 0);
        send(server, b"pong", 0);
    });
    sys::alarm_ms(10, 10);
    recv(client, 16, 0);
    sys::alarm_ms(0, 0);
    let _ = thread.join();
}

extern "C" fn receive_once(_: i32) {
    let mut byte = [0];
    if sys::recv(HANDLER_FD.load(Ordering::SeqCst), &mut byte, libc::MSG_DONTWAIT).value == 1 {
        HANDLED.fetch_add(i32::from(byte[0]), Ordering::SeqCst);
    }
}

fn handler_receives_on_the_socket(v: Variant) {
    // Handler and interrupted call take from the same stream: together they get each byte once.
    let (client, server) = v.pair();
    HANDLER_FD.store(client.raw, Ordering::SeqCst);
    sys::sigaction(libc::SIGALRM, receive_once, libc::SA_RESTART);
    sys::alarm_ms(1, 1);
    let thread = std::thread::spawn(move || {
        sys::block_signals(&[libc::SIGALRM], true);
        for _ in 0..20_000 {
            sys::send(server.raw, &[1; 3], 0);
        }
        sys::close(server.raw);
    });
    let mut sum: i64 = 0;
    let mut buffer = [0; 100];
    loop {
        let ret = sys::recv(client.raw, &mut buffer, 0);
        match ret.value {
            1.. => sum += buffer[..ret.size()].iter().map(|byte| i64::from(*byte)).sum::<i64>(),
            0 => break,
            _ if ret.is(libc::EINTR) => {}
            _ => {
                trace!("recv {ret}");
                break;
            }
        }
    }
    sys::alarm_ms(0, 0);
    let _ = thread.join();
    trace!("bytes in all {}", sum + i64::from(HANDLED.load(Ordering::SeqCst)));
}

fn handler_during_busy_traffic(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGALRM, count, libc::SA_RESTART);
    sys::alarm_ms(1, 1);
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        send_stream(server, 11, 16 << 20, 20_000);
        receive_stream(server, 13, 4 << 20, 3000);
    });
    receive_stream(client, 12, 16 << 20, 9000);
    send_stream(client, 14, 4 << 20, 5000);
    let _ = thread.join();
    sys::alarm_ms(0, 0);
}

unsafe extern "C" {
    fn semantics_recv_or_jump(fd: i32, buffer: *mut u8, length: usize, signal: i32) -> i64;
}

fn recv_or_jump(fd: Fd) {
    let mut buffer = [0; 16];
    // SAFETY: the buffer is valid for its length; the jump crosses C frames and recv only, never a frame of Rust.
    let got = unsafe { semantics_recv_or_jump(fd.raw, buffer.as_mut_ptr(), buffer.len(), libc::SIGALRM) };
    trace!("recv or jump: {got} {}", shown(&buffer[..usize::try_from(got).unwrap_or(0)]));
}

/// An alarm that comes before there is a handler, as on a busy machine, is none.
fn ignore_early_alarms() {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGALRM, libc::SIG_IGN) };
}

fn siglongjmp_out_of_recv(v: Variant) {
    let (client, server) = v.pair();
    ignore_early_alarms();
    sys::alarm_ms(20, 20);
    recv_or_jump(client);
    sys::alarm_ms(0, 0);
    // The socket must be as good as new for receiving, sending, waiting and closing.
    send(server, b"still alive", 0);
    await_queued(client, 11);
    recv(client, 16, 0);
    send(client, b"yes", 0);
    await_queued(server, 3);
    recv(server, 16, 0);
    close(server);
    await_hangup(client);
    recv(client, 16, 0);
    close(client);
}

fn siglongjmp_many_times(v: Variant) {
    let (client, server) = v.pair();
    ignore_early_alarms();
    for _ in 0..50 {
        sys::alarm_ms(1, 1);
        recv_or_jump(client);
        sys::alarm_ms(0, 0);
    }
    send(server, b"data", 0);
    await_queued(client, 4);
    recv_or_jump(client);
}

fn ignored_signal_does_not_interrupt(v: Variant) {
    let (client, server) = v.pair();
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) };
    signalled_then_data(client, server);
}

fn blocked_signal_does_not_interrupt(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGUSR1, count, 0);
    sys::block_signals(&[libc::SIGUSR1], true);
    signalled_then_data(client, server);
    trace!("handled {}", HANDLED.load(Ordering::SeqCst));
    sys::block_signals(&[libc::SIGUSR1], false);
    trace!("handled {}", HANDLED.load(Ordering::SeqCst));
}

fn signalled_then_data(client: Fd, server: Fd) {
    let (main, main_thread) = (sys::thread_id(), sys::this_thread());
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        await_asleep(main);
        sys::signal_thread(main_thread, libc::SIGUSR1);
        await_asleep(main);
        send(server, b"wake", 0);
    });
    recv(client, 16, 0);
    let _ = thread.join();
}

/// Blocks SIGUSR1, makes it pending, and gives the mask that lets it in.
pub(super) fn pending_and_mask() -> libc::sigset_t {
    sys::sigaction(libc::SIGUSR1, count, 0);
    sys::block_signals(&[libc::SIGUSR1], true);
    sys::signal_thread(sys::this_thread(), libc::SIGUSR1);
    trace!("pending {:?}", sys::pending_signals(&[libc::SIGUSR1]).len());
    sys::signal_set(&[])
}

pub(super) fn after_mask() {
    trace!("handled {}, pending {}", HANDLED.load(Ordering::SeqCst), sys::pending_signals(&[libc::SIGUSR1]).len());
    sys::signal_thread(sys::this_thread(), libc::SIGUSR1);
    trace!("blocked again: handled {}", HANDLED.load(Ordering::SeqCst));
}

fn ppoll_mask_lets_it_in(v: Variant) {
    let (client, _server) = v.pair();
    let mask = pending_and_mask();
    ppoll(&[(client, libc::POLLIN)], -1, Some(&mask));
    after_mask();
}

fn pselect_mask_lets_it_in(v: Variant) {
    let (client, _server) = v.pair();
    let mask = pending_and_mask();
    pselect(&[client], &[], &[], -1, Some(&mask));
    after_mask();
}

fn epoll_mask_lets_it_in(v: Variant, which: EpollCall) {
    let (client, _server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, libc::EPOLLIN);
    let mask = pending_and_mask();
    epoll_wait_by(which, set, 4, -1, Some(&mask));
    after_mask();
}

fn mask_with_data_ready(v: Variant) {
    // What is ready wins; whether the pending signal is delivered as well is the kernel's habit, and recorded.
    let (client, server) = v.pair();
    send(server, b"x", 0);
    await_readable(client);
    let set = epoll_create("set");
    epoll_add(set, client, libc::EPOLLIN);
    let mask = pending_and_mask();
    ppoll(&[(client, libc::POLLIN)], -1, Some(&mask));
    trace!("handled {}", HANDLED.load(Ordering::SeqCst));
    epoll_wait_by(EpollCall::Pwait, set, 4, -1, Some(&mask));
    trace!("handled {}", HANDLED.load(Ordering::SeqCst));
    recv(client, 4, 0);
    ppoll(&[(client, libc::POLLIN)], 0, Some(&mask));
    after_mask();
}

fn default_action_kills_the_waiter(v: Variant) {
    let (client, server) = v.pair();
    let child = sys::fork(|| {
        sys::close(server.raw);
        sys::recv(client.raw, &mut [0; 16], 0);
        0
    });
    let asleep = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.value)).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
    };
    until("the child sleeps", asleep);
    sys::kill(child.value as i32, libc::SIGTERM);
    trace!("child: {}", sys::wait_for(child));
    close(client);
    await_hangup(server);
    recv(server, 16, 0);
}

fn sigpipe_counts(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGPIPE, count, 0);
    close(server);
    await_hangup(client);
    send(client, b"one", 0);
    await_events(client, libc::POLLHUP);
    let counted = |what: &str| trace!("{what}: SIGPIPE {}", HANDLED.swap(0, Ordering::SeqCst));
    send(client, b"two", libc::MSG_NOSIGNAL);
    counted("send without signal");
    send(client, b"three", 0);
    counted("send");
    write(client, b"four");
    counted("write");
    writev(client, &[b"five"]);
    counted("writev");
    sendmsg(client, &[b"six"], 0);
    counted("sendmsg");
    sendmsg(client, &[b"six"], libc::MSG_NOSIGNAL);
    counted("sendmsg without signal");
    send(client, b"", 0);
    counted("empty send");
    write(client, b"");
    counted("empty write");
    let child = sys::fork(|| {
        sys::default_action(libc::SIGPIPE);
        sys::write(client.raw, b"x");
        0
    });
    trace!("child with the default action: {}", sys::wait_for(child));
}
