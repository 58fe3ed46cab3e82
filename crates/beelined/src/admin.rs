//! The administrator's socket.

/// Where it is when nobody says otherwise.
pub const PATH: &str = "/run/beeline/beelined.sock";
