//! Signals that come when a call has moved some bytes: it returns those, whether its handler restarts calls or not, and
//! a handler that jumps out finds them counted.

use super::{HANDLED, count, ignore_early_alarms};
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

unsafe extern "C" {
    fn semantics_sendfile_or_jump(to: i32, from: i32, offset: *mut i64, count: usize, signal: i32) -> i64;
}

/// The offset, or the file's position, is behind what was sent.
pub(super) fn siglongjmp_out_of_sendfile(v: Variant) {
    // More than any buffer.
    const LENGTH: usize = 64 << 20;
    for by_offset in [true, false] {
        let (client, server) = v.pair();
        let file = sys::file_with(&[]);
        // SAFETY: numbers.
        unsafe { libc::ftruncate(file, LENGTH as i64) };
        let mut offset = 0;
        let place = if by_offset { &raw mut offset } else { std::ptr::null_mut() };
        ignore_early_alarms();
        sys::alarm_ms(20, 20);
        // SAFETY: the offset is NULL or valid; the jump crosses C frames and sendfile only, never a frame of Rust.
        let ret = unsafe { semantics_sendfile_or_jump(client.raw, file, place, LENGTH, libc::SIGALRM) };
        sys::alarm_ms(0, 0);
        let reached = if by_offset { offset } else { sys::lseek(file, 0, libc::SEEK_CUR).value };
        close(client);
        let (mut got, mut buffer) = (0, vec![0; 1 << 16]);
        while let count @ 1.. = sys::recv(server.raw, &mut buffer, 0).value {
            got += count;
        }
        trace!("sendfile or jump: {ret}, all that was counted arrived: {}", got == reached);
        close(server);
    }
}
