//! Any bytes, packed or not: the reader answers with a trace or an error, and what it accepts brings no later stage down.

#![no_main]

#[path = "../../crates/rematic-trace/tests/damaged/consume.rs"]
mod consume;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    consume::consume(bytes);
});
