//! Never a panic: see `palisade_lab::decoders`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| palisade_lab::decoders::run("log_file", bytes));
