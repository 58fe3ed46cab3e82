//! The agent's threads. Any of them takes any event, and any may hang over what a stranger has sent ([`super::care`]).
//!
//! 1. Two wait for events; a third does while one of them is at work. So somebody waits at any time.
//! 2. There are never more than [`THREADS_MAX`], of which [`super::care::SECTIONS_MAX`] may hang.
//! 3. One that was made for a rush ends when nothing has come for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use nix::sys::epoll::EpollTimeout;

use super::care::SECTIONS_MAX;
use super::serving::Serving;

/// Threads at most.
const THREADS_MAX: usize = SECTIONS_MAX + 16;
/// Those that stay.
const STAYING: usize = 2;
const STAYS_MS: u16 = 10_000;

struct Crew {
    serving: Arc<Serving>,
    all: AtomicUsize,
    waiting: AtomicUsize,
}

/// Starts the threads that stay.
///
/// # Errors
/// The kernel's refusal.
pub fn start(serving: Arc<Serving>) -> std::io::Result<()> {
    let crew = Arc::new(Crew { serving, all: AtomicUsize::new(0), waiting: AtomicUsize::new(0) });
    (0..STAYING).try_for_each(|_| hire(&crew, true))
}

fn hire(crew: &Arc<Crew>, stays: bool) -> std::io::Result<()> {
    if crew.all.fetch_add(1, SeqCst) >= THREADS_MAX {
        crew.all.fetch_sub(1, SeqCst);
        return Ok(());
    }
    let its = Arc::clone(crew);
    let hired = std::thread::Builder::new().name("agent".into()).stack_size(256 << 10).spawn(move || work(&its, stays));
    if hired.is_err() {
        crew.all.fetch_sub(1, SeqCst);
    }
    hired.map(|_| ())
}

fn work(crew: &Arc<Crew>, stays: bool) {
    let timeout = if stays { EpollTimeout::NONE } else { EpollTimeout::from(STAYS_MS) };
    loop {
        crew.waiting.fetch_add(1, SeqCst);
        let event = crew.serving.wait(timeout);
        let others = crew.waiting.fetch_sub(1, SeqCst) - 1;
        match event {
            Some(event) => {
                if others == 0 {
                    let _ = hire(crew, false);
                }
                crew.serving.deal_with(event);
            }
            None if !stays && others >= STAYING => break,
            None => {}
        }
    }
    crew.all.fetch_sub(1, SeqCst);
}
