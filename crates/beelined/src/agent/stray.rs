//! Descriptors that strangers have sent.
//!
//! The last to close a descriptor may have to wait, for as long as its maker likes: a socket that lingers, a file of a file
//! system in user space. So they are closed by threads of their own, and the agent never waits for one.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

use beeline_sockets::agent;

/// Closers at most. More than so many closings that hang are somebody's intention, and leak from then on.
const CLOSERS_MAX: usize = 32;

/// A descriptor that somebody has sent.
#[derive(Debug)]
pub struct Stray(i32);

impl Stray {
    /// Takes care of a descriptor that nobody else will close.
    pub fn new(fd: i32) -> Self {
        Self(fd)
    }

    /// Its number.
    pub fn fd(&self) -> i32 {
        self.0
    }
}

impl Drop for Stray {
    fn drop(&mut self) {
        static CLOSERS: OnceLock<Closers> = OnceLock::new();
        CLOSERS.get_or_init(Closers::default).close(self.0);
    }
}

#[derive(Default)]
struct Closers(Mutex<Vec<Closer>>);

struct Closer {
    queue: Sender<i32>,
    /// Descriptors that it was given and has not closed yet.
    waiting: Arc<AtomicUsize>,
}

impl Closers {
    fn close(&self, fd: i32) {
        let mut closers = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // One that has nothing in hand cannot be hanging.
        let idle = closers.iter().position(|closer| closer.waiting.load(Relaxed) == 0);
        let chosen = match idle {
            Some(idle) => idle,
            None if closers.len() < CLOSERS_MAX => match Closer::start() {
                Ok(closer) => {
                    closers.push(closer);
                    closers.len() - 1
                }
                Err(_) => 0,
            },
            None => closers.iter().enumerate().min_by_key(|(_, it)| it.waiting.load(Relaxed)).map_or(0, |(at, _)| at),
        };
        let Some(closer) = closers.get(chosen) else { return };
        closer.waiting.fetch_add(1, Relaxed);
        let _ = closer.queue.send(fd);
    }
}

impl Closer {
    fn start() -> std::io::Result<Self> {
        let (queue, descriptors) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let done = Arc::clone(&waiting);
        let body = move || {
            for fd in descriptors {
                agent::close(fd);
                done.fetch_sub(1, Relaxed);
            }
        };
        std::thread::Builder::new().name("closer".into()).stack_size(64 << 10).spawn(body)?;
        Ok(Self { queue, waiting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_stray_descriptor_is_closed() {
        let (mut one, two) = UnixStream::pair().unwrap();
        one.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        drop(Stray::new(two.into_raw_fd()));
        assert_eq!(one.read(&mut [0]).unwrap(), 0);
    }
}
