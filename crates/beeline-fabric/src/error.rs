//! What can go wrong, in one enum whose sentences name the rail and repeat libfabric's own words.

use std::fmt;
use std::net::SocketAddr;

use crate::ffi;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{rail}: {action}: {failure}")]
    Fabric { rail: String, action: &'static str, failure: Failure },
    #[error("no fabric port matches {wanted}; this host has {present}")]
    NoSuchPort { wanted: String, present: String },
    #[error("{rail}: private data of {bytes} bytes, but the provider carries {bytes_max}")]
    PrivateDataTooLong { rail: String, bytes: usize, bytes_max: usize },
    #[error("{rail}: no room for another endpoint on the completion queue of {entries} entries")]
    CompletionQueueFull { rail: String, entries: usize },
    #[error("{rail}: a message of {bytes} bytes, but message buffers have {bytes_max}")]
    MessageTooLong { rail: String, bytes: usize, bytes_max: usize },
    #[error("{rail}: the endpoint is closed or not connected")]
    NotConnected { rail: String },
    #[error("{rail}: the connection request was already answered")]
    RequestGone { rail: String },
    #[error("{rail}: already listening on {address}")]
    AlreadyListening { rail: String, address: SocketAddr },
    #[error("{rail}: the memory region is closed")]
    RegionGone { rail: String },
    #[error("{rail}: bytes {offset}..+{bytes} are outside the memory region of {region_bytes}")]
    OutOfRegion { rail: String, offset: usize, bytes: usize, region_bytes: usize },
    #[error("{rail}: an operation of {bytes} bytes, but the provider carries {bytes_max} at once")]
    OperationTooLong { rail: String, bytes: usize, bytes_max: usize },
    #[error("{rail}: the memory region was not registered for {missing}")]
    AccessMissing { rail: String, missing: &'static str },
    #[error("{rail}: iWARP does not tell when a write is in the peer's memory")]
    DeliveryUnknown { rail: String },
    #[error("no memory for {bytes} bytes of message buffers: {text}")]
    NoMemory { bytes: usize, text: String },
    #[error("libfabric's headers and this program do not agree on a structure: build it again")]
    LayoutMismatch,
}

/// What libfabric and its provider said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// libfabric's number, positive.
    pub number: i32,
    /// libfabric's text for it.
    pub text: String,
    /// The provider's own text, where it has one.
    pub detail: String,
}

impl Failure {
    /// From a number that libfabric returned, negative or positive.
    pub(crate) fn from_number(number: i32) -> Failure {
        Failure { number: number.unsigned_abs().cast_signed(), text: error_text(number), detail: String::new() }
    }

    /// An operation that was given up because its endpoint was closed or went down.
    pub(crate) fn cancelled() -> Failure {
        Failure::from_number(libc::ECANCELED)
    }

    /// Whether the operation was given up because its connection ended, not the other way round. Whether it reached
    /// the peer is not known.
    pub fn is_cancelled(&self) -> bool {
        self.number == libc::ECANCELED
    }

    pub(crate) fn with_detail(number: i32, detail: String) -> Failure {
        Failure { detail, ..Failure::from_number(number) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text, self.number)?;
        if !self.detail.is_empty() && self.detail != self.text {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

/// libfabric's text for a number.
pub(crate) fn error_text(number: i32) -> String {
    let mut text = [0; ffi::TEXT_BYTES];
    // SAFETY: `text` is writable for the given number of bytes, and the shim ends what it writes with NUL.
    unsafe { ffi::bf_error_text(number, text.as_mut_ptr(), text.len()) };
    ffi::text(&text)
}
