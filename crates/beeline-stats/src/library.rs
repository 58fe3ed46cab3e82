//! How the library and the command know each other in a process.

/// Whose note a program has that is Beeline's command (elf(5)). The library hides its options from every program but
/// this one: a `beeline run` within another has to pass them on.
pub const COMMAND_NOTE: [u8; 8] = *b"Beeline\0";

/// Whether the library is in the process whose `/proc/PID/maps` this is. A file that has been replaced since, as by an
/// upgrade, is called deleted there.
#[must_use]
pub fn is_mapped(maps: &[u8]) -> bool {
    let is_ours = |line: &[u8]| line.strip_suffix(b" (deleted)").unwrap_or(line).ends_with(b"/libbeeline.so");
    maps.split(|&byte| byte == b'\n').any(is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_known_by_its_file_also_once_that_is_replaced() {
        let line =
            |path: &str| std::format!("7f00-7f01 r--p 00000000 00:1b 7 {path}\n7fff-8000 rw-p 0 00:00 0 [stack]\n");
        for (path, is_ours) in [
            ("/usr/lib/beeline/libbeeline.so", true),
            ("/usr/lib/beeline/libbeeline.so (deleted)", true),
            ("/usr/lib/beeline/libbeeline.so.old", false),
            ("/usr/lib/otherlibbeeline.so", false),
            ("/usr/lib/libc.so.6 (deleted)", false),
        ] {
            assert_eq!(is_mapped(line(path).as_bytes()), is_ours, "{path}");
        }
        assert!(!is_mapped(b""));
    }
}
