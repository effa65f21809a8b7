//! Damaged traces: whatever the bytes, the reader answers with a trace or an error, and what it accepts brings no later
//! stage down. The tests are built with overflow checks.

mod consume;
mod damage;
#[path = "../fsdp2/mod.rs"]
mod fsdp2;

use std::path::Path;
use std::sync::LazyLock;

use damage::{Wound, wound};
use proptest::prelude::*;
use rematic_fake::models::{Model, Options};
use rematic_fake::{AttentionKernel, Optimizer};
use rematic_trace::StepTrace;
use serde_json::Value;

use crate::consume::consume;

/// A second each; `PROPTEST_CASES` asks for more.
const CASES: u32 = 1000;

/// Small traces as JSON: with fused attention, with many views and casts, and one rank's under FSDP2 with all that version 2
/// brought.
static TRACES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let options = |attention, optimizer| Options {
        batch: Some(2),
        seq: Some(4),
        layers: Some(1),
        dim: Some(8),
        heads: Some(2),
        vocab: Some(16),
        attention: Some(attention),
        optimizer: Some(optimizer),
        ..Options::default()
    };
    [(AttentionKernel::Auto, Optimizer::Adam), (AttentionKernel::Math, Optimizer::Sgd)]
        .into_iter()
        .map(|(attention, optimizer)| {
            let model = Model::builtin("seed-transformer").unwrap().with(&options(attention, optimizer)).unwrap();
            model.trace().unwrap()
        })
        .chain([fsdp2::step()])
        .map(|trace| {
            let mut text = Vec::new();
            trace.to_writer(&mut text).unwrap();
            text
        })
        .collect()
});

static PARSED: LazyLock<Vec<Value>> =
    LazyLock::new(|| TRACES.iter().map(|text| serde_json::from_slice(text).unwrap()).collect());

#[derive(Clone, Debug)]
enum Bytes {
    Flip(prop::sample::Index, u8),
    Delete(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Truncate(prop::sample::Index),
}

fn bytes_damage() -> impl Strategy<Value = Bytes> {
    // Digits and punctuation keep the text near JSON; any byte does not.
    let telling = prop::sample::select(b"0123456789-.eE\"[]{},:tfn \\".to_vec());
    let insert = prop_oneof![
        prop::collection::vec(telling, 1..6),
        prop::collection::vec(any::<u8>(), 1..4),
        Just(b"[".repeat(200))
    ];
    prop_oneof![
        (any::<prop::sample::Index>(), 1..=u8::MAX).prop_map(|(at, mask)| Bytes::Flip(at, mask)),
        (any::<prop::sample::Index>(), 1..20_usize).prop_map(|(at, count)| Bytes::Delete(at, count)),
        (any::<prop::sample::Index>(), insert).prop_map(|(at, bytes)| Bytes::Insert(at, bytes)),
        any::<prop::sample::Index>().prop_map(Bytes::Truncate),
    ]
}

fn damaged(mut text: Vec<u8>, damage: &[Bytes]) -> Vec<u8> {
    for damage in damage {
        if text.is_empty() {
            break;
        }
        match damage {
            Bytes::Flip(at, mask) => {
                let at = at.index(text.len());
                text[at] ^= mask;
            }
            Bytes::Delete(at, count) => {
                let at = at.index(text.len());
                let end = (at + count).min(text.len());
                text.drain(at..end);
            }
            Bytes::Insert(at, bytes) => {
                let at = at.index(text.len());
                text.splice(at..at, bytes.iter().copied());
            }
            Bytes::Truncate(at) => text.truncate(at.index(text.len())),
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES.max(ProptestConfig::default().cases), ..ProptestConfig::default() })]

    #[test]
    fn damaged_bytes_are_read_or_refused(
        which in 0..3_usize,
        damage in prop::collection::vec(bytes_damage(), 1..4),
    ) {
        consume(&damaged(TRACES[which].clone(), &damage));
    }

    #[test]
    fn bytes_that_never_were_a_trace_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert!(!consume(&bytes));
    }

    #[test]
    fn damaged_structure_is_read_or_refused(
        which in 0..3_usize,
        wounds in prop::collection::vec(Wound::any(), 1..3),
    ) {
        let mut trace = PARSED[which].clone();
        for each in &wounds {
            wound(&mut trace, each);
        }
        consume(trace.to_string().as_bytes());
    }

    /// The reader alone, on the smallest trace with everything in it: fast enough for a million cases.
    #[test]
    fn the_reader_reads_or_refuses(
        wounds in prop::collection::vec(prop_oneof![Wound::any(), Wound::of_contents()], 0..3),
        damage in prop::collection::vec(bytes_damage(), 0..2),
    ) {
        let mut trace = PARSED[2].clone();
        for each in &wounds {
            wound(&mut trace, each);
        }
        if let Ok(read) = StepTrace::from_json(&damaged(trace.to_string().into_bytes(), &damage), Path::new("damaged.rmt")) {
            let mut text = Vec::new();
            read.to_writer(&mut text).unwrap();
            prop_assert!(StepTrace::from_json(&text, Path::new("again.rmt")).unwrap() == read);
        }
    }

    /// Rows that mean something else but may still be valid: sizes, shapes, strides, names, flags, categories.
    #[test]
    fn other_contents_in_a_valid_frame_are_read_or_refused(
        which in 0..3_usize,
        wounds in prop::collection::vec(Wound::of_contents(), 1..4),
    ) {
        let mut trace = PARSED[which].clone();
        for each in &wounds {
            wound(&mut trace, each);
        }
        consume(trace.to_string().as_bytes());
    }
}

/// An expanded tensor may have far more elements than its storage has bytes: sums over parameters must not overflow.
#[test]
fn every_parameter_may_be_expanded() {
    let mut trace = PARSED[0].clone();
    for layout in trace["layouts"].as_array_mut().unwrap() {
        *layout = serde_json::json!(["f8", [1_u64 << 61], [0]]);
    }
    assert!(consume(trace.to_string().as_bytes()));
}

/// The tests above mean something only if the traces are good before they are damaged, and some still are after.
#[test]
fn some_damage_leaves_a_trace() {
    assert!(TRACES.iter().all(|text| consume(text)));
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let accepted = |strategy: &dyn Fn() -> BoxedStrategy<Wound>, runner: &mut proptest::test_runner::TestRunner| {
        let tries = (0..200).filter(|_| {
            let mut trace = PARSED[0].clone();
            wound(&mut trace, &strategy().new_tree(runner).unwrap().current());
            StepTrace::from_json(trace.to_string().as_bytes(), Path::new("damaged.rmt")).is_ok()
        });
        tries.count()
    };
    let (any, contents) = (accepted(&Wound::any, &mut runner), accepted(&Wound::of_contents, &mut runner));
    assert!((10..190).contains(&any), "{any} of 200");
    assert!((40..190).contains(&contents), "{contents} of 200");
}
