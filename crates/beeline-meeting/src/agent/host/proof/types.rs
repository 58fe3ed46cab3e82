//! Where the fields of the kernel's own types are, by what it tells of them: BTF, `Documentation/bpf/btf.rst` of Linux.

use core::ops::Range;

/// Where the kernel tells of its types.
pub const KERNEL: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
const TYPE_BYTES: usize = 12;
const MEMBER_BYTES: usize = 12;
/// Types within types.
const DEPTH_MAX: usize = 16;

// Kinds of types.
const INT: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const FUNCTION_KIND: u32 = 13;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
const DECLARATION_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

/// What the kernel tells.
struct Types<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type begins, by its number less one.
    at: std::vec::Vec<u32>,
}

/// One type.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    /// Of members, mostly.
    count: usize,
    /// Whether its members may be of single bits.
    has_bits: bool,
    /// Its size, or the number of another type.
    size_or_type: u32,
    /// Where what belongs to it begins.
    rest: usize,
}

/// The offsets, in a struct, of these fields of 32 bits, which may be those of structs that lie in it.
pub fn places<const N: usize>(bytes: &[u8], name: &str, fields: [&str; N]) -> Option<[i16; N]> {
    let types = Types::read(bytes)?;
    let whole = (0..types.at.len()).find_map(|index| {
        let number = u32::try_from(index.checked_add(1)?).ok()?;
        let found = types.get(number)?;
        (found.kind == STRUCT && types.is_named(found.name, name)).then_some(found)
    })?;
    let mut places = [0; N];
    for (place, field) in places.iter_mut().zip(fields) {
        *place = i16::try_from(types.bits_before(whole, field, 0)?.checked_div(8)?).ok()?;
    }
    Some(places)
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes)
}

impl<'a> Types<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        if bytes.get(..2)? != MAGIC.to_ne_bytes() || word_at(bytes, 4)? as usize != HEADER_BYTES {
            return None;
        }
        let part = |at: usize| -> Option<&'a [u8]> {
            let begin = HEADER_BYTES.checked_add(word_at(bytes, at)? as usize)?;
            let range: Range<usize> = begin..begin.checked_add(word_at(bytes, at.checked_add(4)?)? as usize)?;
            bytes.get(range)
        };
        let mut all = Self { types: part(8)?, strings: part(16)?, at: std::vec::Vec::new() };
        let mut at = 0;
        while at < all.types.len() {
            let found = all.at(at)?;
            all.at.push(u32::try_from(at).ok()?);
            at = found.rest.checked_add(found.rest_bytes()?)?;
        }
        Some(all)
    }

    fn at(&self, at: usize) -> Option<Type> {
        let about = word_at(self.types, at.checked_add(4)?)?;
        Some(Type {
            name: word_at(self.types, at)?,
            kind: about >> 24 & 0x1f,
            count: (about & 0xffff) as usize,
            has_bits: about >> 31 != 0,
            size_or_type: word_at(self.types, at.checked_add(8)?)?,
            rest: at.checked_add(TYPE_BYTES)?,
        })
    }

    fn get(&self, number: u32) -> Option<Type> {
        self.at(*self.at.get((number as usize).checked_sub(1)?)? as usize)
    }

    fn is_named(&self, name: u32, wanted: &str) -> bool {
        let rest = self.strings.get(name as usize..).and_then(|rest| rest.strip_prefix(wanted.as_bytes()));
        rest.is_some_and(|rest| rest.first() == Some(&0))
    }

    /// How many bits lie before a field of 32 bits.
    fn bits_before(&self, whole: Type, field: &str, depth: usize) -> Option<usize> {
        if depth > DEPTH_MAX || !matches!(whole.kind, STRUCT | UNION) {
            return None;
        }
        (0..whole.count).find_map(|index| {
            let at = whole.rest.checked_add(index.checked_mul(MEMBER_BYTES)?)?;
            let (name, number) = (word_at(self.types, at)?, word_at(self.types, at.checked_add(4)?)?);
            let offset = word_at(self.types, at.checked_add(8)?)?;
            // With bits, the upper byte says how many.
            let (offset, bits) = if whole.has_bits { (offset & 0xff_ffff, offset >> 24) } else { (offset, 0) };
            let its = self.plain(number)?;
            if self.is_named(name, field) {
                let is_word = bits == 0 && its.kind == INT && its.size_or_type == 4 && offset.is_multiple_of(32);
                return is_word.then_some(offset as usize);
            }
            self.bits_before(its, field, depth.checked_add(1)?)?.checked_add(offset as usize)
        })
    }

    /// What a type with another name is.
    fn plain(&self, mut number: u32) -> Option<Type> {
        for _ in 0..DEPTH_MAX {
            let found = self.get(number)?;
            if !matches!(found.kind, TYPEDEF | VOLATILE | CONST | TYPE_TAG) {
                return Some(found);
            }
            number = found.size_or_type;
        }
        None
    }
}

impl Type {
    /// How much belongs to a type besides.
    fn rest_bytes(&self) -> Option<usize> {
        let each = match self.kind {
            INT | VARIABLE | DECLARATION_TAG => return Some(4),
            ARRAY => return Some(12),
            STRUCT | UNION | SECTION | ENUM64 => 12,
            ENUM | FUNCTION_KIND => 8,
            kind if kind > ENUM64 => return None,
            _ => return Some(0),
        };
        self.count.checked_mul(each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// `struct outer { u64 x; union { struct { u32 a; u32 wanted; }; u64 y; }; }`, and an enum before it.
    fn sample() -> Vec<u8> {
        let strings = b"\0u32\0u64\0outer\0x\0a\0wanted\0y\0e\0";
        let name = |wanted: &str| {
            let wanted = [b"\0", wanted.as_bytes(), b"\0"].concat();
            strings.windows(wanted.len()).position(|part| part == wanted).unwrap() as u32 + 1
        };
        let mut words: Vec<u32> = Vec::new();
        words.extend([name("e"), ENUM << 24 | 1, 4, 0, 7]);
        words.extend([name("u32"), INT << 24, 4, 32]);
        words.extend([name("u64"), INT << 24, 8, 64]);
        words.extend([name("u32"), TYPEDEF << 24, 2]);
        words.extend([0, STRUCT << 24 | 2, 8, name("a"), 2, 0, name("wanted"), 4, 32]);
        words.extend([0, UNION << 24 | 2, 8, name("y"), 3, 0, 0, 5, 0]);
        words.extend([name("outer"), STRUCT << 24 | 2, 16, name("x"), 3, 0, 0, 6, 64]);
        let types: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        for word in [HEADER_BYTES as u32, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        [bytes, types, strings.to_vec()].concat()
    }

    #[test]
    fn a_field_is_found_however_deep_it_lies() {
        assert_eq!(places(&sample(), "outer", ["a", "wanted"]), Some([8, 12]));
        assert_eq!(places(&sample(), "outer", ["y"]), None, "it has 64 bits");
        assert_eq!(places(&sample(), "outer", ["want"]), None);
        assert_eq!(places(&sample(), "inner", ["a"]), None);
    }

    #[test]
    fn the_kernels_own_types_are_read() {
        let Ok(bytes) = std::fs::read(KERNEL) else {
            std::eprintln!("skipped: this kernel does not tell of its types");
            return;
        };
        let [sends, receives] = places(&bytes, "tcp_sock", ["sk_txhash", "skc_rxhash"]).unwrap();
        assert!(sends > 0 && receives > 0 && sends != receives && sends % 4 == 0 && receives % 4 == 0);
    }

    #[test]
    fn any_bytes_are_survived() {
        let good = sample();
        for length in 0..good.len() {
            let _ = places(&good[..length], "outer", ["a", "wanted"]);
        }
        for at in 0..good.len() {
            for byte in [0, 1, 8, 0x7f, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = byte;
                let _ = places(&bytes, "outer", ["a", "wanted"]);
            }
        }
    }
}
