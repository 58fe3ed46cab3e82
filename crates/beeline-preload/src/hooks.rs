//! The calls, by what they are about.

mod aio;
mod data;
mod exec;
mod fds;
mod libaio;
mod loading;
mod process;
mod ready;
mod rings;
mod sandbox;
mod shell;
mod signals;
mod sockets;
mod stdio;
mod streams;
#[cfg(target_arch = "x86_64")]
mod syscall;

pub use exec::note_environment;
pub use loading::open;
pub use streams::has_stream_of_ours;

/// Finds libc's functions behind all tables.
pub fn resolve_all() {
    for table in [
        aio::REALS,
        data::REALS,
        exec::REALS,
        fds::REALS,
        process::REALS,
        ready::REALS,
        sandbox::REALS,
        shell::REALS,
        signals::REALS,
        sockets::REALS,
        stdio::REALS,
        streams::REALS,
    ] {
        for real in table {
            real.resolve();
        }
    }
    loading::resolve();
    process::resolve();
    #[cfg(target_arch = "x86_64")]
    syscall::resolve();
    signals::resolve();
}
