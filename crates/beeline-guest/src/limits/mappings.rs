//! How many mappings a process may have, and has.

use crate::proc;

/// The kernel's default of `vm.max_map_count`.
const USUAL: u32 = 65_530;

/// `vm.max_map_count`.
pub(super) fn most() -> u32 {
    let mut buffer = [0; 32];
    let most = proc::read(c"/proc/sys/vm/max_map_count", &mut buffer).and_then(|text| proc::numbers(text).next());
    most.unwrap_or(USUAL)
}

/// The mappings of this process, as far as they are not more than `enough`: a line each. `None` if they cannot be
/// counted.
pub(super) fn count(enough: u32) -> Option<u32> {
    let mut count = 0_u32;
    proc::each_part(c"/proc/self/maps", |part| {
        let lines = part.iter().filter(|&&byte| byte == b'\n').count();
        count = count.saturating_add(u32::try_from(lines).unwrap_or(u32::MAX));
        count < enough
    })?;
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_counted() {
        let lines = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count() as i64;
        let (before, counted, after) = (lines(), i64::from(count(u32::MAX).unwrap()), lines());
        // Threads of other tests come and go.
        assert!((before.min(after) - 16..=before.max(after) + 16).contains(&counted), "{before} {counted} {after}");
        assert!(most() > 1000);
    }
}
