use super::*;

/// Instructions as a compiler puts them before a function.
const BEFORE: [u8; 112] = {
    // push rbp; mov rbp, rsp; mov rax, [rdi + 8]; test rax, rax; je; lea rsi, [rip]; ret
    const FUNCTION: [u8; 28] = [
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x8b, 0x47, 0x08, 0x48, 0x85, 0xc0, 0x0f, 0x84, 0x20, 0x01, 0x00, 0x00, 0x48,
        0x8d, 0x35, 0x44, 0x33, 0x22, 0x11, 0x5d, 0xc3, 0x66, 0x90,
    ];
    let mut bytes = [0; 112];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = FUNCTION[at % FUNCTION.len()];
        at += 1;
    }
    bytes
};

/// What comes after many a call: `cmp rax, -4095; jae; ret`, and the next function.
const AFTER: [u8; 24] = [
    0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x73, 0x01, 0xc3, 0xf7, 0xd8, 0xc3, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x8b, 0x47,
    0x08, 0x48, 0x85, 0xc0, 0xc3,
];

fn numbers(code: &[u8]) -> Vec<Number> {
    let mut found = Vec::new();
    each_call(&[&BEFORE, code, &AFTER].concat(), |number| found.push(number));
    found
}

fn told(code: &[u8], number: i64) {
    assert_eq!(numbers(code), [Number::Is(number as u32)], "{code:02x?}");
}

#[test]
fn numbers_are_told_however_they_get_there() {
    // mov eax, 1
    told(b"\xb8\x01\x00\x00\x00\x0f\x05", libc::SYS_write);
    // mov rax, 232
    told(b"\x48\xc7\xc0\xe8\x00\x00\x00\x0f\x05", libc::SYS_epoll_wait);
    // movabs rax, 7
    told(b"\x48\xb8\x07\x00\x00\x00\x00\x00\x00\x00\x0f\x05", libc::SYS_poll);
    // xor eax, eax, and the other way to write it
    told(b"\x31\xc0\x0f\x05", libc::SYS_read);
    told(b"\x33\xc0\x0f\x05", libc::SYS_read);
    // push 43; pop rax
    told(b"\x6a\x2b\x58\x0f\x05", libc::SYS_accept);
    // mov eax, 288, then arguments, of which one decides about a jump
    told(
        b"\xb8\x20\x01\x00\x00\x48\x89\xdf\x4c\x89\xf6\x85\xdb\x74\x02\x31\xd2\x45\x31\xd2\x0f\x05",
        libc::SYS_accept4,
    );
    // mov edx, 3; mov eax, edx
    told(b"\xba\x03\x00\x00\x00\x89\xd0\x0f\x05", libc::SYS_close);
    // mov r12d, 202, a loop, and mov eax, r12d
    told(&[b"\x41\xbc\xca\x00\x00\x00\xeb\x10".as_slice(), &BEFORE, b"\x44\x89\xe0\x0f\x05"].concat(), libc::SYS_futex);
}

#[test]
fn a_number_is_told_where_data_stands_before() {
    let code = [[0xff; 128].as_slice(), b"\xb8\xa9\x01\x00\x00\x0f\x05\xc3"].concat();
    let mut found = Vec::new();
    each_call(&code, |number| found.push(number));
    assert_eq!(found, [Number::Is(libc::SYS_io_uring_setup as u32)]);
}

#[test]
fn functions_that_make_any_call_are_told() {
    // mov rax, rdi; mov rdi, rsi; mov rsi, rdx; mov rdx, rcx; mov r10, r8
    let by_argument = b"\x48\x89\xf8\x48\x89\xf7\x48\x89\xd6\x48\x89\xca\x4d\x89\xc2\x0f\x05";
    assert_eq!(numbers(by_argument), [Number::Any]);
    // As Go does it: the number is in rax already. mov rdx, rdi; mov rsi, rcx; mov rdi, rbx
    assert_eq!(numbers(b"\xcc\xcc\x49\x89\xf2\x48\x89\xfa\x48\x89\xce\x48\x89\xdf\x0f\x05"), [Number::Any]);
    // On the stack: mov rdi, [rsp + 16]; mov rsi, [rsp + 24]; mov rax, [rsp + 8]
    assert_eq!(numbers(b"\x48\x8b\x7c\x24\x10\x48\x8b\x74\x24\x18\x48\x8b\x44\x24\x08\x0f\x05"), [Number::Any]);
    // A number that is calculated: neg rax
    assert_eq!(numbers(b"\xb8\x20\x01\x00\x00\x48\xf7\xd8\x0f\x05"), [Number::Unknown]);
}

#[test]
fn bytes_within_instructions_are_no_calls() {
    // je, call, lea and mov with these bytes in what they refer to
    for code in [
        b"\x0f\x84\x0f\x05\x00\x00".as_slice(),
        b"\xe8\x0f\x05\x00\x00",
        b"\x48\x8d\x05\x0f\x05\x00\x00",
        b"\x8b\x80\x0f\x05\x00\x00",
        b"\x31\xc0\xe9\x0f\x05\x00\x00",
        b"\xb8\x01\x00\x00\x00\xe8\x71\x0f\x05\x00",
    ] {
        assert_eq!(numbers(code), [], "{code:02x?}");
    }
}

#[test]
fn tables_are_no_calls() {
    let tables: [&[u8]; 4] = [
        b"\x73\x05\x00\x00\xd8\x05\x00\x00\x0f\x05\x00\x00",
        b"\xf4\x0f\x05\xff",
        b"\x4a\x1a\x00\xbd\x0f\x05\x53\x1a\x00\xbd\x0f\x02\x4a\x03\x00\xbd",
        b"\x05\x91\x22\x00\xa7\x0f\x05\x89\x22\x00\xf5\x0d",
    ];
    for table in tables {
        let mut carried = Carried::default();
        look(&table.repeat(64), &mut carried);
        assert_eq!(carried, Carried::default(), "{table:02x?}");
    }
}

#[test]
fn the_place_in_the_text_does_not_matter() {
    // Searching goes in steps: the two bytes stand at each distance from the end of one, and at both ends of the text.
    for start in 0..40 {
        for end in 0..20 {
            let code =
                [[0x90; 40].get(..start).unwrap(), &BEFORE, b"\xb8\x07\x00\x00\x00\x0f\x05", &AFTER[..end]].concat();
            let mut found = Vec::new();
            each_call(&code, |number| found.push(number));
            assert_eq!(found, [Number::Is(libc::SYS_poll as u32)], "{start} {end}");
        }
    }
    each_call(b"\x0f\x05", |number| assert_eq!(number, Number::Unknown));
    each_call(b"\x0f", |_| panic!("there is none"));
    each_call(b"", |_| panic!("there is none"));
}

#[test]
fn what_is_carried_decides() {
    let carried = |calls: &[i64]| {
        let code: Vec<u8> = calls
            .iter()
            .flat_map(|number| {
                [&BEFORE, b"\xb8".as_slice(), &(*number as u32).to_le_bytes(), b"\x0f\x05", &AFTER].concat()
            })
            .collect();
        let mut carried = Carried::default();
        look(&code, &mut carried);
        carried.reason()
    };
    use libc::{
        SYS_close, SYS_epoll_wait, SYS_futex, SYS_getrandom, SYS_io_submit, SYS_io_uring_setup, SYS_ptrace, SYS_read,
        SYS_recvmsg,
    };
    assert_eq!(carried(&[SYS_futex, SYS_getrandom, SYS_ptrace, 100_000]), None);
    assert_eq!(carried(&[SYS_futex, SYS_epoll_wait]), Some(Reason::RawSystemCalls));
    assert_eq!(carried(&[SYS_read]), Some(Reason::RawSystemCalls));
    assert_eq!(carried(&[SYS_io_submit]), Some(Reason::RawSystemCalls));
    // Who looks at other threads reads its files alone, and still is no user of sockets.
    assert_eq!(carried(&[SYS_read, SYS_close, SYS_ptrace]), None);
    assert_eq!(carried(&[SYS_read, SYS_ptrace, SYS_recvmsg]), Some(Reason::RawSystemCalls));
    assert_eq!(carried(&[SYS_epoll_wait, SYS_io_uring_setup]), Some(Reason::IoUringCarried));
}

#[test]
fn lengths_are_those_of_the_assembler() {
    // Pairs of an instruction and the opcode map it tests; one after the other, so that a wrong length shows in all
    // that follow.
    let code: [&[u8]; 24] = [
        b"\x48\xb8\x01\x02\x03\x04\x05\x06\x07\x08", // movabs
        b"\x66\xb8\x01\x02",                         // mov ax, imm16
        b"\x66\x81\xc1\x01\x02",                     // add cx, imm16
        b"\x48\x81\xc1\x01\x02\x03\x04",             // add rcx, imm32
        b"\xf6\x44\x24\x08\x01",                     // test byte [rsp + 8], 1
        b"\xf7\xd8",                                 // neg eax
        b"\xf7\x05\x01\x02\x03\x04\x05\x06\x07\x08", // test dword [rip], imm32
        b"\xc7\x84\x24\x01\x02\x03\x04\x05\x06\x07\x08",
        b"\x0f\x1f\x84\x00\x01\x02\x03\x04", // nop
        b"\x66\x0f\x38\x00\xc1",             // pshufb
        b"\x66\x0f\x3a\x0f\xc1\x08",         // palignr
        b"\xc5\xf8\x77",                     // vzeroupper
        b"\xc4\xe2\x7d\x18\x05\x01\x02\x03\x04",
        b"\xc4\xe3\x7d\x39\xc1\x01",
        b"\x62\xf1\x7c\x48\x28\x07",
        b"\xf3\x48\x0f\xb8\xc1", // popcnt
        b"\x64\x48\x8b\x04\x25\x01\x02\x03\x04",
        b"\xf0\x0f\xb1\x0f", // lock cmpxchg
        b"\x41\xff\x24\xc4", // jmp [r12 + rax * 8]
        b"\xc8\x01\x02\x03", // enter
        b"\x69\xc1\x01\x02\x03\x04",
        b"\x6b\xc1\x01",
        b"\xd9\x05\x01\x02\x03\x04", // fld
        b"\xf3\x0f\x1e\xfa",         // endbr64
    ];
    for instruction in code {
        let length = decode(&[instruction, &[0x90; 16]].concat()).map(|decoded| usize::from(decoded.length));
        assert_eq!(length, Some(instruction.len()), "{instruction:02x?}");
        for cut in 0..instruction.len() {
            let part = instruction.get(..cut).unwrap();
            assert!(decode(part).is_none_or(|decoded| usize::from(decoded.length) <= cut), "{part:02x?}");
        }
    }
}

/// Whatever the bytes are, looking at them ends and stays within them.
#[test]
fn anything_may_be_looked_at() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..300 {
        let bytes: Vec<u8> = (0..400)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Many of the two bytes that are looked for.
                if state >> 60 < 4 { SYSCALL[(state >> 59 & 1) as usize] } else { (state >> 32) as u8 }
            })
            .collect();
        look(&bytes, &mut Carried::default());
    }
}
