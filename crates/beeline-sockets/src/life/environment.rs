//! The environment of other programs: the library and its options go along, and nobody sees them.
//!
//! A program sees exactly the environment that its parent has given it, as if there were no library. A program that
//! starts another one with an environment of its own making means to hide its own variables, not to take the library
//! away. So both are kept here, in the library's memory: the entry of `LD_PRELOAD` by which the library came, and its
//! options (`BEELINE_OPTIONS`). [`hide`] takes them out before the program's first instruction, and [`kept`] puts them
//! back for the next program's dynamic linker, whose library takes them out again. The option `follow` switches both
//! off: then they are variables like any other.
//!
//! 1. What is added stands at the end, two variables, and changes nothing before it: an `LD_PRELOAD` of the program's
//!    own stays where it is, and the one that is added says the same behind our entry. The dynamic linker believes the
//!    last.
//! 2. [`hide`] closes the gaps in the list that the kernel has made, in its place: whoever has remembered where it is
//!    finds it as it should be. Behind its end there is now room before the auxiliary vector, which some programs look
//!    for there: an even number of words becomes entries of that vector to be ignored. Texts at the end are blanked, so
//!    that /proc/PID/environ ends where the program's own variables end.
//! 3. Only a program that is going to load the library is given variables. Others (statically linked, set-uid) see
//!    none, and pass none on: what they start runs without the library.
//! 4. A program that executes others by system calls of its own (Go) would lose the library: there nothing is hidden.
//!    Beeline's own command, which a note in its file tells, sees its options: `beeline run` says new ones to the
//!    program that it becomes, and passes on those that it has.
//! 5. An environment that has everything is passed on as it is. Another one is put together in memory that is the
//!    calling thread's until `execve` has copied it, or the spawned process runs ([`slots`]).

mod hide;
mod slots;

use core::ffi::{CStr, c_char};

use beeline_shm::sys;

pub use crate::process::environment::{List, note};
pub use hide::hide;
pub use slots::give_back;

use super::image::Image;
use crate::process::environment::{
    OPTIONS, PRELOAD, entries, entry, entry_path, is_kept, last_part, options_variable, strings,
};
use crate::process::{config, is_active};

fn is_ours(entry: &&[u8]) -> bool {
    last_part(entry) == last_part(self::entry())
}

/// Whether the environment is looked after at all.
fn follows() -> bool {
    is_kept() && config().follow && config().accelerate
}

/// The list to start a program with instead of `list`. The same one if nothing is to be changed, or nothing can be.
/// Whoever is still there when it is not needed any more gives it back ([`give_back`]).
///
/// # Safety
/// `list` must be null or a null-terminated list of strings. The result is valid as long as the list and until it is
/// given back.
pub unsafe fn kept(list: List, image: Image) -> List {
    if !follows() {
        return list;
    }
    // SAFETY: the caller guarantees it.
    let given = || unsafe { strings(list) };
    let preload = given().filter_map(|text| text.to_bytes().strip_prefix(PRELOAD)).last();
    let has_entry = preload.is_some_and(|value| entries(value).any(|entry| is_ours(&entry)));
    let adds_entry = !has_entry && image.loads() && is_there();
    let drops_entry = has_entry && image == Image::Harmed;
    let has_options = given().any(|text| text.to_bytes().starts_with(OPTIONS));
    let adds_options = !has_options && (adds_entry || has_entry && image.loads());
    if !adds_entry && !drops_entry && !adds_options {
        return list;
    }
    let preload = preload.unwrap_or_default();
    let pointers = given().count().saturating_add(3);
    let text_bytes = PRELOAD.len() + entry().len() + 1 + preload.len() + 1;
    let pointer_bytes = pointers.saturating_mul(size_of::<*const c_char>());
    let Some(memory) = slots::take(pointer_bytes.saturating_add(text_bytes)) else { return list };
    // SAFETY: as large as was asked for, page-aligned, and the calling thread's alone.
    let (target, text) = unsafe {
        let text = core::slice::from_raw_parts_mut(memory.add(pointer_bytes), text_bytes);
        (core::slice::from_raw_parts_mut(memory.cast::<*const c_char>(), pointers), text)
    };
    let written = if adds_entry {
        let theirs = (!preload.is_empty()).then_some(preload);
        join(text, [entry()].into_iter().chain(theirs))
    } else if drops_entry {
        join(text, entries(preload).filter(|entry| !is_ours(entry)))
    } else {
        None
    };
    let others = given().filter(|text| !drops_entry || !text.to_bytes().starts_with(PRELOAD)).map(CStr::as_ptr);
    let options = adds_options.then(|| options_variable().as_ptr());
    for (place, pointer) in target.iter_mut().zip(others.chain(written).chain(options).chain([core::ptr::null()])) {
        *place = pointer;
    }
    target.as_ptr()
}

/// Whether the next program's dynamic linker will find the library: not after `chroot`, for example. A name that it
/// looks for by itself is not judged, and behind a filter nothing can be asked.
pub(super) fn is_there() -> bool {
    let (entry, path) = (entry(), entry_path());
    if entry.len() >= libc::PATH_MAX as usize {
        return false;
    }
    if !entry.contains(&b'/') || entry.contains(&b'$') || !is_active() {
        return true;
    }
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, libc::R_OK as usize, 0, 0, 0];
    // SAFETY: a path, which ends in a zero, and plain numbers.
    unsafe { sys::call(libc::SYS_faccessat, args) }.is_ok()
}

/// Writes `LD_PRELOAD` with these entries. There is room for all of them.
fn join<'a>(text: &mut [u8], entries: impl Iterator<Item = &'a [u8]>) -> Option<*const c_char> {
    let mut end = 0usize;
    let mut put = |part: &[u8]| {
        let next = end.checked_add(part.len())?;
        text.get_mut(end..next)?.copy_from_slice(part);
        end = next;
        Some(())
    };
    put(PRELOAD)?;
    for (index, entry) in entries.enumerate() {
        if index != 0 {
            put(b":")?;
        }
        put(entry)?;
    }
    put(b"\0")?;
    Some(text.as_ptr().cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list for the calls above, which lives for ever.
    fn list(texts: &[&str]) -> List {
        let strings = texts.iter().map(|text| std::ffi::CString::new(*text).unwrap().into_raw().cast_const());
        Vec::leak(strings.chain([core::ptr::null()]).collect()).as_ptr()
    }

    fn texts(list: List) -> Vec<&'static str> {
        // SAFETY: a list that lives for ever.
        unsafe { strings(list) }.map(|text| text.to_str().unwrap()).collect()
    }

    fn result(given: &[&str], image: Image) -> Vec<&'static str> {
        // SAFETY: a list that lives for ever.
        texts(unsafe { kept(list(given), image) })
    }

    /// As another program's library would leave it.
    fn seen(given: List) -> Vec<&'static str> {
        // SAFETY: a list of its own, in memory that can be written.
        unsafe { hide::clean(given.cast_mut().cast(), true, false) };
        texts(given)
    }

    #[test]
    fn what_is_given_is_seen_and_the_library_goes_along() {
        let mine = ["A=1", "LD_PRELOAD=/x/first.so:libbeeline.so", "BEELINE_OPTIONS=wait=wait", "BEELINE_X="];
        // SAFETY: a list that lives for ever.
        unsafe { note(list(&mine), b"/lib/libbeeline.so") };
        assert_eq!(result(&mine, Image::Takes), mine);
        assert_eq!(seen(list(&mine)), ["A=1", "LD_PRELOAD=/x/first.so", "BEELINE_X="]);
        let commands = list(&mine);
        // SAFETY: a list of its own, in memory that can be written.
        unsafe { hide::clean(commands.cast_mut().cast(), true, true) };
        assert_eq!(texts(commands), ["A=1", "LD_PRELOAD=/x/first.so", mine[2], "BEELINE_X="]);
        let added = ["LD_PRELOAD=libbeeline.so", "BEELINE_OPTIONS=wait=wait"];
        assert_eq!(result(&[], Image::Takes), added);
        for given in [
            &["LD_PRELOAD="][..],
            &["LD_PRELOAD=a.so  b.so:", "Z=1"],
            &["LD_PRELOAD=a", "LD_PRELOAD=b", "LD_PRELOAD=a"],
            &["A=", "", "B", "LD_PRELOAD_=1"],
            &[],
        ] {
            let wire = result(given, Image::Takes);
            assert_eq!(wire.len(), given.len() + 2);
            assert_eq!(wire[..given.len()], *given, "what is given stays where it is");
            assert_eq!(seen(list(&wire)), given);
            assert_eq!(result(given, Image::Ignores), given);
            assert_eq!(result(given, Image::Harmed), given);
        }
        let own = ["LD_PRELOAD=/their.so", "BEELINE_OPTIONS=", "X=7"];
        assert_eq!(result(&own, Image::Takes)[3..], ["LD_PRELOAD=libbeeline.so:/their.so"]);
        assert_eq!(result(&["LD_PRELOAD=a.so libbeeline.so"], Image::Takes).len(), 2);
        assert_eq!(result(&mine, Image::Harmed), [mine[0], mine[2], mine[3], "LD_PRELOAD=/x/first.so"]);
        let many: Vec<String> = (0..2000).map(|index| format!("V{index}=x")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(result(&many, Image::Takes).len(), 2002);
    }

    #[test]
    fn cutting_leaves_the_rest_as_it_was() {
        for (value, rest) in [
            ("x/l.so", ""),
            ("l.so:a  b:", "a  b:"),
            ("a b:l.so", "a b"),
            ("a l.so:b", "a b"),
            ("l.so l.so", ""),
            (" l.so", ""),
            ("l.so.1:al.so", "l.so.1:al.so"),
        ] {
            let mut bytes = value.as_bytes().to_vec();
            let length = hide::cut(&mut bytes, b"/y/l.so");
            assert_eq!(&bytes[..length], rest.as_bytes(), "{value}");
        }
    }
}
