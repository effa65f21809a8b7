//! Autograd on steps that are small enough to know by hand what PyTorch does.

use rematic_fake::{Dtype, FakeError, Optimizer, Step, Tape, Tensor, nn};
use rematic_trace::{Category, Event, OpId, Phase, StepTrace, StorageId};

/// A root module, and its one call as a step with plain gradient descent and the sum as loss.
struct Tiny {
    tape: Tape,
    root: nn::Scope,
}

impl Tiny {
    fn new() -> Tiny {
        let tape = Tape::new("tiny");
        let root = nn::Scope::root(&tape, "Tiny", Dtype::F32);
        Tiny { tape, root }
    }

    fn parameter(&self, name: &str) -> Tensor {
        self.root.parameter(name, &[4])
    }

    fn input(&self) -> Tensor {
        self.tape.input(Dtype::F32, &[4])
    }

    fn run(&self, forward: impl FnOnce() -> Tensor) -> StepTrace {
        let step = Step::new(&self.tape, Optimizer::Sgd);
        let trace = step.run(|| self.root.call(&[], forward), Tensor::sum).unwrap();
        assert_eq!(trace.validate(), Ok(()));
        trace
    }
}

fn names(trace: &StepTrace, phase: Phase) -> Vec<&str> {
    trace.ops().iter().filter(|op| op.phase == phase).map(|op| trace.op_name(op)).collect()
}

/// The first operator of a phase with this name.
fn find(trace: &StepTrace, phase: Phase, name: &str) -> OpId {
    let found = trace.ops().iter().position(|op| op.phase == phase && trace.op_name(op) == name);
    OpId::new(found.unwrap_or_else(|| panic!("no {name} in {phase}")))
}

fn storages(tensors: &[rematic_trace::Tensor]) -> Vec<StorageId> {
    tensors.iter().map(|tensor| tensor.storage).collect()
}

fn saves(trace: &StepTrace, name: &str) -> Vec<StorageId> {
    storages(trace.saves(trace.op(find(trace, Phase::Forward, name))))
}

fn parameter(trace: &StepTrace, index: usize) -> StorageId {
    trace.modules().items()[0].parameters[index].storage
}

fn batch(trace: &StepTrace) -> StorageId {
    StorageId::new(trace.storages().iter().position(|storage| storage.category == Category::Other).unwrap())
}

fn row(trace: &StepTrace, event: Event) -> usize {
    let found = trace.events().iter().position(|other| *other == event);
    found.unwrap_or_else(|| panic!("no {event:?}"))
}

/// Storages that become gradients, in order.
fn gradients(trace: &StepTrace) -> Vec<StorageId> {
    let gradient = |event: &Event| match event {
        Event::Recategorize(storage, Category::Gradient) => Some(*storage),
        _ => None,
    };
    trace.events().iter().filter_map(gradient).collect()
}

#[test]
fn a_product_saves_only_what_the_other_side_needs() {
    let tiny = Tiny::new();
    let (w, x) = (tiny.parameter("w"), tiny.input());
    let trace = tiny.run(|| w.mul(&x));
    assert_eq!(saves(&trace, "mul.Tensor"), [batch(&trace)]);
    assert_eq!(names(&trace, Phase::Backward), ["expand.default", "mul.Tensor", "detach.default"]);

    let tiny = Tiny::new();
    let (w, x) = (tiny.parameter("w"), tiny.input());
    let trace = tiny.run(|| x.mul(&w));
    assert_eq!(saves(&trace, "mul.Tensor"), [batch(&trace)]);

    let tiny = Tiny::new();
    let (w, v) = (tiny.parameter("w"), tiny.parameter("v"));
    let trace = tiny.run(|| w.mul(&v));
    assert_eq!(saves(&trace, "mul.Tensor"), [parameter(&trace, 1), parameter(&trace, 0)]);
    assert_eq!(gradients(&trace).len(), 2);
}

#[test]
fn a_product_of_frozen_tensors_saves_nothing() {
    let tiny = Tiny::new();
    let (w, x) = (tiny.parameter("w"), tiny.input());
    let trace = tiny.run(|| {
        let square = x.mul(&x);
        assert!(!square.requires_grad());
        square.add(&w)
    });
    assert_eq!(saves(&trace, "mul.Tensor"), []);
    assert_eq!(names(&trace, Phase::Backward).iter().filter(|name| **name == "mul.Tensor").count(), 0);
}

/// The later use is differentiated first; the gradients are added when the second arrives, the first one on the left.
#[test]
fn gradients_of_a_tensor_that_is_used_twice_are_added() {
    let tiny = Tiny::new();
    let w = tiny.parameter("w");
    let trace = tiny.run(|| {
        let hidden = w.gelu();
        hidden.mul_scalar().add(&hidden.neg())
    });
    let backward = ["expand.default", "neg.default", "mul.Tensor", "add.Tensor", "gelu_backward.default"];
    assert_eq!(names(&trace, Phase::Backward)[..5], backward);
    let output = |name| trace.outputs(trace.op(find(&trace, Phase::Backward, name)))[0].storage;
    let add = trace.op(find(&trace, Phase::Backward, "add.Tensor"));
    assert_eq!(storages(trace.inputs(add)), [output("neg.default"), output("mul.Tensor")]);
    let gelu = trace.op(find(&trace, Phase::Backward, "gelu_backward.default"));
    assert_eq!(trace.inputs(gelu)[0].storage, output("add.Tensor"));
}

#[test]
fn a_parameter_that_is_used_twice_has_one_gradient() {
    let tiny = Tiny::new();
    let (w, x) = (tiny.parameter("w"), tiny.input());
    let trace = tiny.run(|| w.mul(&x).mul(&w));
    let sum = trace.op(find(&trace, Phase::Backward, "add.Tensor"));
    assert_eq!(gradients(&trace), storages(trace.outputs(sum)));
    assert_eq!(names(&trace, Phase::Backward).iter().filter(|name| **name == "add.Tensor").count(), 1);
}

#[test]
fn tied_weights_are_one_parameter_with_one_gradient() {
    let tape = Tape::new("tied");
    let root = nn::Scope::root(&tape, "Tied", Dtype::F32);
    let embedding = nn::Embedding::new(&root, "embedding", 10, 4);
    let head = nn::Linear::tied(&root, "head", embedding.weight());
    let tokens = tape.input(Dtype::I64, &[3]);
    let trace = Step::new(&tape, Optimizer::Adam)
        .run(|| root.call(&[&tokens], || head.forward(&embedding.forward(&tokens))), Tensor::sum)
        .unwrap();
    assert_eq!(trace.validate(), Ok(()));
    let weights: Vec<StorageId> =
        trace.modules().iter().flat_map(|module| &module.parameters).map(|parameter| parameter.storage).collect();
    assert_eq!(weights.len(), 2);
    assert_eq!(weights[0], weights[1]);
    let count = |category| trace.storages().iter().filter(|s| s.category == category && s.birth.is_none()).count();
    assert_eq!((count(Category::Parameter), count(Category::Optimizer)), (1, 2));
    let sum = trace.op(find(&trace, Phase::Backward, "add.Tensor"));
    assert_eq!(gradients(&trace), storages(trace.outputs(sum)));
}

#[test]
fn a_frozen_input_gets_no_gradient() {
    let products = |frozen: bool| {
        let tape = Tape::new("linear");
        let root = nn::Scope::root(&tape, "Linear", Dtype::F32);
        let linear = nn::Linear::new(&root, "linear", 4, 4, false);
        let table = root.parameter("table", &[2, 4]);
        let input = tape.input(Dtype::F32, &[2, 4]);
        let given = if frozen { &input } else { &table };
        let trace =
            Step::new(&tape, Optimizer::Sgd).run(|| root.call(&[], || linear.forward(given)), Tensor::sum).unwrap();
        assert_eq!(trace.validate(), Ok(()));
        let saved = saves(&trace, "mm.default").len();
        (names(&trace, Phase::Backward).iter().filter(|name| **name == "mm.default").count(), saved)
    };
    assert_eq!(products(true), (1, 1));
    assert_eq!(products(false), (2, 2));
}

#[test]
fn nothing_is_saved_without_gradients() {
    let tiny = Tiny::new();
    let w = tiny.parameter("w");
    let trace = tiny.run(|| {
        let silent = tiny.tape.no_grad(|| w.gelu());
        assert!(!silent.requires_grad());
        let after_inner = tiny.tape.no_grad(|| {
            tiny.tape.no_grad(|| ());
            w.neg()
        });
        assert!(!after_inner.requires_grad());
        silent.add(&w)
    });
    assert_eq!(saves(&trace, "gelu.default"), []);
    assert!(!names(&trace, Phase::Backward).contains(&"gelu_backward.default"));
    let gelu = find(&trace, Phase::Forward, "gelu.default");
    assert!(!trace.events().contains(&Event::Unsave(gelu)));
}

/// Autograd lets go as soon as nothing refers to the graph, inside forward.
#[test]
fn a_graph_that_is_dropped_releases_what_it_saved() {
    let tiny = Tiny::new();
    let w = tiny.parameter("w");
    let trace = tiny.run(|| {
        let kept = {
            let unused = w.relu().tanh();
            assert!(unused.requires_grad());
            w.neg()
        };
        kept.mul_scalar()
    });
    let (relu, tanh) = (find(&trace, Phase::Forward, "relu.default"), find(&trace, Phase::Forward, "tanh.default"));
    let (next, last) = (find(&trace, Phase::Forward, "neg.default"), find(&trace, Phase::Forward, "mul.Tensor"));
    for dropped in [tanh, relu] {
        let released = row(&trace, Event::Unsave(dropped));
        assert!(row(&trace, Event::Op(next)) < released && released < row(&trace, Event::Op(last)));
    }
    // The graph goes from the loss's end.
    assert!(row(&trace, Event::Unsave(tanh)) < row(&trace, Event::Unsave(relu)));
    assert!(!names(&trace, Phase::Backward).iter().any(|name| name.contains("tanh")));
}

/// In a step with backward, each operator's saves go once: after its own backward, before that of the one before it.
#[test]
fn saves_go_when_their_backward_is_over() {
    let tiny = Tiny::new();
    let w = tiny.parameter("w");
    let trace = tiny.run(|| w.relu().tanh());
    let at = |event| row(&trace, event);
    let (relu, tanh) = (find(&trace, Phase::Forward, "relu.default"), find(&trace, Phase::Forward, "tanh.default"));
    let (first, second) = (
        find(&trace, Phase::Backward, "tanh_backward.default"),
        find(&trace, Phase::Backward, "threshold_backward.default"),
    );
    let order = [Event::Op(first), Event::Unsave(tanh), Event::Op(second), Event::Unsave(relu)].map(at);
    assert!(order.is_sorted(), "{order:?}");
    let unsaves = trace.events().iter().filter(|event| matches!(event, Event::Unsave(_))).count();
    assert_eq!(unsaves, 2);
}

#[test]
fn a_loss_without_parameters_is_an_error() {
    let tiny = Tiny::new();
    let x = tiny.input();
    let result = Step::new(&tiny.tape, Optimizer::Sgd).run(|| tiny.root.call(&[], || x.neg()), Tensor::sum);
    assert_eq!(result.unwrap_err(), FakeError::NoGradient);
}

/// On a stack that a recursion through the graph could not use.
fn on_a_small_stack(body: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(128 << 10).spawn(body).unwrap().join().unwrap();
}

const DEEP: usize = 100_000;

fn chain(start: &Tensor) -> Tensor {
    let mut hidden = start.relu();
    for _ in 1..DEEP {
        hidden = hidden.relu();
    }
    hidden
}

#[test]
fn a_deep_graph_is_differentiated() {
    on_a_small_stack(|| {
        let tiny = Tiny::new();
        let w = tiny.parameter("w");
        let trace = tiny.run(|| chain(&w));
        let backward = names(&trace, Phase::Backward);
        assert_eq!(backward.iter().filter(|name| **name == "threshold_backward.default").count(), DEEP);
    });
}

#[test]
fn a_deep_graph_is_dropped() {
    on_a_small_stack(|| {
        let tiny = Tiny::new();
        let w = tiny.parameter("w");
        let trace = tiny.run(|| {
            drop(chain(&w));
            w.neg()
        });
        let released = trace.events().iter().filter(|event| matches!(event, Event::Unsave(_))).count();
        assert_eq!(released, DEEP);
    });
}
