//! How often things are looked at.

/// Looks in vain after which a hot lane becomes cold.
pub(super) const IDLE_LOOKS: u32 = 256;
/// Waits without news from the kernel after which it is no longer asked each time.
pub(super) const BUSY_WAITS: u32 = 64;
/// Shortest time between two looks at the kernel of a busy set, in ticks of the time-stamp counter: some 25 us.
pub(super) const LOOK_TICKS_MIN: u64 = 50_000;
/// Longest such time, reached by looks that find nothing: about two milliseconds.
pub(super) const LOOK_TICKS_MAX: u64 = 5_000_000;
/// Time between two looks at the kernel of a spin that finds nothing: some 4 us. Its bells wake lanes that are cold.
pub(super) const SPIN_LOOK_TICKS: u64 = 10_000;
/// Waits without such news after which a wait with hot members that is likely to sleep leaves the question to its
/// sleep.
pub(super) const FEW_WAITS: u32 = 8;
/// A sleep in the place of a look that ends sooner, in ticks, has found what was there before: some 3 us.
pub(super) const AT_ONCE_TICKS: u64 = 6_000;
/// Hot members that a wait looks at to put off a look at the kernel.
pub(super) const QUIET_LOOKS: u32 = 64;
/// Depth to which nested sets are followed; the kernel allows 5 (`EP_MAX_NESTS`).
pub(super) const NESTS_MAX: u32 = 5;
/// How often a lane is armed in a row: a peer that writes all the time must not keep the set locked.
pub(super) const ARMINGS: usize = 8;
