use rematic_plan::{Explanation, Remedy, RemedyKind};
use rematic_replay::Allocator;
use rematic_trace::{Bytes, Category, Millis, Phase};

use super::script::{Action, Script};
use super::{explain_with, remedy};

fn explain(script: &Script) -> Explanation {
    explain_with(&script.trace, Allocator::Cpu, 1)
}

/// Bytes of a 32-bit float.
const FLOAT: u64 = 4;

/// A projection onto a vocabulary of 32 from 16 rows of width 4, its loss, and the loss's gradient.
fn with_loss() -> Script {
    let mut script = Script::new();
    let weight = script.before(&[4, 32], Category::Parameter);
    let input = script.before(&[16, 4], Category::Other);
    let (_, hidden) = script.forward("relu.default", &[input], &[16, 4]);
    let (_, logits) = script.forward("mm.default", &[hidden, weight], &[16, 32]);
    let (softmax, scores) = script.forward("_log_softmax.default", &[logits], &[16, 32]);
    let (nll, loss) = script.forward("nll_loss_forward.default", &[scores, input], &[1]);
    let gradient = script.backward("nll_loss_backward.default", nll, &[loss, scores], &[16, 32]);
    let inner = script.backward("_log_softmax_backward_data.default", softmax, &[gradient, scores], &[16, 32]);
    for tensor in [gradient, scores, logits, inner, loss, hidden] {
        script.drop(tensor);
    }
    script
}

#[test]
fn a_loss_in_chunks_keeps_an_eighth_of_what_has_its_size() {
    let explanation = explain(&with_loss());
    // The weight, the input, the hidden state and the loss; and four times the logits.
    let (rest, logits) = ((4 * 32 + 2 * 16 * 4 + 1) * FLOAT, 16 * 32 * FLOAT);
    assert_eq!(explanation.peak_bytes, Bytes(rest + 4 * logits));
    assert_eq!(explanation.at.words, "in backward, when the loss's gradient is computed");
    let chunked = remedy(&explanation, RemedyKind::ChunkedLoss).unwrap();
    assert_eq!(chunked.peak_bytes, Bytes(rest + 4 * logits / 8));
    assert_eq!(chunked.freed_bytes, Bytes(4 * logits / 8 * 7));
    // The projection, the softmax and the loss run again, each with a launch.
    assert!(chunked.extra_ms.unwrap() > Millis(3.0 * 0.9e-3), "{:?}", chunked.extra_ms);
}

#[test]
fn what_is_alive_adds_up_to_the_peak() {
    let explanation = explain(&with_loss());
    let residents: Bytes = explanation.residents.iter().map(|group| group.bytes).sum();
    let categories: Bytes = explanation.categories.iter().map(|part| part.bytes).sum();
    assert_eq!((residents, categories), (explanation.peak_bytes, explanation.peak_bytes));
    let largest = &explanation.residents[0];
    assert_eq!((largest.bytes, largest.count), (Bytes(16 * 32 * FLOAT), 1));
}

#[test]
fn a_loss_without_a_vocabulary_is_left_alone() {
    let mut script = Script::new();
    let input = script.before(&[16, 4], Category::Other);
    let (_, hidden) = script.forward("relu.default", &[input], &[16, 4]);
    script.forward("mean.default", &[hidden], &[1]);
    assert!(remedy(&explain(&script), RemedyKind::ChunkedLoss).is_none());
}

fn optimizer_step(script: &mut Script) {
    let states: Vec<_> = [8192, 5000, 100].map(|count| script.before(&[count], Category::Optimizer)).to_vec();
    let makes: [&[u64]; 3] = [&[8192], &[5000], &[100]];
    let action = Action {
        name: "_foreach_sqrt.default",
        phase: Phase::Optimizer,
        reads: &states,
        makes: &makes,
        differentiates: None,
    };
    let (_, roots) = script.run(action);
    roots.into_iter().for_each(|root| script.drop(root));
}

#[test]
fn one_parameter_after_the_other_keeps_the_largest_temporary() {
    let mut script = Script::new();
    optimizer_step(&mut script);
    let explanation = explain(&script);
    let states = (8192 + 5000 + 100) * FLOAT;
    assert_eq!(explanation.peak_bytes, Bytes(2 * states));
    assert_eq!(explanation.at.words, "when the optimizer steps");
    let temporaries = remedy(&explanation, RemedyKind::OptimizerTemporaries).unwrap();
    assert_eq!(temporaries.peak_bytes, Bytes(states + 8192 * FLOAT));
    assert_eq!(temporaries.extra_ms, Some(Millis(0.0)));
}

#[test]
fn state_in_8_bits_has_a_scale_for_every_block() {
    let mut script = Script::new();
    optimizer_step(&mut script);
    let state = remedy(&explain(&script), RemedyKind::OptimizerState).cloned().unwrap();
    // 32 and 20 blocks; the third state is too small.
    let quantized = 8192 + 32 * FLOAT + 5000 + 20 * FLOAT + 100 * FLOAT;
    assert_eq!(state.peak_bytes, Bytes((8192 + 5000 + 100) * FLOAT + quantized));
}

#[test]
fn a_remedy_that_only_moves_the_peak_is_not_shown() {
    let mut script = Script::new();
    let previous = script.before(&[1000], Category::Activation);
    let input = script.before(&[1, 10], Category::Other);
    let (_, output) = script.forward("relu.default", &[input], &[1000]);
    script.drop(previous);
    // As much as at the previous output, but without it.
    let (_, other) = script.forward("relu.default", &[output], &[1000]);
    script.drop(other);
    let explanation = explain(&script);
    assert_eq!(explanation.peak_bytes, Bytes(2010 * FLOAT));
    assert_eq!(explanation.remedies, []);
    assert_eq!(explanation.together, None);
}

#[test]
fn the_previous_output_goes_for_free() {
    let mut script = Script::new();
    let previous = script.before(&[1000], Category::Activation);
    let input = script.before(&[10], Category::Other);
    let (_, output) = script.forward("relu.default", &[input], &[1000]);
    script.drop(previous);
    script.drop(output);
    let explanation = explain(&script);
    let previous = remedy(&explanation, RemedyKind::PreviousOutput).unwrap();
    assert_eq!((previous.peak_bytes, previous.freed_bytes), (Bytes(1010 * FLOAT), Bytes(1000 * FLOAT)));
}

/// Two products of many matrices with a softmax between them; or a router, whose scores choose and are not multiplied.
fn with_softmax(attends: bool) -> Script {
    let mut script = Script::new();
    let query = script.before(&[1, 64, 8], Category::Other);
    let (_, scores) = script.forward("bmm.default", &[query, query], &[1, 64, 64]);
    let (softmax, weights) = script.forward("_softmax.default", &[scores], &[1, 64, 64]);
    let last = if attends { "bmm.default" } else { "topk.default" };
    let (product, result) = script.forward(last, &[weights, query], &[1, 64, 8]);
    let of_weights = script.backward("bmm.default", product, &[result, query], &[1, 64, 64]);
    let of_scores = script.backward("_softmax_backward_data.default", softmax, &[of_weights, weights], &[1, 64, 64]);
    for tensor in [of_weights, weights, scores, of_scores, result] {
        script.drop(tensor);
    }
    script
}

#[test]
fn fused_attention_keeps_a_number_of_each_row() {
    let explanation = explain(&with_softmax(true));
    let (square, rest) = (64 * 64 * FLOAT, 2 * 64 * 8 * FLOAT);
    assert_eq!(explanation.peak_bytes, Bytes(4 * square + rest));
    let fused = remedy(&explanation, RemedyKind::FusedAttention).unwrap();
    assert_eq!(fused.peak_bytes, Bytes(rest + 64 * FLOAT));
    assert_eq!(remedy(&explain(&with_softmax(false)), RemedyKind::FusedAttention), None);
}

#[test]
fn gradients_of_the_first_half_stay() {
    let mut script = Script::new();
    let weight = script.before(&[10, 10], Category::Parameter);
    let input = script.before(&[4, 10], Category::Other);
    let (mm, output) = script.forward("mm.default", &[input, weight], &[4, 10]);
    let (relu, activation) = script.forward("relu.default", &[output], &[4, 1000]);
    let inner = script.backward("threshold_backward.default", relu, &[activation], &[4, 10]);
    let gradient = script.backward("mm.default", mm, &[input, inner], &[10, 10]);
    script.trace.push(rematic_trace::Event::Recategorize(gradient.storage, Category::Gradient));
    for tensor in [inner, output, activation] {
        script.drop(tensor);
    }
    let explanation = explain(&script);
    // Weight, input, output, activation, its gradient and that of the weight.
    assert_eq!(explanation.peak_bytes, Bytes((100 + 40 + 40 + 4000 + 40 + 100) * FLOAT));
    let halved = remedy(&explanation, RemedyKind::GradientAccumulation).unwrap();
    // The second half finds the first half's gradient, and makes its own before it is added.
    assert_eq!(halved.peak_bytes, Bytes((100 + 40 + 20 + 2000 + 20 + 100 + 100) * FLOAT));
}

#[test]
fn sharding_divides_what_every_device_has() {
    let mut script = Script::new();
    script.before(&[8000], Category::Parameter);
    let states = [8000, 8000].map(|count| script.before(&[count], Category::Optimizer));
    let reads = Action {
        name: "_foreach_mul_.Scalar",
        phase: Phase::Optimizer,
        reads: &states,
        makes: &[],
        differentiates: None,
    };
    script.run(reads);
    let input = script.before(&[10], Category::Other);
    script.forward("relu.default", &[input], &[10]);
    let explanation = explain(&script);
    let sharded = remedy(&explanation, RemedyKind::Sharding).unwrap();
    assert_eq!(sharded.peak_bytes, Bytes((1000 + 2000 + 20) * FLOAT));
    // Three transfers of seven eighths of the parameters at 450 GB/s.
    let expected = 3.0 * 7.0 / 8.0 * (8000 * FLOAT) as f64 / 450e6;
    assert!((sharded.extra_ms.unwrap().0 - expected).abs() < 1e-9 * expected.max(1.0), "{:?}", sharded.extra_ms);
    // Over so many already, it is twice as many.
    let further = explain_with(&script.trace, Allocator::Cpu, 8);
    assert_eq!(further.peak_bytes, sharded.peak_bytes);
    assert_eq!(remedy(&further, RemedyKind::Sharding).unwrap().peak_bytes, Bytes((500 + 1000 + 20) * FLOAT));
}

#[test]
fn what_takes_no_time_comes_first() {
    let mut script = with_loss();
    script.before(&[100], Category::Activation);
    optimizer_step(&mut script);
    let explanation = explain(&script);
    // What makes results approximate is behind all else.
    let (exact, approximate) =
        explanation.remedies.split_at(explanation.remedies.partition_point(Remedy::keeps_numerics));
    assert!(approximate.iter().all(|remedy| remedy.kind == RemedyKind::OptimizerState), "{approximate:?}");
    assert!(approximate.iter().all(|remedy| remedy.extra_ms == Some(Millis(0.0))), "{approximate:?}");
    let free = exact.iter().take_while(|remedy| remedy.extra_ms == Some(Millis(0.0))).count();
    assert!(free >= 1 && free + approximate.len() >= 2, "{:?}", explanation.remedies);
    let (free, dear) = exact.split_at(free);
    assert!(free.is_sorted_by_key(|remedy| std::cmp::Reverse(remedy.freed_bytes)));
    let per_byte = |extra: Option<Millis>, freed: Bytes| extra.map_or(f64::INFINITY, |extra| extra.0 / freed.0 as f64);
    assert!(dear.is_sorted_by_key(|remedy| per_byte(remedy.extra_ms, remedy.freed_bytes)));
    assert!(dear.iter().all(|remedy| remedy.extra_ms > Some(Millis(0.0))));
    // Sharding needs other devices: what is left is one remedy, and nothing to put together.
    assert_eq!(exact.iter().filter(|remedy| remedy.kind != RemedyKind::Sharding).count(), 1);
    assert_eq!(explanation.together, None);
}

#[test]
fn an_empty_step_has_nothing_to_explain() {
    let explanation = explain(&Script::new());
    assert_eq!(explanation.peak_bytes, Bytes(0));
    assert_eq!((explanation.at.op, explanation.remedies), (None, Vec::new()));
}
