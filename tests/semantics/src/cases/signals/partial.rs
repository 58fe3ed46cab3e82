//! Signals that come when a call has moved some bytes: it returns those, whether its handler restarts calls or not.

use super::{HANDLED, count};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;
use std::sync::atomic::Ordering;

pub(super) fn partial_send(v: Variant, flags: i32) {
    // More than any buffer: the call has sent something and sleeps when the signal comes.
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGUSR1, count, flags);
    let (main, main_thread) = (sys::thread_id(), sys::this_thread());
    let thread = std::thread::spawn(move || {
        await_readable(server);
        await_asleep(main);
        sys::signal_thread(main_thread, libc::SIGUSR1);
    });
    let data = vec![7; 64 << 20];
    let ret = sys::send(client.raw, &data, 0);
    let partial = ret.value > 0 && ret.size() < data.len();
    trace!("partial: {partial}, handled {}", HANDLED.load(Ordering::SeqCst));
    let _ = thread.join();
    close(client);
    let mut got = 0;
    let mut buffer = vec![0; 1 << 16];
    loop {
        match sys::recv(server.raw, &mut buffer, 0).value {
            1.. if buffer[0] != 7 => return trace!("wrong data"),
            count @ 1.. => got += count,
            _ => break,
        }
    }
    trace!("all that was counted arrived: {}", got == ret.value);
}

pub(super) fn waitall_returns_what_it_has(v: Variant, flags: i32) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGALRM, count, flags);
    send(server, b"half", 0);
    await_queued(client, 4);
    sys::alarm_ms(20, 20);
    recv(client, 8, libc::MSG_WAITALL);
    sys::alarm_ms(0, 0);
    send(server, b"rest", 0);
    await_queued(client, 4);
    recv(client, 8, 0);
}
