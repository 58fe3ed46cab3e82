//! The two ends of a connection, and its address family.

/// Which end of a connection a process is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It connected.
    Client = 1,
    /// It accepted.
    Server = 2,
}

/// The address family of a connection.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4 = 4,
    /// IPv6.
    V6 = 6,
}
