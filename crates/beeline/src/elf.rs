//! The little that decides whether the library can be loaded into an executable: its class, byte order
//! and machine, and which dynamic loader it asks for (elf(5)).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// What an ELF file is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// 1 for 32 bits, 2 for 64.
    class: u8,
    /// 1 for little-endian, 2 for big-endian.
    data: u8,
    /// `e_machine`.
    machine: u16,
}

/// What we want to know of an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elf {
    pub architecture: Architecture,
    /// The dynamic loader it asks for; none if it is statically linked (or is a library).
    pub interpreter: Option<Vec<u8>>,
}

const PT_INTERP: u32 = 3;
const INTERPRETER_BYTES_MAX: usize = 4096;

impl Elf {
    /// Reads the headers; `None` when it is no ELF file or a damaged one, which the kernel will
    /// refuse with an error of its own.
    pub fn read(file: &File) -> io::Result<Option<Self>> {
        let mut header = [0; 64];
        let len = read_some(file, &mut header, 0)?;
        let header = &header[..len];
        if !header.starts_with(b"\x7fELF") {
            return Ok(None);
        }
        Self::parse(header, |offset, bytes| read_some(file, bytes, offset).is_ok_and(|len| len == bytes.len()))
            .map_or(Ok(None), |elf| Ok(Some(elf)))
    }

    fn parse(header: &[u8], read: impl Fn(u64, &mut [u8]) -> bool) -> Option<Self> {
        let (class, data) = (*header.get(4)?, *header.get(5)?);
        let wide = class == 2;
        let number = Number { big: data == 2 };
        let architecture = Architecture { class, data, machine: number.u16(header, 18)? };
        let (table, entry_bytes, entries) = if wide {
            (number.u64(header, 32)?, number.u16(header, 54)?, number.u16(header, 56)?)
        } else {
            let table = number.u32(header, 28)?.into();
            (table, number.u16(header, 42)?, number.u16(header, 44)?)
        };
        let mut interpreter = None;
        for index in 0..entries {
            let offset = table.checked_add(u64::from(index) * u64::from(entry_bytes))?;
            let mut entry = vec![0; if wide { 56 } else { 32 }];
            if !read(offset, &mut entry) {
                return None;
            }
            if number.u32(&entry, 0)? != PT_INTERP {
                continue;
            }
            let (at, bytes) = if wide {
                (number.u64(&entry, 8)?, number.u64(&entry, 32)?)
            } else {
                (number.u32(&entry, 4)?.into(), number.u32(&entry, 16)?.into())
            };
            let bytes = usize::try_from(bytes).ok().filter(|&n| n <= INTERPRETER_BYTES_MAX)?;
            let mut path = vec![0; bytes];
            if !read(at, &mut path) {
                return None;
            }
            path.truncate(path.iter().position(|&b| b == 0).unwrap_or(bytes));
            interpreter = Some(path);
            break;
        }
        Some(Self { architecture, interpreter })
    }
}

/// Reads until the buffer is full or the file ends.
fn read_some(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut len = 0;
    while len < bytes.len() {
        match file.read_at(&mut bytes[len..], offset.saturating_add(len as u64)) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

struct Number {
    big: bool,
}

impl Number {
    fn bytes<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
        bytes.get(offset..)?.first_chunk().copied()
    }

    fn u16(&self, bytes: &[u8], offset: usize) -> Option<u16> {
        let bytes = Self::bytes(bytes, offset)?;
        Some(if self.big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    fn u32(&self, bytes: &[u8], offset: usize) -> Option<u32> {
        let bytes = Self::bytes(bytes, offset)?;
        Some(if self.big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn u64(&self, bytes: &[u8], offset: usize) -> Option<u64> {
        let bytes = Self::bytes(bytes, offset)?;
        Some(if self.big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_program_is_dynamic_and_of_this_machine() {
        let file = File::open("/proc/self/exe").unwrap();
        let elf = Elf::read(&file).unwrap().unwrap();
        let interpreter = String::from_utf8(elf.interpreter.unwrap()).unwrap();
        assert!(interpreter.contains("/ld-"), "{interpreter}");
    }

    #[test]
    fn damaged_files_are_no_elf_and_no_panic() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        let parse = |bytes: &[u8]| {
            Elf::parse(&bytes[..bytes.len().min(64)], |offset, target| {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                match from.checked_add(target.len()).and_then(|to| bytes.get(from..to)) {
                    Some(source) => {
                        target.copy_from_slice(source);
                        true
                    }
                    None => false,
                }
            })
        };
        assert!(parse(&whole).is_some());
        for cut in 0..64 {
            assert_eq!(parse(&whole[..cut]), None);
        }
        let mut damaged = whole[..1024].to_vec();
        for offset in 4..1024 {
            let kept = damaged[offset];
            for byte in [0, 1, 0x7f, 0xff] {
                damaged[offset] = byte;
                let _ = parse(&damaged);
            }
            damaged[offset] = kept;
        }
    }
}
