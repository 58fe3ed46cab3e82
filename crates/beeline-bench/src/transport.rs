//! The columns of a table: what is compared.

use clap::ValueEnum;

/// What carries the bytes of a sample.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Kernel TCP over 127.0.0.1
    Tcp,
    /// AF_UNIX stream sockets
    Unix,
    /// The TCP program, with libbeeline.so loaded
    Beeline,
}

impl Transport {
    pub const ALL: [Transport; 3] = [Transport::Tcp, Transport::Unix, Transport::Beeline];

    /// The word for this transport on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Unix => "unix",
            Transport::Beeline => "beeline",
        }
    }
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
