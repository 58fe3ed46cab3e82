//! Giving back the memory of long streams.
//!
//! A ring's memory is there as far as the ring was ever written. Small messages stay at its beginning, but a
//! stream of long ones walks through all of it, and the connection may then be idle for hours.
//!
//! 1. Each description knows how much its ring reaches beyond the beginning, in granules, and the process knows
//!    the sum.
//! 2. The sender whose granule makes the sum exceed `stream_bytes_max` looks at all lanes and gives back the rings
//!    that are read out. If that helps little, because the streams are busy, the next look comes only after a
//!    quarter of the maximum more.
//! 3. Only a ring's own writer gives it back, with its tx lock held: nobody else knows that nothing is being
//!    written. Lanes that processes share are left alone, and so are bridged ones.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use beeline_lane::Writer;
use beeline_stats::tunables::option;

use crate::desc::Desc;
use crate::desc::reach::{SUM, forget};
use crate::side::state;
use crate::{limits, table};

const GRANULE_BYTES: u32 = 256 * 1024;

/// The sum at which rings are looked at; 0 before the first look.
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);

/// Accounts for a ring that now reaches `bytes` far. No lock may be held.
#[inline]
pub fn account(desc: &Desc, bytes: u32) {
    if !is_accounted(desc, bytes) {
        grow(desc, bytes / GRANULE_BYTES);
    }
}

/// Whether a ring that reaches `bytes` far is accounted for.
#[inline]
pub fn is_accounted(desc: &Desc, bytes: u32) -> bool {
    bytes / GRANULE_BYTES <= desc.granules.load(Relaxed)
}

#[cold]
fn grow(desc: &Desc, reach: u32) {
    // Two threads that send at once may both come here: what is added is what was exchanged.
    let before = desc.granules.swap(reach, Relaxed);
    let more = u64::from(reach).wrapping_sub(u64::from(before));
    let sum = SUM.fetch_add(more, Relaxed).wrapping_add(more);
    let most = crate::live(option::stream_bytes_max).min(limits::ring_bytes_max() / 2) / u64::from(GRANULE_BYTES);
    if sum <= most {
        // The streams that made looking vain are gone.
        NEXT_LOOK.store(0, Relaxed);
    }
    if sum > most.max(NEXT_LOOK.load(Relaxed)) {
        table::for_each(|_, desc| give_back(desc));
        NEXT_LOOK.store(SUM.load(Relaxed).saturating_add(most / 4), Relaxed);
    }
}

fn give_back(desc: &'static Desc) {
    if desc.granules.load(Relaxed) == 0 {
        return;
    }
    let Some(_guard) = desc.lock_tx_alone() else { return };
    let (lane, side) = (desc.lane(), desc.side());
    if side.is(state::BRIDGED) {
        return;
    }
    if Writer::new(lane, desc.end(), &side.tx, &side.rx).give_back() == Ok(true) {
        forget(desc);
    }
}
