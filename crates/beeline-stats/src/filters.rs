//! Filters of system calls (seccomp(2)), as far as the kernel tells of them.

/// What a kernel says that does not count filters (before Linux 5.9), only that there are some.
pub const UNCOUNTED: u32 = u32::MAX;

/// How many filters the process is under whose `/proc/PID/status` this is, or [`UNCOUNTED`]. `None` if it does not say.
#[must_use]
pub fn filters_in(status: &[u8]) -> Option<u32> {
    let number = |key: &[u8]| {
        let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(key))?;
        core::str::from_utf8(line).ok()?.trim().parse::<u32>().ok()
    };
    match number(b"Seccomp:")? {
        0 => Some(0),
        _ => Some(number(b"Seccomp_filters:").unwrap_or(UNCOUNTED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_counted_where_the_kernel_counts_them() {
        assert_eq!(filters_in(b"Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"), Some(0));
        assert_eq!(filters_in(b"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t3\nSpeculation"), Some(3));
        assert_eq!(filters_in(b"Seccomp:\t2\n"), Some(UNCOUNTED));
        assert_eq!(filters_in(b"Name:\tx\n"), None);
    }
}
