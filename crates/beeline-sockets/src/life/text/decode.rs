//! Instructions of x86-64, as far as it must be known where the next one begins and what becomes of a number that is on
//! its way into `eax`.
//!
//! What only a kernel may execute is no instruction here. Lengths follow the opcode maps of the Intel manual (volume 2,
//! appendix A). What a register holds is followed for constants that are moved and nothing else: anything that writes
//! to a register in another way leaves it unknown. Writes are taken from the operands' places in an instruction; what
//! writes to a register that it does not name does so to `eax` alone.

/// What an instruction does that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// A register gets a constant.
    Constant(u8, u32),
    /// A register gets what another one holds.
    Copy(u8, u8),
    /// A register gets what is in memory.
    Load(u8),
    /// A constant goes onto the stack.
    Push(u32),
    /// A register comes from the stack.
    Pop(u8),
    /// One or two registers get what cannot be told.
    Writes(u8, u8),
    /// A function is called: what registers hold afterwards is its affair, as far as the ABI leaves them to it.
    Call,
    /// What follows is reached from elsewhere.
    Ends,
}

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Its length in bytes.
    pub length: u8,
    /// What it does.
    pub effect: Effect,
}

const EAX: u8 = 0;

/// Which operands an instruction writes to.
#[derive(Clone, Copy)]
enum Target {
    None,
    Reg,
    Rm,
    Both,
    Eax,
}

/// The bytes that belong to an instruction behind its opcode.
#[derive(Clone, Copy)]
struct Form {
    modrm: bool,
    immediate: u8,
    target: Target,
}

const fn form(modrm: bool, immediate: u8, target: Target) -> Option<Form> {
    Some(Form { modrm, immediate, target })
}

/// The prefixes of an instruction.
#[derive(Clone, Copy, Default)]
struct Prefixes {
    /// 0x66
    short: bool,
    /// 0x67
    narrow: bool,
    rex: u8,
}

impl Prefixes {
    fn is_wide(self) -> bool {
        self.rex & 8 != 0
    }

    /// Bytes of an immediate operand that is as large as the operands, up to four bytes.
    fn immediate(self) -> u8 {
        if self.short && !self.is_wide() { 2 } else { 4 }
    }

    fn reg(self, modrm: u8) -> u8 {
        modrm >> 3 & 7 | (self.rex & 4) << 1
    }

    fn rm(self, modrm: u8) -> u8 {
        modrm & 7 | (self.rex & 1) << 3
    }
}

/// Decodes the instruction at the start of `text`; `None` if there is none, or not all of it.
pub fn decode(text: &[u8]) -> Option<Instruction> {
    let mut prefixes = Prefixes::default();
    let mut at = 0usize;
    loop {
        match *text.get(at)? {
            0x66 => prefixes.short = true,
            0x67 => prefixes.narrow = true,
            0xf0 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 => {}
            _ => break,
        }
        at = at.wrapping_add(1);
        if at > 14 {
            return None;
        }
    }
    let mut opcode = *text.get(at)?;
    if opcode & 0xf0 == 0x40 {
        prefixes.rex = opcode;
        at = at.wrapping_add(1);
        opcode = *text.get(at)?;
    }
    let rest = text.get(at.wrapping_add(1)..)?;
    match opcode {
        0xc4 | 0xc5 | 0x62 => decode_vector(text, at, opcode),
        0x0f => {
            let second = *rest.first()?;
            let (form, opcodes) = match second {
                0x38 => (
                    form(true, 0, if matches!(rest.get(1), Some(0xf0..=0xf8)) { Target::Reg } else { Target::None }),
                    3,
                ),
                0x3a => {
                    (form(true, 1, if matches!(rest.get(1), Some(0x14..=0x17)) { Target::Rm } else { Target::None }), 3)
                }
                _ => (second_map(second), 2),
            };
            finish(text, at.wrapping_add(opcodes), prefixes, form?, second_effect(second))
        }
        _ => finish(
            text,
            at.wrapping_add(1),
            prefixes,
            first_map(opcode, rest, prefixes)?,
            first_effect(opcode, rest, prefixes),
        ),
    }
}

/// Instructions with a VEX or EVEX prefix. Few of them write to other than vector registers: `rorx`, `andn` and the
/// like, which nobody uses for the number of a call.
fn decode_vector(text: &[u8], at: usize, prefix: u8) -> Option<Instruction> {
    let payload = *text.get(at.wrapping_add(1))?;
    let (map, opcode_at) = match prefix {
        0xc5 => (1, at.wrapping_add(2)),
        0xc4 => (payload & 0x1f, at.wrapping_add(3)),
        _ => (payload & 7, at.wrapping_add(4)),
    };
    let opcode = *text.get(opcode_at)?;
    let immediate = match map {
        1 => u8::from(matches!(opcode, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6)),
        2 | 5 | 6 => 0,
        3 => 1,
        _ => return None,
    };
    let modrm = !(map == 1 && opcode == 0x77 && prefix != 0x62);
    finish(text, opcode_at.wrapping_add(1), Prefixes::default(), form(modrm, immediate, Target::None)?, None)
}

/// Adds up the length, and finds what is written to unless that is known already.
fn finish(text: &[u8], mut at: usize, prefixes: Prefixes, form: Form, known: Option<Effect>) -> Option<Instruction> {
    let mut modrm = 0;
    if form.modrm {
        modrm = *text.get(at)?;
        at = at.wrapping_add(1);
        let (mode, rm) = (modrm >> 6, modrm & 7);
        let mut base = rm;
        if mode != 3 && rm == 4 {
            base = *text.get(at)? & 7;
            at = at.wrapping_add(1);
        }
        at = at.wrapping_add(match mode {
            1 => 1,
            2 => 4,
            0 if base == 5 => 4,
            _ => 0,
        });
    }
    at = at.wrapping_add(form.immediate.into());
    if at > text.len() || at > 15 {
        return None;
    }
    let is_register = modrm >> 6 == 3;
    let (reg, rm) = (prefixes.reg(modrm), prefixes.rm(modrm));
    let effect = known.unwrap_or(match form.target {
        Target::Reg => Effect::Writes(reg, reg),
        Target::Rm if is_register => Effect::Writes(rm, rm),
        Target::Both if is_register => Effect::Writes(reg, rm),
        Target::Both => Effect::Writes(reg, reg),
        Target::Eax => Effect::Writes(EAX, EAX),
        Target::None | Target::Rm => Effect::None,
    });
    Some(Instruction { length: at as u8, effect })
}

/// Opcodes of one byte.
fn first_map(opcode: u8, rest: &[u8], prefixes: Prefixes) -> Option<Form> {
    let full = prefixes.immediate();
    let operation = || rest.first().map(|modrm| modrm >> 3 & 7);
    match opcode {
        // Zeros decode as `add [rax], al`, which no compiler writes: they are data.
        0x00 if rest.first() == Some(&0) => None,
        0x38..=0x3b | 0x84 | 0x85 => form(true, 0, Target::None),
        0x3c | 0xa8 => form(false, 1, Target::None),
        0x3d | 0xa9 => form(false, full, Target::None),
        0x00..=0x3f => match opcode & 7 {
            0 | 1 => form(true, 0, Target::Rm),
            2 | 3 => form(true, 0, Target::Reg),
            4 => form(false, 1, Target::Eax),
            5 => form(false, full, Target::Eax),
            _ => None,
        },
        0x50..=0x5f | 0x90 | 0x99 | 0x9b | 0x9d | 0x9e => form(false, 0, Target::None),
        0x63 | 0x8a | 0x8b | 0x8d => form(true, 0, Target::Reg),
        0x68 => form(false, full, Target::None),
        0x69 => form(true, full, Target::Reg),
        0x6a | 0x70..=0x7f | 0xe0..=0xe3 | 0xeb => form(false, 1, Target::None),
        0x6b => form(true, 1, Target::Reg),
        0x80 | 0x83 => form(true, 1, if operation()? == 7 { Target::None } else { Target::Rm }),
        0x81 => form(true, full, if operation()? == 7 { Target::None } else { Target::Rm }),
        0x86 | 0x87 => form(true, 0, Target::Both),
        0x88 | 0x89 | 0x8c | 0x8f | 0xd0..=0xd3 => form(true, 0, Target::Rm),
        0x8e | 0xd8..=0xdf => form(true, 0, Target::None),
        0x91..=0x98 | 0x9f | 0xac | 0xad | 0xd7 => form(false, 0, Target::Eax),
        0x9c | 0xa4..=0xa7 | 0xaa | 0xab | 0xae | 0xaf => form(false, 0, Target::None),
        0xa0..=0xa3 => {
            form(false, if prefixes.narrow { 4 } else { 8 }, if opcode < 0xa2 { Target::Eax } else { Target::None })
        }
        0xb0..=0xb7 => form(false, 1, if opcode == 0xb0 { Target::Eax } else { Target::None }),
        0xb8..=0xbf => form(false, if prefixes.is_wide() { 8 } else { full }, Target::None),
        0xc0 | 0xc1 | 0xc6 => form(true, 1, Target::Rm),
        0xc7 => form(true, full, Target::Rm),
        0xc2 => form(false, 2, Target::None),
        0xc8 => form(false, 3, Target::None),
        0xc3 | 0xc9 | 0xcc | 0xf4 | 0xf5 | 0xf8 | 0xf9 | 0xfc | 0xfd => form(false, 0, Target::None),
        0xe8 | 0xe9 => form(false, 4, Target::None),
        0xf6 | 0xf7 => {
            let size = if opcode == 0xf6 { 1 } else { full };
            match operation()? {
                0 | 1 => form(true, size, Target::None),
                2 | 3 => form(true, 0, Target::Rm),
                _ => form(true, 0, Target::Eax),
            }
        }
        0xfe => form(true, 0, if operation()? < 2 { Target::Rm } else { return None }),
        0xff => match operation()? {
            0 | 1 => form(true, 0, Target::Rm),
            2..=6 => form(true, 0, Target::None),
            _ => None,
        },
        _ => None,
    }
}

/// What an opcode of one byte does, where that is not simply to write to an operand.
fn first_effect(opcode: u8, rest: &[u8], prefixes: Prefixes) -> Option<Effect> {
    let modrm = rest.first().copied().unwrap_or(0);
    let (is_register, reg, rm) = (modrm >> 6 == 3, prefixes.reg(modrm), prefixes.rm(modrm));
    let low = opcode & 7 | (prefixes.rex & 1) << 3;
    let number = |bytes: Option<&[u8]>| bytes?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    match opcode {
        // xor or sub of a register with itself
        0x29 | 0x2b | 0x31 | 0x33 if is_register && reg == rm => Some(Effect::Constant(reg, 0)),
        0x50..=0x57 => Some(Effect::None),
        0x58..=0x5f => Some(Effect::Pop(low)),
        0x68 => number(Some(rest)).map(Effect::Push),
        0x6a => Some(Effect::Push(modrm.into())),
        0x89 if is_register => Some(Effect::Copy(rm, reg)),
        0x8b if is_register => Some(Effect::Copy(reg, rm)),
        0x8b => Some(Effect::Load(reg)),
        0xb8..=0xbf if prefixes.immediate() == 4 && !prefixes.is_wide() => {
            number(Some(rest)).map(|number| Effect::Constant(low, number))
        }
        // movabs: what does not fit is no number of a call.
        0xb8..=0xbf if prefixes.is_wide() && rest.get(4..8) == Some(&[0; 4]) => {
            number(Some(rest)).map(|number| Effect::Constant(low, number))
        }
        0xb8..=0xbf => Some(Effect::Writes(low, low)),
        0xc7 if is_register && prefixes.immediate() == 4 => {
            number(rest.get(1..)).map(|number| Effect::Constant(rm, number))
        }
        0xe8 => Some(Effect::Call),
        0xff if modrm >> 3 & 7 == 2 => Some(Effect::Call),
        0xff if matches!(modrm >> 3 & 7, 4 | 5) => Some(Effect::Ends),
        0xc2 | 0xc3 | 0xcc | 0xe9 | 0xeb | 0xf4 => Some(Effect::Ends),
        _ => None,
    }
}

/// Opcodes behind 0x0f.
fn second_map(opcode: u8) -> Option<Form> {
    match opcode {
        0x00
        | 0x02..=0x04
        | 0x06..=0x0a
        | 0x0c
        | 0x0e
        | 0x0f
        | 0x20..=0x27
        | 0x30
        | 0x32..=0x37
        | 0x39
        | 0x3b..=0x3f
        | 0x7a
        | 0x7b
        | 0xa6
        | 0xa7
        | 0xaa => None,
        0x31 | 0xa2 => form(false, 0, Target::Eax),
        0x05 | 0x0b | 0x77 | 0xa0 | 0xa1 | 0xa8 | 0xa9 => form(false, 0, Target::None),
        0xc8..=0xcf => form(false, 0, Target::None),
        0x80..=0x8f => form(false, 4, Target::None),
        0x40..=0x4f | 0x2c | 0x2d | 0x50 | 0xaf | 0xb6 | 0xb7 | 0xb8 | 0xbc..=0xbf | 0xd7 => form(true, 0, Target::Reg),
        0xc5 => form(true, 1, Target::Reg),
        0x7e | 0x90..=0x9f | 0xa5 | 0xab | 0xad | 0xb3 | 0xbb => form(true, 0, Target::Rm),
        0xa4 | 0xac | 0xba => form(true, 1, Target::Rm),
        0xb0 | 0xb1 => form(true, 0, Target::Eax),
        0xc0 | 0xc1 => form(true, 0, Target::Both),
        0x70..=0x73 | 0xc2 | 0xc4 | 0xc6 => form(true, 1, Target::None),
        _ => form(true, 0, Target::None),
    }
}

fn second_effect(opcode: u8) -> Option<Effect> {
    match opcode {
        // A system call puts its result there.
        0x05 => Some(Effect::Writes(EAX, EAX)),
        0x0b => Some(Effect::Ends),
        _ => None,
    }
}
