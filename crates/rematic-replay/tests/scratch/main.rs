//! What the rules say that operators take for themselves is what they took of torch's allocator.
//!
//! `tests/allocator/scratch.py` makes the measurements, `tests/allocator/predictions operators` those of the repository.
//! `REMATIC_SCRATCH` names a file with others.

mod reader;

use std::collections::BTreeMap;

use reader::{Measured, Step};
use rematic_replay::{Architecture, Scratch, Use};
use rematic_trace::{Category, Flags, Layout, OpRecord, Phase, StepTrace, Tensor};

/// A step of one operator.
fn step(measured: &Measured) -> StepTrace {
    let mut trace = StepTrace::new("one operator");
    let bytes = |layout: &Layout| layout.elements() * layout.dtype.size();
    let mut inputs = Vec::new();
    for layout in &measured.inputs {
        let id = trace.layout(layout);
        inputs.push(Tensor { storage: trace.storage_before_step(bytes(layout), Category::Other), layout: id });
    }
    let first = trace.next_storage().index();
    let (mut outputs, mut births) = (Vec::new(), Vec::new());
    for (number, layout) in measured.outputs.iter().enumerate() {
        let id = trace.layout(layout);
        outputs.push(Tensor { storage: rematic_trace::StorageId::new(first + number), layout: id });
        births.push((bytes(layout), Category::Activation));
    }
    trace.run(OpRecord {
        name: &measured.operator,
        phase: if measured.backward { Phase::Backward } else { Phase::Forward },
        call: None,
        differentiates: None,
        flags: Flags { random: measured.random, ..Flags::default() },
        mutates: &[],
        inputs: &inputs,
        outputs: &outputs,
        saves: &[],
        births: &births,
    });
    trace
}

/// What the rules say, in the words of a measurement.
fn predicted(measured: &Measured) -> Vec<Step> {
    with_cudnn(measured, false)
}

fn with_cudnn(measured: &Measured, cudnn: bool) -> Vec<Step> {
    let trace = step(measured);
    let architecture = Architecture { capability: measured.capability, processors: measured.processors, cudnn };
    let scratch = Scratch::new(&trace, Some(architecture));
    let (op, _) = trace.ops().entries().next().expect("one operator");
    let mut taken = 0;
    // The largest output alone is compared.
    let sizes = measured.outputs.iter().map(|layout| layout.elements() * layout.dtype.size());
    let largest = sizes.enumerate().max_by_key(|(at, size)| (*size, std::cmp::Reverse(*at))).map_or(0, |(at, _)| at);
    let steps =
        scratch.of(op).iter().filter(|each| !matches!(each, Use::Output(at) | Use::OnHost(at) if *at != largest));
    let steps = steps.map(|each| match *each {
        Use::Outputs | Use::Output(_) | Use::OnHost(_) => Step::Outputs,
        Use::Take(bytes) => {
            taken += 1;
            Step::Take(bytes)
        }
        Use::Give(back) => Step::Give(taken - 1 - back),
    });
    let steps: Vec<Step> = steps.collect();
    // Without scratch there is nothing to say.
    if steps.is_empty() { measured.outputs_only() } else { steps }
}

#[test]
fn operators_take_what_they_took_of_torchs_allocator() {
    let all = reader::read();
    let mut wrong: BTreeMap<&str, (usize, usize, String)> = BTreeMap::new();
    for measured in &all {
        let said = predicted(measured);
        let (count, differing, example) = wrong.entry(&measured.operator).or_default();
        *count += 1;
        if said != measured.steps {
            *differing += 1;
            if *differing <= 3 {
                *example += &format!("  {}\n    rule {}\n", measured.line, Step::listed(&said));
            }
        }
    }
    assert!(all.len() > 1000, "only {} calls were compared", all.len());
    let shown: String = wrong
        .iter()
        .filter(|(_, (_, differing, _))| *differing > 0)
        .map(|(operator, (count, differing, example))| format!("{operator}: {differing} of {count} differ\n{example}"))
        .collect();
    assert!(shown.is_empty(), "{shown}");
}

/// What PyTorch takes for cuDNN's attention, with its functions answered (`docs/rehearsal.md`): nothing in forward, and in backward one
/// workspace, for each query a row of its gradient in 32 bits and a sum. 2,129,920 bytes for 2 x 8 x 512 queries 64 wide.
#[test]
fn cudnns_attention_takes_one_workspace_on_the_cards_that_prefer_it() {
    let mut seen = 0;
    for measured in reader::read().iter().filter(|each| each.operator.contains("flash_attention_backward")) {
        let [batch, heads, queries, width] = measured.inputs[1].shape[..] else { continue };
        let workspace = batch * heads * queries * (width + 1) * 4;
        let takes_such = (width <= 128 || width == 256) && measured.inputs[2].shape[2] != 1;
        let own = vec![Step::Outputs, Step::Take(workspace), Step::Give(0)];
        let prefers = (90..110).contains(&measured.capability) && takes_such;
        let expected = if prefers { own } else { predicted(measured) };
        assert_eq!(with_cudnn(measured, true), expected, "{}", measured.line);
        seen += usize::from(prefers);
    }
    assert!(seen > 0);
}
