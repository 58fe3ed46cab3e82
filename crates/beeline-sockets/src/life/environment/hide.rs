//! Taking the library's variables out of the environment that the program is about to see.

use core::ffi::{CStr, c_char, c_int};

use beeline_stats::library::COMMAND_NOTE;

use super::{OPTIONS, PRELOAD, entries, entry, follows, last_part};

/// A list of strings that can be changed.
type Variables = *mut *mut c_char;

/// An entry of the auxiliary vector that means nothing, and its value (getauxval(3)).
const IGNORED: [usize; 2] = [1, 0];
/// A program header that holds notes, elf(5).
const PT_NOTE: u32 = 4;
const PT_PHDR: u32 = 6;
/// The owner of a note that the Go toolchain leaves.
const NOTE_OF_GO: &[u8] = b"Go\0\0";

/// What the program will see from its start on: `variables` is the list that the kernel has made behind the `count`
/// arguments, `current` where libc keeps its own. Programs that the Go toolchain has made execute others by system
/// calls of their own: what they do not see, those do not get.
///
/// # Safety
/// All as the dynamic linker tells a constructor, and libc's `environ`; for the library's constructor alone, after
/// [`super::note`] has said that there is something to hide.
pub unsafe fn hide(count: c_int, arguments: *const *const c_char, variables: Variables, current: *mut Variables) {
    if !follows() || has_note(NOTE_OF_GO) {
        return;
    }
    let is_command = has_note(&COMMAND_NOTE);
    // SAFETY: the caller guarantees it. A list of libc's own is libc's to change, as it does in unsetenv(3).
    unsafe {
        let is_kernels = arguments.wrapping_add((count as usize).wrapping_add(1)).cast_mut().cast() == variables;
        let left = clean(variables, is_kernels, is_command);
        if is_kernels {
            fill(variables, left);
        }
        if *current != variables {
            clean(*current, false, is_command);
        }
    }
}

/// How many variables a list holds, and how many it held before.
pub(super) struct Left {
    after: usize,
    before: usize,
}

/// Takes our variables out of a list; not the options if it `keeps_options`.
///
/// # Safety
/// `list` must be null or a null-terminated list of strings, and nobody else may use it meanwhile. The strings must be
/// writable if they are the `kernels`.
pub(super) unsafe fn clean(list: Variables, kernels: bool, keeps_options: bool) -> Left {
    let (mut after, mut before) = (0usize, 0usize);
    // The first variable of those at the end that are ours.
    let mut end = 0usize;
    let mut preload: Option<&[u8]> = None;
    // SAFETY: the caller guarantees it; `after` never passes `before`, which stops at the end.
    unsafe {
        while !list.is_null() && !(*list.add(before)).is_null() {
            let text = *list.add(before);
            let bytes = CStr::from_ptr(text).to_bytes();
            before = before.wrapping_add(1);
            let stays = if let Some(value) = bytes.strip_prefix(PRELOAD) {
                let stays = keeps_preload(text.wrapping_add(PRELOAD.len()), value.len(), preload, kernels);
                if stays {
                    preload = CStr::from_ptr(text).to_bytes().strip_prefix(PRELOAD);
                }
                stays
            } else {
                keeps_options || !bytes.starts_with(OPTIONS)
            };
            if stays {
                *list.add(after) = text;
                after = after.wrapping_add(1);
                end = before;
            }
        }
        if kernels {
            for place in end..before {
                let text = *list.add(place);
                text.write_bytes(0, CStr::from_ptr(text).count_bytes());
            }
        }
        if after != before {
            *list.add(after) = core::ptr::null_mut();
        }
    }
    Left { after, before }
}

/// Takes our entry out of a value of `LD_PRELOAD`. False if it was there for its sake alone.
///
/// # Safety
/// `value` must be `length` bytes and a zero, writable if they are the `kernels`.
unsafe fn keeps_preload(value: *mut c_char, length: usize, earlier: Option<&[u8]>, kernels: bool) -> bool {
    // SAFETY: the caller guarantees it.
    let old = unsafe { core::slice::from_raw_parts(value.cast::<u8>(), length) };
    let library = entry();
    if !entries(old).any(|entry| last_part(entry) == last_part(library)) {
        return true;
    }
    // What `kept` has added says what stands further ahead as well.
    let rest = old.strip_prefix(library).filter(|rest| rest.is_empty() || rest.starts_with(b":"));
    if rest.is_some_and(|rest| entries(rest).eq(entries(earlier.unwrap_or_default()))) {
        return false;
    }
    if !kernels {
        return true;
    }
    // SAFETY: the caller guarantees it, and `old` is used no more.
    let value = unsafe { core::slice::from_raw_parts_mut(value.cast::<u8>(), length) };
    let left = cut(value, library);
    if let Some(rest) = value.get_mut(left..) {
        rest.fill(0);
    }
    left != 0
}

/// Takes a library out of a list of libraries, each time with one separator. Returns how many bytes are left.
pub(super) fn cut(value: &mut [u8], library: &[u8]) -> usize {
    let is_separator = |byte: Option<&u8>| matches!(byte, Some(b':' | b' '));
    let mut length = value.len();
    let mut at = 0usize;
    while let Some(list) = value.get(..length).filter(|_| at < length) {
        let word = list.get(at..).unwrap_or_default().split(|byte| is_separator(Some(byte))).next().unwrap_or_default();
        let end = at.saturating_add(word.len());
        if word.is_empty() || last_part(word) != last_part(library) {
            at = end.saturating_add(1);
            continue;
        }
        let (from, to) = if end < length { (at, end.saturating_add(1)) } else { (at.saturating_sub(1), end) };
        value.copy_within(to..length, from);
        length = length.saturating_sub(to.saturating_sub(from));
        at = from;
    }
    length
}

/// Makes the words between the list's new end and its old one parts of the auxiliary vector.
///
/// # Safety
/// `list` must be the kernel's, with what [`clean`] has told of it.
unsafe fn fill(list: Variables, left: Left) {
    let room = left.before.wrapping_sub(left.after);
    for index in 0..room {
        let word = IGNORED.get(index & 1).copied().filter(|_| room & 1 == 0).unwrap_or(0);
        // SAFETY: behind the new end and not behind the old one.
        unsafe { list.add(left.after.wrapping_add(1).wrapping_add(index)).cast::<usize>().write(word) };
    }
}

/// Whether a note of the program has this owner.
fn has_note(owner: &[u8]) -> bool {
    // SAFETY: plain numbers; the kernel tells where the program's headers are in memory.
    let (headers, count) = unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM)) };
    if headers == 0 {
        return false;
    }
    // SAFETY: the kernel has mapped them, and they stay.
    let headers = unsafe { core::slice::from_raw_parts(headers as *const libc::Elf64_Phdr, count as usize) };
    let own = headers.iter().find(|header| header.p_type == PT_PHDR);
    let base = own.map_or(0, |own| (headers.as_ptr() as u64).wrapping_sub(own.p_vaddr));
    headers.iter().filter(|header| header.p_type == PT_NOTE).any(|header| {
        let start = base.wrapping_add(header.p_vaddr) as *const u8;
        // SAFETY: notes lie in a segment that is loaded, and stay.
        is_owner(owner, unsafe { core::slice::from_raw_parts(start, header.p_memsz as usize) })
    })
}

/// Whether one of the notes has this owner, whose name ends in a zero and fills up four bytes. Each has three numbers,
/// a name and a content, both filled up so.
fn is_owner(owner: &[u8], mut notes: &[u8]) -> bool {
    while let Some((head, rest)) = notes.split_first_chunk::<12>() {
        let number =
            |at: usize| head.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b));
        let (name_bytes, content_bytes) = (number(0) as usize, number(4) as usize);
        if rest.get(..name_bytes) == Some(owner) {
            return true;
        }
        let next = name_bytes.next_multiple_of(4).saturating_add(content_bytes.next_multiple_of(4));
        notes = rest.get(next..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_found_among_others() {
        let note = |name: &[u8], content: &[u8]| {
            let mut bytes = Vec::new();
            for number in [name.len() as u32, content.len() as u32, 4] {
                bytes.extend(number.to_le_bytes());
            }
            for part in [name, content] {
                bytes.extend(part);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            bytes
        };
        let (gnu, go, own) = (note(b"GNU\0", b"12345"), note(NOTE_OF_GO, b"x"), note(&COMMAND_NOTE, b""));
        let all = [gnu.clone(), go, own].concat();
        assert!(is_owner(NOTE_OF_GO, &all) && is_owner(&COMMAND_NOTE, &all));
        assert!(!is_owner(NOTE_OF_GO, &gnu) && !is_owner(&COMMAND_NOTE, &gnu));
        assert!(!is_owner(NOTE_OF_GO, &note(NOTE_OF_GO, b"x")[..14]));
        assert!(!is_owner(NOTE_OF_GO, &[0xFF; 40]));
        assert!(!has_note(NOTE_OF_GO) && !has_note(&COMMAND_NOTE));
    }
}
