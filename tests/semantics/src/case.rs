//! A case: a small socket program with a name, and the variants it runs under.

use crate::traced::Fd;
use crate::variant::{Family, Variant};

/// Which settings a case is repeated for.
pub mod axes {
    pub const ONCE: u8 = 0;
    /// IPv4, IPv6, dual stack.
    pub const FAMILY: u8 = 1;
    /// Also a wildcard listener and a v4-mapped client.
    pub const ALL_FAMILIES: u8 = 2;
    /// Blocking and non-blocking.
    pub const MODE: u8 = 4;
    /// Level and edge.
    pub const TRIGGER: u8 = 8;
}

/// What should have happened to the connections of a case under Beeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Every connection that was made by `Variant::pair` is accelerated.
    Lane,
    /// Not checked: the case leaves Beeline free to fall back.
    Any,
}

/// The program of a case.
#[derive(Clone, Copy)]
pub enum Body {
    /// One process with both ends (it may fork).
    Solo(fn(Variant)),
    /// Two programs. The server gets a listener and the client the address to connect to; under Beeline they run with
    /// both, only the server, and only the client interposed.
    Duo { server: fn(Variant, Fd), client: fn(Variant, Fd, &beeline_testkit::sys::RawAddress) },
}

#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    axes: u8,
    pub path: Path,
    /// Why Beeline is known to differ here, when it is.
    pub deviation: Option<&'static str>,
    pub body: Body,
}

impl Case {
    /// A case whose connections must be accelerated.
    #[must_use]
    pub const fn new(name: &'static str, axes: u8, body: fn(Variant)) -> Self {
        Self { name, axes, path: Path::Lane, deviation: None, body: Body::Solo(body) }
    }

    #[must_use]
    pub const fn duo(
        name: &'static str,
        axes: u8,
        server: fn(Variant, Fd),
        client: fn(Variant, Fd, &beeline_testkit::sys::RawAddress),
    ) -> Self {
        Self { name, axes, path: Path::Lane, deviation: None, body: Body::Duo { server, client } }
    }

    /// Beeline may leave the connections of this case to the kernel.
    #[must_use]
    pub const fn on_any_path(mut self) -> Self {
        self.path = Path::Any;
        self
    }

    /// Beeline differs here, on purpose and for this reason. The runner fails when it no longer does: then this is to
    /// be taken back, and out of the documentation.
    #[must_use]
    pub const fn deviates(mut self, why: &'static str) -> Self {
        self.deviation = Some(why);
        self
    }

    #[must_use]
    pub fn variants(&self) -> Vec<Variant> {
        let has = |axis: u8| self.axes & axis != 0;
        let families: &[Family] = match (has(axes::ALL_FAMILIES), has(axes::FAMILY)) {
            (true, _) => &[Family::V4, Family::V6, Family::Dual, Family::Wildcard, Family::Mapped],
            (false, true) => &[Family::V4, Family::V6, Family::Dual],
            (false, false) => &[Family::V4],
        };
        let modes: &[bool] = if has(axes::MODE) { &[false, true] } else { &[false] };
        let triggers: &[bool] = if has(axes::TRIGGER) { &[false, true] } else { &[false] };
        let mut variants = Vec::new();
        for family in families {
            for nonblocking in modes {
                for edge in triggers {
                    variants.push(Variant { family: *family, nonblocking: *nonblocking, edge: *edge });
                }
            }
        }
        variants
    }
}

/// Cases about one thing.
pub struct Group {
    pub name: &'static str,
    pub cases: &'static [Case],
}
