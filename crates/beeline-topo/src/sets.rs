//! Sets of CPUs and nodes as the kernel and hwloc write them.

/// No host has more; a larger number is a mistake in the file.
const NUMBER_MAX: u32 = 1 << 16;

/// The kernel's list: `0-3,8,10-11`. `None` if it is not one.
pub(crate) fn list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > NUMBER_MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// hwloc's bitmap: words of 32 bits, the highest first: `0x000000ff,,0x0000000f`. `None` if it is not one, or infinite.
pub(crate) fn bitmap(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for (index, word) in text.trim().rsplit(',').enumerate() {
        let digits = word.strip_prefix("0x").unwrap_or(word);
        let bits = if digits.is_empty() { 0 } else { u32::from_str_radix(digits, 16).ok()? };
        let base = u32::try_from(index).ok()?.checked_mul(32).filter(|&base| base < NUMBER_MAX)?;
        numbers.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| base.saturating_add(bit)));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel() {
        assert_eq!(list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(list("\n"), Some(vec![]));
        for wrong in ["3-1", "0-99999999", "a", "1-", "-"] {
            assert_eq!(list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn bitmaps_of_hwloc() {
        assert_eq!(bitmap("0x00000005"), Some(vec![0, 2]));
        assert_eq!(bitmap("0x00000001,,0x80000000"), Some(vec![31, 64]));
        assert_eq!(bitmap("0x0"), Some(vec![]));
        for wrong in ["0xf...f", "0x1ffffffff", "x"] {
            assert_eq!(bitmap(wrong), None, "{wrong}");
        }
    }
}
