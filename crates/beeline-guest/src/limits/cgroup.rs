//! How much memory the process's cgroup allows, cgroups(7): both versions.
//!
//! 1. `/proc/self/cgroup` says where in which hierarchy the process is, `/proc/self/mountinfo` where that hierarchy is
//!    mounted, and which part of it: in a container often only the container's own.
//! 2. The limit is the least of those on the way from there to the top of what is mounted: `memory.max` and
//!    `memory.high` (version 2), `memory.limit_in_bytes` (version 1). Above what is mounted nobody here can look.
//! 3. What is used already counts at the cgroup of that limit, without the file pages that the kernel would drop.
//! 4. Where no hierarchy is mounted, as in many chroots, a process that is in a cgroup of its own is taken to have
//!    [`UNSEEN_BYTES`].

use core::ffi::CStr;

use crate::proc;

/// Above this a number stands for "no limit", as version 1 writes it.
const NO_LIMIT: u64 = 1 << 50;
/// The limit where there may be one that cannot be seen.
const UNSEEN_BYTES: u64 = 1 << 30;
/// Longer paths are given up: the limits are not seen then.
const PATH_BYTES: usize = 1024;

/// What a cgroup allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Memory {
    pub limit: u64,
    /// Bytes in use.
    pub used: u64,
}

/// What differs between the two versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    One,
    Two,
}

impl Version {
    fn limits(self) -> &'static [&'static str] {
        match self {
            Version::One => &["memory.limit_in_bytes"],
            Version::Two => &["memory.max", "memory.high"],
        }
    }

    fn usage(self) -> &'static str {
        match self {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        }
    }

    /// The rows of `memory.stat` with memory that the kernel drops when it needs it.
    fn dropped(self) -> [&'static [u8]; 2] {
        match self {
            Version::One => [b"total_inactive_file", b"total_active_file"],
            Version::Two => [b"inactive_file", b"active_file"],
        }
    }
}

/// A path that ends with NUL.
#[derive(Clone, Copy)]
struct Path {
    bytes: [u8; PATH_BYTES],
    length: usize,
}

impl Path {
    const EMPTY: Path = Path { bytes: [0; PATH_BYTES], length: 0 };

    fn of(parts: &[&[u8]]) -> Option<Path> {
        let mut path = Path::EMPTY;
        parts.iter().try_for_each(|part| path.push(part))?;
        Some(path)
    }

    fn push(&mut self, more: &[u8]) -> Option<()> {
        let end = self.length.checked_add(more.len()).filter(|end| *end < PATH_BYTES)?;
        self.bytes.get_mut(self.length..end)?.copy_from_slice(more);
        self.length = end;
        Some(())
    }

    /// Takes off what is behind this length.
    fn cut(&mut self, length: usize) {
        self.bytes.get_mut(length..).unwrap_or_default().fill(0);
        self.length = length;
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Goes to the directory above; `None` if that is above `top`.
    fn ascend(&mut self, top: usize) -> Option<()> {
        let slash = self.as_bytes().iter().rposition(|&byte| byte == b'/').filter(|slash| *slash >= top)?;
        self.cut(slash);
        Some(())
    }

    /// Calls `f` with the path of a file in this directory.
    fn at_file<R>(&mut self, file: &str, f: impl FnOnce(&CStr) -> Option<R>) -> Option<R> {
        let length = self.length;
        let is_whole = self.push(b"/").and_then(|()| self.push(file.as_bytes())).is_some();
        let result = self.as_c_str().filter(|_| is_whole).and_then(f);
        self.cut(length);
        result
    }

    fn as_c_str(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(&self.bytes).ok()
    }

    /// The number in a small file in this directory; `None` without one, or if it says `max`.
    fn number(&mut self, file: &str) -> Option<u64> {
        let mut buffer = [0; 32];
        self.at_file(file, |file| number(proc::read(file, &mut buffer)?))
    }
}

fn number(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.trim_ascii().parse().ok()
}

/// What the process's cgroup and those above it allow; `None` without a limit.
pub(super) fn memory() -> Option<Memory> {
    let [one, two] = memberships()?;
    let mut least: Option<Memory> = None;
    let mut seen = false;
    let mut mounted = [(Version::One, one), (Version::Two, two)].map(|(version, path)| (version, path, None));
    proc::each_line(c"/proc/self/mountinfo", |line| {
        for (version, path, mount) in &mut mounted {
            if let Some(found) = path.as_ref().and_then(|path| place(line, *version, path.as_bytes())) {
                // The last mount hides those before it at the same place.
                *mount = Some(found);
            }
        }
        true
    })?;
    for (version, _, mount) in &mounted {
        let Some((directory, top)) = mount else { continue };
        seen = true;
        if let Some(memory) = along(*version, *directory, *top)
            && least.is_none_or(|least| memory.limit < least.limit)
        {
            least = Some(memory);
        }
    }
    let in_own = [one, two].iter().flatten().any(|path| path.as_bytes() != b"/");
    if !seen && in_own { Some(Memory { limit: UNSEEN_BYTES, used: 0 }) } else { least }
}

/// Where the process is in the hierarchies of both versions that can limit memory.
fn memberships() -> Option<[Option<Path>; 2]> {
    let mut found = [None, None];
    proc::each_line(c"/proc/self/cgroup", |line| {
        if let Some((version, path)) = membership(line) {
            let index = usize::from(version == Version::Two);
            if let Some(place) = found.get_mut(index) {
                *place = Path::of(&[path]);
            }
        }
        true
    })?;
    Some(found)
}

/// A line of `/proc/self/cgroup`: `id:controllers:path`.
fn membership(line: &[u8]) -> Option<(Version, &[u8])> {
    let mut fields = line.splitn(3, |&byte| byte == b':');
    let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    if id == b"0" && controllers.is_empty() {
        return Some((Version::Two, path));
    }
    controllers.split(|&byte| byte == b',').any(|name| name == b"memory").then_some((Version::One, path))
}

/// If this line of `/proc/self/mountinfo` mounts the hierarchy: the directory of the cgroup `path`, or the nearest
/// above it that is mounted, and how long the path of the topmost is.
fn place(line: &[u8], version: Version, path: &[u8]) -> Option<(Path, usize)> {
    let mut fields = line.split(|&byte| byte == b' ');
    let (root, point) = (fields.nth(3)?, fields.next()?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, options) = (rest.next()?, rest.nth(1)?);
    let is_it = match version {
        Version::Two => kind == b"cgroup2",
        Version::One => kind == b"cgroup" && options.split(|&byte| byte == b',').any(|name| name == b"memory"),
    };
    if !is_it {
        return None;
    }
    let below = match path.strip_prefix(root) {
        _ if root == b"/" => path,
        Some(below) if below.is_empty() || below.starts_with(b"/") => below,
        // Moved out of what is mounted.
        _ => b"",
    };
    let below = below.strip_suffix(b"/").unwrap_or(below);
    Some((Path::of(&[point, below])?, point.len()))
}

/// The least limit from `directory` up to the one whose path is `top` long.
fn along(version: Version, mut directory: Path, top: usize) -> Option<Memory> {
    // The limit, and how long the path of its directory is: the way leads up only.
    let mut least: Option<(u64, usize)> = None;
    let whole = directory;
    loop {
        let limits = version.limits().iter().filter_map(|file| directory.number(file));
        if let Some(limit) = limits.min().filter(|limit| *limit < NO_LIMIT)
            && least.is_none_or(|(least, _)| limit < least)
        {
            least = Some((limit, directory.length));
        }
        if directory.ascend(top).is_none() {
            break;
        }
    }
    let (limit, length) = least?;
    directory = whole;
    directory.cut(length);
    let usage = directory.number(version.usage()).unwrap_or(0);
    let mut dropped = 0_u64;
    let _ = directory.at_file("memory.stat", |stat| {
        proc::each_line(stat, |line| {
            let mut words = line.split(|&byte| byte == b' ');
            if words.next().is_some_and(|name| version.dropped().contains(&name)) {
                dropped = dropped.saturating_add(words.next().and_then(number).unwrap_or(0));
            }
            true
        })
    });
    Some(Memory { limit, used: usage.saturating_sub(dropped) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memberships_are_read() {
        assert_eq!(membership(b"4:memory:/a/b"), Some((Version::One, &b"/a/b"[..])));
        assert_eq!(membership(b"3:cpu,memory:/"), Some((Version::One, &b"/"[..])));
        assert_eq!(membership(b"0::/user.slice/a:b"), Some((Version::Two, &b"/user.slice/a:b"[..])));
        assert_eq!(membership(b"5:devices:/x"), None);
        assert_eq!(membership(b"9:name=systemd:/x"), None);
        assert_eq!(membership(b"nonsense"), None);
    }

    #[test]
    fn mounts_are_found_with_the_part_that_is_mounted() {
        let find = |line: &str, version, path: &str| {
            place(line.as_bytes(), version, path.as_bytes())
                .map(|(path, top)| (String::from_utf8(path.as_bytes().to_vec()).unwrap(), top))
        };
        let one = "36 25 0:31 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory";
        assert_eq!(find(one, Version::One, "/a/b"), Some(("/sys/fs/cgroup/memory/a/b".into(), 21)));
        assert_eq!(find(one, Version::One, "/"), Some(("/sys/fs/cgroup/memory".into(), 21)));
        assert_eq!(find(one, Version::Two, "/"), None);
        let cpu = "36 25 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        assert_eq!(find(cpu, Version::One, "/"), None);
        let part = "36 25 0:31 /docker/12 /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(find(part, Version::Two, "/docker/12/x"), Some(("/sys/fs/cgroup/x".into(), 14)));
        assert_eq!(find(part, Version::Two, "/docker/123"), Some(("/sys/fs/cgroup".into(), 14)));
        assert_eq!(find(part, Version::Two, "/../other"), Some(("/sys/fs/cgroup".into(), 14)));
        assert_eq!(find("1 2 3 4", Version::Two, "/"), None);
    }

    /// A tree of directories as a hierarchy shows it.
    struct Tree(std::path::PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let top = std::env::temp_dir().join(format!("beeline-cgroup-{name}-{}", std::process::id()));
            for (file, text) in files {
                let path = top.join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Tree(top)
        }

        fn along(&self, version: Version, below: &str) -> Option<Memory> {
            let top = self.0.to_str().unwrap();
            along(version, Path::of(&[top.as_bytes(), below.as_bytes()]).unwrap(), top.len())
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_least_limit_on_the_way_up_counts() {
        let tree = Tree::new(
            "two",
            &[
                ("memory.max", "1000\n"),
                ("a/memory.max", "600\n"),
                ("a/memory.high", "500\n"),
                ("a/memory.current", "300\n"),
                ("a/memory.stat", "anon 1\ninactive_file 40\nactive_file 10\nfile 9\n"),
                ("a/b/memory.max", "max\n"),
                ("c/memory.max", "max\n"),
            ],
        );
        assert_eq!(tree.along(Version::Two, "/a/b"), Some(Memory { limit: 500, used: 250 }));
        assert_eq!(tree.along(Version::Two, "/c"), Some(Memory { limit: 1000, used: 0 }));
        assert_eq!(tree.along(Version::Two, ""), Some(Memory { limit: 1000, used: 0 }));
    }

    #[test]
    fn the_first_version_s_great_numbers_are_no_limit() {
        let unlimited = "9223372036854771712\n";
        let tree = Tree::new(
            "one",
            &[
                ("memory.limit_in_bytes", unlimited),
                ("a/memory.limit_in_bytes", "700\n"),
                ("a/memory.usage_in_bytes", "100\n"),
                ("a/memory.stat", "cache 90\ninactive_file 7\ntotal_inactive_file 30\ntotal_active_file 5\n"),
                ("b/memory.limit_in_bytes", unlimited),
            ],
        );
        assert_eq!(tree.along(Version::One, "/a"), Some(Memory { limit: 700, used: 65 }));
        assert_eq!(tree.along(Version::One, "/b"), None);
    }

    #[test]
    fn this_process_s_own_cgroup_is_read() {
        // Whatever it is: nothing panics, and a limit is one.
        assert!(memory().is_none_or(|memory| memory.limit < NO_LIMIT));
    }
}
