//! What an entry point answers.

pub use beeline_shm::Errno;

/// What an entry point answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Not ours: the hook calls the real function.
    Kernel,
    /// The value to return.
    Done(isize),
    /// Return -1 with this errno.
    Fail(Errno),
}

impl Outcome {
    /// Success with nothing to say.
    pub const OK: Outcome = Outcome::Done(0);

    /// A failure by number, as in errno(3).
    #[must_use]
    pub const fn fail(errno: i32) -> Outcome {
        Outcome::Fail(Errno(errno))
    }
}

impl From<beeline_shm::sys::SysResult> for Outcome {
    fn from(result: beeline_shm::sys::SysResult) -> Self {
        match result {
            Ok(value) => Outcome::Done(value as isize),
            Err(errno) => Outcome::Fail(errno),
        }
    }
}
