//! Keys and certificates: how bridges know each other.
//!
//! 1. A bridge's certificate is signed by its own key and names the bridge (common name) and what it may speak for:
//!    addresses as `iPAddress` alternative names, prefixes as URIs `beeline://prefix/10.0.0.0/24`, since `iPAddress`
//!    has no room for a length.
//! 2. A peer is trusted if its certificate is, byte by byte, one in the directory of trusted certificates, and within
//!    its validity. There are no authorities and no chains: who could sign for others could speak for everybody.
//! 3. TLS 1.3 only, both ends show certificates, nothing is resumed: every connection proves its keys again.

#![forbid(unsafe_code)]

mod certificate;
mod tls;
mod trusted;

pub use certificate::{ADDRESSES_MAX, Certificate, Fingerprint, Generated, generate};
pub use tls::{Tls, TlsError};
pub use trusted::{Trusted, file_name};
