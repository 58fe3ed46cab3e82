//! Waiting for the network without a trace.
//!
//! Kernel TCP needs a moment between a call on one end and its effect on the other. A case waits for that effect by
//! asking for the condition itself, never by sleeping for a guessed time; what it waited for is not in the trace, only
//! that it did not come within [`PATIENCE`].

use super::Fd;
use crate::trace;
use beeline_testkit::rng::{Hash, Rng, fill_stream};
use beeline_testkit::sys::{self, poll_name};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Long enough for a machine that is busy with something else.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Repeats `look` until it holds; says so in the trace when it never does.
pub fn until(what: &str, mut look: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !look() {
        if Instant::now() >= deadline {
            trace!("waited in vain: {what}");
            return false;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    true
}

/// Waits until all of `events` hold for `fd`.
pub fn await_events(fd: Fd, events: i16) -> bool {
    until(&format!("{} {}", fd.name, poll_name(events)), || {
        let mut entry = [libc::pollfd { fd: fd.raw, events, revents: 0 }];
        sys::poll(&mut entry, 100);
        entry[0].revents & events == events
    })
}

pub fn await_readable(fd: Fd) -> bool {
    await_events(fd, libc::POLLIN)
}

pub fn await_writable(fd: Fd) -> bool {
    await_events(fd, libc::POLLOUT)
}

/// Waits until the peer's FIN (or its reset) has arrived.
pub fn await_hangup(fd: Fd) -> bool {
    await_events(fd, libc::POLLRDHUP)
}

/// Waits until at least `count` bytes can be read.
pub fn await_queued(fd: Fd, count: i32) -> bool {
    until(&format!("{} has {count} bytes", fd.name), || queued(fd) >= count)
}

#[must_use]
pub fn queued(fd: Fd) -> i32 {
    let mut count = -1;
    sys::ioctl(fd.raw, libc::FIONREAD, &mut count);
    count
}

/// Waits until all that was sent has arrived.
pub fn await_acknowledged(sender: Fd, receiver: Fd) -> bool {
    until(&format!("{} was told that all came", sender.name), || is_acknowledged(sender, receiver))
}

/// Whether all that was sent has arrived, on kernel TCP: elsewhere it has.
#[must_use]
pub fn is_acknowledged(sender: Fd, receiver: Fd) -> bool {
    sys::setsockopt(receiver.raw, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &1_i32.to_ne_bytes());
    let mut left = 0;
    sys::ioctl(sender.raw, libc::TIOCOUTQ, &mut left);
    left == 0 || has_library()
}

/// Whether the library is in this process. Its variables tell nobody: it takes them out of the environment.
fn has_library() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains("libbeeline")))
}

/// `tcpi_state` of `TCP_INFO`, 0 when there is none.
#[must_use]
pub fn tcp_state(fd: Fd) -> u8 {
    let mut info = [0; 8];
    sys::getsockopt(fd.raw, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info);
    info[0]
}

/// Waits until another thread of this process sleeps in the kernel. (Beeline may spin first; it must sleep in the end.)
pub fn await_asleep(thread: i32) -> bool {
    until("the other thread sleeps", || sys::is_asleep(thread))
}

/// Does it in another thread, which the trace calls `actor`, as soon as the calling one sleeps.
pub fn once_asleep(actor: &'static str, does: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    let caller = sys::thread_id();
    std::thread::spawn(move || {
        trace::set_actor(actor);
        await_asleep(caller);
        does();
    })
}

/// Sends `length` bytes of stream `seed` in chunks of random sizes, waiting for room when there is none.
pub fn send_stream(fd: Fd, seed: u64, length: u64, chunk_max: usize) {
    let mut sizes = Rng::new(seed ^ 0x5e4d);
    let mut buffer = vec![0; chunk_max];
    let mut sent = 0;
    while sent < length {
        let wanted = sizes.between(1, chunk_max).min((length - sent) as usize);
        fill_stream(seed, sent, &mut buffer[..wanted]);
        let mut done = 0;
        while done < wanted {
            let ret = sys::send(fd.raw, &buffer[done..wanted], libc::MSG_NOSIGNAL);
            match ret.is_ok() {
                true => done += ret.size(),
                false if ret.is(libc::EAGAIN) => {
                    await_writable(fd);
                }
                false if ret.is(libc::EINTR) => {}
                false => {
                    trace!("stream to {} broke at {}: {ret}", fd.name, sent + done as u64);
                    return;
                }
            }
        }
        sent += wanted as u64;
    }
    trace!("{} sent {length} bytes", fd.name);
}

/// Receives until `length` bytes have come or the stream ends, in chunks of random sizes; the trace gets the count and
/// the hash.
pub fn receive_stream(fd: Fd, seed: u64, length: u64, chunk_max: usize) {
    let mut sizes = Rng::new(seed ^ 0x4ec5);
    let mut buffer = vec![0; chunk_max];
    let mut hash = Hash::default();
    let mut got = 0;
    let mut end = "";
    while got < length {
        let wanted = sizes.between(1, chunk_max).min((length - got) as usize);
        let ret = sys::recv(fd.raw, &mut buffer[..wanted], 0);
        match ret.value {
            1.. => {
                hash.feed(&buffer[..ret.size()]);
                got += ret.value as u64;
            }
            0 => {
                end = ", then the end";
                break;
            }
            _ if ret.is(libc::EAGAIN) => {
                await_readable(fd);
            }
            _ if ret.is(libc::EINTR) => {}
            _ => {
                trace!("stream from {} broke: {ret}", fd.name);
                break;
            }
        }
    }
    trace!("{} received {got} bytes, hash {:016x}{end}", fd.name, hash.0);
}

/// Reads what is there (exactly `length` bytes of stream `seed` are expected) and says whether it was right.
pub fn drain(fd: Fd, seed: u64, length: u64) {
    let mut buffer = vec![0; 64 * 1024];
    let mut expected = vec![0; 64 * 1024];
    let mut got = 0;
    let mut right = true;
    while got < length && await_readable(fd) {
        let wanted = buffer.len().min((length - got) as usize);
        let ret = sys::recv(fd.raw, &mut buffer[..wanted], libc::MSG_DONTWAIT);
        if ret.value <= 0 {
            trace!("drain of {} stopped: {ret}", fd.name);
            return;
        }
        fill_stream(seed, got, &mut expected);
        right &= buffer[..ret.size()] == expected[..ret.size()];
        got += ret.value as u64;
    }
    trace!("{} drained, all bytes came: {}, all bytes right: {right}", fd.name, got == length);
}

/// As [`drain`], where the reading half is shut: whenever nothing is there, that is told as an end.
pub fn drain_shut(fd: Fd, seed: u64, length: u64) {
    let mut buffer = vec![0; 64 * 1024];
    let mut expected = vec![0; 64 * 1024];
    let mut got = 0;
    let mut right = true;
    until(&format!("{} has {length} bytes", fd.name), || {
        loop {
            let count = sys::recv(fd.raw, &mut buffer, libc::MSG_DONTWAIT).size();
            if count == 0 {
                return got >= length;
            }
            fill_stream(seed, got, &mut expected);
            right &= buffer[..count] == expected[..count];
            got += count as u64;
        }
    });
    trace!("{} drained, all bytes came: {}, all bytes right: {right}", fd.name, got == length);
}

/// Writes until the connection takes no more and stays full; returns how much it took. How much that is differs between
/// kernels too.
///
/// The kernel refuses much and still takes a little, and what is on its way at the first EAGAIN makes room once more
/// when it has arrived, without a word from poll. So it counts as full when not even one byte has found room for a
/// while.
pub fn fill_firmly(fd: Fd, seed: u64) -> u64 {
    let mut buffer = vec![0; 64 * 1024];
    let mut wanted = buffer.len();
    let mut sent: u64 = 0;
    let mut refused = 0;
    loop {
        fill_stream(seed, sent, &mut buffer[..wanted]);
        let ret = sys::send(fd.raw, &buffer[..wanted], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        if ret.is_ok() {
            sent += ret.value as u64;
            refused = 0;
        } else if wanted > 1 {
            wanted /= 2;
        } else if refused == 3 {
            trace!("{} is full: {ret}", fd.name);
            return sent;
        } else {
            refused += 1;
            let mut entry = [libc::pollfd { fd: fd.raw, events: libc::POLLOUT, revents: 0 }];
            if sys::poll(&mut entry, 100).value != 0 {
                (wanted, refused) = (buffer.len(), 0);
            }
        }
    }
}
