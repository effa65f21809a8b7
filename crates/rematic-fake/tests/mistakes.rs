//! What a model that is written wrongly gets: the first mistake as an error, soon, and no panic.

use std::cell::Cell;

use rematic_fake::{Dtype, FakeError, Optimizer, Step, Tape, Tensor, nn};
use rematic_trace::{Phase, StepTrace};

/// A step of one linear layer whose output goes through `rest`.
fn step(rest: impl FnOnce(Tensor) -> Tensor) -> Result<StepTrace, FakeError> {
    let tape = Tape::new("linear");
    let root = nn::Scope::root(&tape, "Root", Dtype::F32);
    let linear = nn::Linear::new(&root, "linear", 4, 6, false);
    let batch = tape.input(Dtype::F32, &[2, 4]);
    Step::new(&tape, Optimizer::Sgd).run(|| root.call(&[&batch], || rest(linear.forward(&batch))), Tensor::sum)
}

fn message(result: Result<StepTrace, FakeError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn joining_nothing_is_an_error() {
    assert_eq!(
        message(step(|output| Tensor::cat(output.tape(), &[], 0))),
        "cat.default: there must be tensors to join, of equal extents in all other dimensions, but got none; check the \
         sizes of the model"
    );
}

#[test]
fn joining_what_does_not_fit_is_an_error() {
    let narrow = |output: &Tensor| output.slice(1, 0, 3);
    for dim in [0, 2, 7] {
        let text = message(step(|output| Tensor::cat(output.tape(), &[&output, &narrow(&output)], dim)));
        assert!(text.starts_with("cat.default: "), "{text}");
    }
    assert!(step(|output| Tensor::cat(output.tape(), &[&output, &narrow(&output)], 1)).is_ok());
    assert!(step(|output| Tensor::cat(output.tape(), &[&output, &narrow(&output)], -1)).is_ok());
}

#[test]
fn pieces_must_divide_the_dimension() {
    assert!(step(|output| output.split_into::<3>(-1)[1].clone()).is_ok());
    for text in [
        message(step(|output| output.split_into::<4>(-1)[1].clone())),
        message(step(|output| output.split_into::<3>(5)[1].clone())),
    ] {
        assert!(text.starts_with("split.Tensor: "), "{text}");
    }
    let text = message(step(|output| {
        let [] = output.split_into::<0>(0);
        output
    }));
    assert!(text.starts_with("split.Tensor: "), "{text}");
}

#[test]
fn layers_after_a_mistake_do_not_run() {
    let ran = Cell::new(0);
    let result = step(|mut output| {
        let tape = output.tape().clone();
        for layer in (0..100).take_while(|_| !tape.has_failed()) {
            ran.set(layer + 1);
            output = if layer == 2 { output.view(&[7]) } else { output.relu() };
        }
        output
    });
    assert!(message(result).starts_with("view.default: "));
    assert_eq!(ran.get(), 3);
}

/// Every optimizer leaves parameters without a gradient alone, and their state too.
#[test]
fn parameters_without_gradient_are_skipped() {
    for (_, optimizer) in Optimizer::NAMES {
        let tape = Tape::new("half used");
        let root = nn::Scope::root(&tape, "Root", Dtype::F32);
        let unused = nn::Linear::new(&root, "unused", 8, 8, false);
        let used = nn::Linear::new(&root, "used", 4, 6, false);
        let batch = tape.input(Dtype::F32, &[2, 4]);
        let trace = Step::new(&tape, optimizer).run(|| root.call(&[&batch], || used.forward(&batch)), Tensor::sum);
        let trace = trace.unwrap();
        assert_eq!(trace.validate(), Ok(()));
        drop(unused);
        let steps = trace.ops().iter().filter(|op| op.phase == Phase::Optimizer);
        // A step counter has no dimensions; there is one, since one parameter has a gradient.
        let (counters, others): (Vec<rematic_trace::Tensor>, Vec<rematic_trace::Tensor>) = steps
            .flat_map(|op| trace.inputs(op))
            .copied()
            .partition(|tensor| trace.layouts()[tensor.layout].shape.is_empty());
        let is_state = |tensor: &&rematic_trace::Tensor| trace.storages()[tensor.storage].birth.is_none();
        let mut counters = counters.iter().filter(is_state);
        let first = counters.next();
        assert!(counters.all(|counter| Some(counter.storage) == first.map(|first| first.storage)), "{optimizer}");
        // Those that look at a matrix as one multiply it with itself, or add up its rows and columns.
        let by_matrix = matches!(optimizer, Optimizer::Muon | Optimizer::Adafactor);
        for tensor in others {
            let shape = &trace.layouts()[tensor.layout].shape;
            let is_of_used = shape == &[6, 4] || by_matrix && shape.iter().all(|size| [1, 4, 6].contains(size));
            assert!(is_of_used, "{optimizer}: {shape:?}");
        }
    }
}
