//! System calls in text: where a program asks the kernel itself, and for what.
//!
//! On x86-64 such a place is the instruction `syscall`, two bytes that stand in text by chance, too: in displacements
//! of jumps and calls most of all. So what stands before it is decoded, from each of [`WINDOW`] bytes on. Decoding that
//! begins in the middle of an instruction falls into step after a few, so a real one is where most of these ways meet
//! ([`is_met`]), and the common end of these ways tells what number is in `eax`.
//!
//! Where ways do not meet because a function has just begun after data, a number that is moved into `eax` as a constant
//! of four bytes is proof enough.

mod calls;
mod decode;

use beeline_stats::Reason;

use self::calls::{Kind, kind};
use self::decode::{Effect, decode};

/// Bytes before a call in which its number is looked for.
const WINDOW: usize = 96;
/// Bytes before it in which a number may have been put into a register where it stays.
const KEPT_NEAR: usize = 1024;
/// The longest instruction.
const INSTRUCTION_MAX: usize = 15;
const EAX: u8 = 0;
const EDI: u8 = 7;
/// Registers that hold the number and the arguments of a call: rax, rdi, rsi, rdx, r10, r8, r9.
const OF_CALLS: [u8; 7] = [0, 7, 6, 2, 10, 8, 9];
/// Moves to them, at least, before a call that may be any.
const MOVES_MIN: u32 = 2;
/// Registers that a function need not leave as they are.
const SCRATCH: [u8; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];
/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// What text carries of system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    ring: bool,
    socket: bool,
    descriptor: bool,
    trace: bool,
}

impl Carried {
    /// Whether it makes rings of io_uring(7).
    #[must_use]
    pub fn has_rings(&self) -> bool {
        self.ring
    }

    /// Why a program with this in its text cannot have lanes, if it cannot.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        if self.ring {
            return Some(Reason::IoUringCarried);
        }
        (self.socket || self.descriptor && !self.trace).then_some(Reason::RawSystemCalls)
    }
}

/// Looks for system calls in text.
pub fn look(text: &[u8], carried: &mut Carried) {
    each_call(text, |number| match number {
        Number::Is(number) => match kind(number) {
            Kind::Ring => carried.ring = true,
            Kind::Socket => carried.socket = true,
            Kind::Descriptor => carried.descriptor = true,
            Kind::Trace => carried.trace = true,
            Kind::Harmless => {}
        },
        Number::Any => carried.socket = true,
        Number::Unknown => {}
    });
}

/// Calls `f` with the number of each system call in `text`.
fn each_call(text: &[u8], mut f: impl FnMut(Number)) {
    each_syscall(text, |at| {
        if let Some(number) = Ways::to(text, at).number() {
            f(number);
        }
    });
}

/// Calls `f` with each place where the bytes of the instruction stand.
#[cfg(target_arch = "x86_64")]
fn each_syscall(text: &[u8], mut f: impl FnMut(usize)) {
    use core::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
    };
    const STEP: usize = 16;
    let mut at = 0usize;
    while let Some(bytes) = text.get(at..at.wrapping_add(STEP + 1)) {
        // SAFETY: SSE2 is part of x86-64, and both loads are of bytes of the slice.
        let mut found = unsafe {
            let first = _mm_loadu_si128(bytes.as_ptr().cast::<__m128i>());
            let second = _mm_loadu_si128(bytes.as_ptr().add(1).cast::<__m128i>());
            _mm_movemask_epi8(_mm_and_si128(
                _mm_cmpeq_epi8(first, _mm_set1_epi8(SYSCALL[0] as i8)),
                _mm_cmpeq_epi8(second, _mm_set1_epi8(SYSCALL[1] as i8)),
            ))
        };
        while found != 0 {
            f(at.wrapping_add(found.trailing_zeros() as usize));
            found &= found.wrapping_sub(1);
        }
        at = at.wrapping_add(STEP);
    }
    let rest = text.get(at..).unwrap_or_default();
    for (place, _) in rest.windows(SYSCALL.len()).enumerate().filter(|(_, bytes)| *bytes == SYSCALL) {
        f(at.wrapping_add(place));
    }
}

/// Other machines' calls are not looked for.
#[cfg(not(target_arch = "x86_64"))]
fn each_syscall(_: &[u8], _: impl FnMut(usize)) {}

/// The number of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// This one.
    Is(u32),
    /// The caller's choice: the place is in a function that makes any call.
    Any,
    /// Not to be told.
    Unknown,
}

/// Where the content of a register is from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Constant(u32),
    /// What a register held where following began.
    Register(u8),
    Memory,
    /// A calculation, a function or another call.
    Elsewhere,
}

/// The ways that decoding takes to a place.
struct Ways<'a> {
    /// All that stands before it.
    text: &'a [u8],
    /// The last bytes of that.
    before: &'a [u8],
    /// What stands behind it.
    after: &'a [u8],
    /// For each of them: the length of the instruction that begins there, if it leads to the place.
    lengths: [u8; WINDOW],
    /// How many lead there of those that begin in the first half, and how many do not.
    meet: usize,
    miss: usize,
}

impl<'a> Ways<'a> {
    fn to(text: &'a [u8], at: usize) -> Self {
        let from = at.saturating_sub(WINDOW);
        let before = text.get(from..at).unwrap_or_default();
        // Instructions of the last bytes may reach beyond the place.
        let reach = text.get(from..at.saturating_add(INSTRUCTION_MAX)).or(text.get(from..)).unwrap_or_default();
        let after = text.get(at.saturating_add(SYSCALL.len())..).unwrap_or_default();
        let mut ways =
            Self { text: text.get(..at).unwrap_or_default(), before, after, lengths: [0; WINDOW], meet: 0, miss: 0 };
        for start in (0..before.len()).rev() {
            let length = reach.get(start..).and_then(decode).map_or(0, |instruction| instruction.length);
            let next = start.wrapping_add(length.into());
            let leads = length != 0 && (next == before.len() || next < before.len() && ways.length(next) != 0);
            if leads && let Some(place) = ways.lengths.get_mut(start) {
                *place = length;
            }
            if start < before.len() / 2 && length != 0 {
                ways.meet = ways.meet.wrapping_add(leads.into());
                ways.miss = ways.miss.wrapping_add((!leads).into());
            }
        }
        ways
    }

    fn length(&self, start: usize) -> u8 {
        self.lengths.get(start).copied().unwrap_or(0)
    }

    /// The number of the call; `None` if there is no call.
    fn number(&self) -> Option<Number> {
        if self.meet > self.miss {
            // All ways join, so the first is as good as any.
            return Some(self.follow((0..WINDOW).find(|start| self.length(*start) != 0)?));
        }
        (0..WINDOW).filter(|start| self.length(*start) != 0).find_map(|start| {
            let code = self.before.get(start..)?;
            let is_constant = code.starts_with(&[0xb8]) || code.starts_with(&[0x48, 0xc7, 0xc0]);
            match self.follow(start) {
                number @ Number::Is(_) if is_constant => Some(number),
                _ => None,
            }
        })
    }

    /// What is in `eax` at the end of the way that begins at `start`.
    fn follow(&self, start: usize) -> Number {
        let mut state = State::default();
        let mut at = start;
        while at < self.before.len() {
            let Some(instruction) = self.before.get(at..).and_then(decode) else { return Number::Unknown };
            state.apply(instruction.effect);
            at = at.wrapping_add(instruction.length.into());
        }
        match state.get(EAX) {
            Source::Constant(number) => Number::Is(number),
            Source::Register(EAX | EDI) | Source::Memory if state.moves >= MOVES_MIN && self.goes_on() => Number::Any,
            Source::Register(register) => self.constant(register).map_or(Number::Unknown, Number::Is),
            Source::Memory | Source::Elsewhere => Number::Unknown,
        }
    }

    /// Whether what follows the call looks at its result, puts it away or returns, as it does where any call is made.
    fn goes_on(&self) -> bool {
        let starts_well = match *self.after.first_chunk::<3>().unwrap_or(&[0; 3]) {
            // ret, leave, pop
            [0xc3 | 0xc9 | 0x58..=0x5f, ..] => true,
            // cmp, test, mov, movsxd, cdqe
            [0x48 | 0x49 | 0x41, 0x3d | 0x81 | 0x83 | 0x85 | 0x89 | 0x8b | 0x63 | 0x98, _] => true,
            [0x85 | 0x89, 0xc0..=0xff, _] | [0x83, 0xf8, _] | [0x3d, ..] | [0x41, 0x50..=0x5f, _] => true,
            _ => false,
        };
        let mut rest = self.after;
        for _ in 0..3 {
            match decode(rest) {
                Some(instruction) if instruction.effect == Effect::Ends => break,
                Some(instruction) => rest = rest.get(instruction.length.into()..).unwrap_or_default(),
                // The text may end before.
                None if rest.len() < INSTRUCTION_MAX => break,
                None => return false,
            }
        }
        starts_well
    }

    /// The number that was last moved into a register in the text before: compilers keep one there that they need
    /// repeatedly.
    fn constant(&self, register: u8) -> Option<u32> {
        let near = self.text.get(self.text.len().saturating_sub(KEPT_NEAR)..)?;
        let opcode = 0xb8 | register & 7;
        near.windows(6).rev().find_map(|bytes| match *bytes {
            [prefix, code, low, high @ 0..=3, 0, 0] if code == opcode && (prefix == 0x41) == (register >= 8) => {
                Some(u32::from(u16::from_le_bytes([low, high])))
            }
            _ => None,
        })
    }
}

/// What registers hold.
struct State {
    registers: [Source; 16],
    pushed: Source,
    /// How many of the last instructions, in a row, have moved something into a register of a call.
    moves: u32,
}

impl Default for State {
    fn default() -> Self {
        Self {
            registers: core::array::from_fn(|register| Source::Register(register as u8)),
            pushed: Source::Elsewhere,
            moves: 0,
        }
    }
}

impl State {
    fn get(&self, register: u8) -> Source {
        self.registers.get(usize::from(register)).copied().unwrap_or(Source::Elsewhere)
    }

    fn set(&mut self, register: u8, source: Source) {
        if let Some(place) = self.registers.get_mut(usize::from(register)) {
            *place = source;
        }
    }

    fn move_to(&mut self, register: u8, source: Source) {
        self.moves = if OF_CALLS.contains(&register) { self.moves.saturating_add(1) } else { 0 };
        self.set(register, source);
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Constant(register, number) => return self.move_to(register, Source::Constant(number)),
            Effect::Copy(to, from) => return self.move_to(to, self.get(from)),
            Effect::Load(register) => return self.move_to(register, Source::Memory),
            Effect::None => {}
            Effect::Push(number) => self.pushed = Source::Constant(number),
            Effect::Pop(register) => {
                let pushed = core::mem::replace(&mut self.pushed, Source::Elsewhere);
                self.set(register, pushed);
            }
            Effect::Writes(first, second) => {
                self.set(first, Source::Elsewhere);
                self.set(second, Source::Elsewhere);
            }
            Effect::Call => SCRATCH.iter().for_each(|register| self.set(*register, Source::Elsewhere)),
            Effect::Ends => *self = Self::default(),
        }
        self.moves = 0;
    }
}

#[cfg(test)]
mod tests;
