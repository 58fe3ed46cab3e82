#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| beeline_fuzz::bridge::control(bytes));
