//! The objects that the dynamic linker has loaded: the program and its libraries.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::ControlFlow;

/// `Elf64_Dyn` of elf(5).
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    tag: u64,
    value: u64,
}

const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_SONAME: u64 = 14;
/// The table of strings.
const DT_STRTAB: u64 = 5;

/// An object. It must not be used after it was unloaded.
#[derive(Clone, Copy)]
pub struct Object(libc::dl_phdr_info);

/// How many objects there were: later ones stand behind them in the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    removed: u64,
    count: usize,
}

impl Seen {
    /// The same as one number.
    #[must_use]
    pub fn pack(self) -> u64 {
        self.removed << 32 | self.count as u64 & u64::from(u32::MAX)
    }

    /// From that number.
    #[must_use]
    pub fn unpack(number: u64) -> Self {
        Self { removed: number >> 32, count: (number & u64::from(u32::MAX)) as usize }
    }
}

/// Calls `f` with each object, in the order in which they were loaded, for as long as it likes to go on. None comes or
/// goes meanwhile, but what another thread is loading may not be relocated yet. A lock of the dynamic linker is held,
/// so `f` takes none of ours, and calls no function of the dynamic linker.
pub fn each<F: FnMut(&Object) -> ControlFlow<()>>(mut f: F) {
    unsafe extern "C" fn call<F: FnMut(&Object) -> ControlFlow<()>>(
        object: *mut libc::dl_phdr_info,
        _: libc::size_t,
        f: *mut c_void,
    ) -> c_int {
        // SAFETY: the dynamic linker's own structure, and the closure below, which outlives the call.
        let (object, f) = unsafe { (Object(object.read()), &mut *f.cast::<F>()) };
        c_int::from(f(&object).is_break())
    }
    // SAFETY: `call` gets the closure back.
    unsafe { libc::dl_iterate_phdr(Some(call::<F>), (&raw mut f).cast()) };
}

/// The objects that there are now.
#[must_use]
pub fn seen() -> Seen {
    let mut seen = Seen::default();
    each(|object| {
        seen = Seen { removed: object.0.dlpi_subs, count: seen.count.wrapping_add(1) };
        ControlFlow::Continue(())
    });
    seen
}

/// As [`each`], telling which were not there when `seen` was made; if any has been unloaded since, that may be all.
pub fn each_since<F: FnMut(&Object, bool) -> ControlFlow<()>>(seen: Seen, mut f: F) {
    let mut place = 0_usize;
    each(|object| {
        place = place.wrapping_add(1);
        f(object, place > seen.count || object.0.dlpi_subs != seen.removed)
    });
}

impl Object {
    /// Its path, as it was looked for; empty for the program.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        if self.0.dlpi_name.is_null() {
            return b"";
        }
        // SAFETY: a string of the dynamic linker, which stays while the object is loaded.
        unsafe { CStr::from_ptr(self.0.dlpi_name) }.to_bytes()
    }

    /// Its segments of one kind (`PT_` of elf(5)).
    pub fn segments(&self, kind: u32) -> impl Iterator<Item = &libc::Elf64_Phdr> {
        let headers = match self.0.dlpi_phdr.is_null() {
            true => &[][..],
            // SAFETY: the object's program headers, which stay mapped while it is loaded.
            false => unsafe { core::slice::from_raw_parts(self.0.dlpi_phdr, self.0.dlpi_phnum.into()) },
        };
        headers.iter().filter(move |segment| segment.p_type == kind)
    }

    /// Where a segment begins.
    #[must_use]
    pub fn address(&self, segment: &libc::Elf64_Phdr) -> usize {
        self.place(segment.p_vaddr)
    }

    /// Where something lies that the object's file has at `address`.
    #[must_use]
    pub fn place(&self, address: u64) -> usize {
        self.0.dlpi_addr.wrapping_add(address) as usize
    }

    /// Whether an address is of a segment of one kind.
    #[must_use]
    pub fn holds(&self, kind: u32, address: usize) -> bool {
        self.segments(kind).any(|segment| address.wrapping_sub(self.address(segment)) < segment.p_memsz as usize)
    }

    fn dynamic(&self) -> impl Iterator<Item = Entry> {
        let table = self.segments(libc::PT_DYNAMIC).next().map(|segment| self.address(segment) as *const Entry);
        table.into_iter().flat_map(|table| {
            // SAFETY: the object's dynamic section, which the dynamic linker has read before us, up to its end.
            (0..).map(move |index| unsafe { table.add(index).read() }).take_while(|entry| entry.tag != DT_NULL)
        })
    }

    /// An entry of its dynamic section (`DT_` of elf(5)).
    #[must_use]
    pub fn entry(&self, tag: u64) -> Option<u64> {
        self.dynamic().find(|entry| entry.tag == tag).map(|entry| entry.value)
    }

    /// An entry that is an address. glibc makes one of it, unless it cannot write there, as in the kernel's own object.
    #[must_use]
    pub fn pointer(&self, tag: u64) -> Option<usize> {
        let value = self.entry(tag)?;
        [value as usize, self.place(value)].into_iter().find(|&address| self.holds(libc::PT_LOAD, address))
    }

    /// A string of its table of strings.
    ///
    /// # Safety
    /// `offset` must be one that its tables name.
    #[must_use]
    pub unsafe fn string(&self, offset: u64) -> &CStr {
        let Some(strings) = self.pointer(DT_STRTAB) else { return c"" };
        // SAFETY: the caller guarantees it: a string of the object's table.
        unsafe { CStr::from_ptr(strings.wrapping_add(offset as usize) as *const c_char) }
    }

    /// Its name for those who need it.
    #[must_use]
    pub fn soname(&self) -> Option<&[u8]> {
        // SAFETY: the object's own table says so.
        self.entry(DT_SONAME).map(|name| unsafe { self.string(name) }.to_bytes())
    }

    /// Its notes (`PT_NOTE` of elf(5)): where each may begin.
    pub fn notes(&self) -> impl Iterator<Item = &[u8]> {
        self.segments(libc::PT_NOTE).flat_map(|segment| {
            let is_loaded = self.holds(libc::PT_LOAD, self.address(segment));
            let length = if is_loaded { segment.p_filesz as usize } else { 0 };
            // SAFETY: the segment lies in one that is loaded, which nothing unmaps while it is listed.
            let notes = unsafe { core::slice::from_raw_parts(self.address(segment) as *const u8, length) };
            (0..length).step_by(4).filter_map(move |at| notes.get(at..))
        })
    }

    /// Whether it is what others need by this name.
    #[must_use]
    pub fn is_called(&self, needed: &[u8]) -> bool {
        let file = |path: &[u8]| path.rsplit(|&byte| byte == b'/').next() == needed.rsplit(|&byte| byte == b'/').next();
        file(self.name()) || self.soname() == Some(needed)
    }

    /// Where it was loaded, beside where its file has it.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.0.dlpi_addr
    }

    /// The names of what it needs.
    pub fn needed(&self) -> impl Iterator<Item = &[u8]> {
        self.dynamic()
            .filter(|entry| entry.tag == DT_NEEDED)
            // SAFETY: the object's own table says so.
            .map(|entry| unsafe { self.string(entry.value) }.to_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_its_libraries_are_listed() {
        let (mut own, mut needs_libc) = (0, false);
        each(|object| {
            own += usize::from(object.holds(libc::PT_LOAD, seen as fn() -> Seen as usize));
            needs_libc |= object.needed().any(|name| name == b"libc.so.6");
            ControlFlow::Continue(())
        });
        assert!(own == 1 && needs_libc);
    }

    #[test]
    fn what_was_seen_is_not_new() {
        let news = |seen| {
            let (mut new, mut all) = (0, 0);
            each_since(seen, |_, is_new| {
                new += usize::from(is_new);
                all += 1;
                ControlFlow::Continue(())
            });
            (new, all)
        };
        let count = seen().count;
        assert!(count >= 3 && news(Seen::default()) == (count, count));
        assert_eq!(news(Seen::unpack(seen().pack())), (0, count));
    }

    #[test]
    fn objects_are_known_by_the_names_that_need_them() {
        let mut called = 0;
        each(|object| {
            called += usize::from(object.is_called(b"libc.so.6"));
            ControlFlow::Continue(())
        });
        assert_eq!(called, 1);
    }
}
