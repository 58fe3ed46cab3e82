//! An error that says with which exit code the command ends.

/// An error with an exit code of its own.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    message: String,
}

impl Failure {
    /// `beeline run` itself failed; the program was not started. The numbers 125, 126 and 127 are
    /// those of env(1) and nohup(1).
    pub const OURS: u8 = 125;
    pub const NOT_EXECUTABLE: u8 = 126;
    pub const NOT_FOUND: u8 = 127;
    /// What was asked for makes no sense, as with what clap finds wrong.
    pub const USAGE: u8 = 2;

    pub fn error(code: u8, message: impl Into<String>) -> anyhow::Error {
        Self { code, message: message.into() }.into()
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
