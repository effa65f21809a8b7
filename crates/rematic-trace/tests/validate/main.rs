//! One broken trace for every rule that `validate` checks.

mod ranks;

use rematic_trace::{
    CallId, Category, Dtype, Event, Fault, Flags, Layout, LayoutId, Module, ModuleId, OpId, OpRecord, Parameter, Phase,
    ShapeTooLarge, StepTrace, StorageId, Tensor,
};

/// A module that is called once and runs one op, which makes a storage from the batch and saves it; then everything goes.
///
/// Ops: 0. Calls: 0. Storages: 0 is the batch, 1 the output. Layouts: 0.
struct Step {
    trace: StepTrace,
    batch: Tensor,
}

const BYTES: u64 = 128;

fn module(name: &str, parent: Option<ModuleId>) -> Module {
    Module { name: name.to_owned(), class: "M".to_owned(), parent, parameters: vec![], buffers: vec![] }
}

fn op<'a>(inputs: &'a [Tensor], outputs: &'a [Tensor]) -> OpRecord<'a> {
    OpRecord {
        name: "relu.default",
        phase: Phase::Forward,
        call: None,
        differentiates: None,
        flags: Flags::default(),
        mutates: &[],
        inputs,
        outputs,
        saves: &[],
        births: &[],
    }
}

impl Step {
    /// The step up to the end of forward.
    fn forward() -> Step {
        let mut trace = StepTrace::new("one relu");
        let root = trace.add_module(module("Root", None));
        let layout = trace.layout(&Layout::contiguous(Dtype::F32, &[4, 8]));
        let batch = Tensor { storage: trace.storage_before_step(BYTES, Category::Other), layout };
        let call = trace.enter(root, vec![batch.storage]);
        let output = Tensor { storage: trace.next_storage(), layout };
        let births = [(BYTES, Category::Activation)];
        trace.run(OpRecord { call: Some(call), saves: &[output], births: &births, ..op(&[batch], &[output]) });
        trace.exit(call, vec![output.storage]);
        Step { trace, batch }
    }

    fn then(mut self, events: &[Event]) -> StepTrace {
        events.iter().for_each(|event| self.trace.push(*event));
        self.trace
    }

    fn run(mut self, record: OpRecord<'_>) -> StepTrace {
        self.trace.run(record);
        self.trace
    }
}

fn storage(index: usize) -> StorageId {
    StorageId::new(index)
}

fn fault(trace: &StepTrace) -> Fault {
    trace.validate().unwrap_err().fault().clone()
}

fn message(trace: &StepTrace) -> String {
    trace.validate().unwrap_err().to_string()
}

#[test]
fn the_step_that_the_cases_break_is_valid() {
    let events = [
        Event::Drop(storage(1)),
        Event::EnterBackward(CallId::new(0)),
        Event::Recategorize(storage(1), Category::Temp),
        Event::Unsave(OpId::new(0)),
        Event::ExitBackward(CallId::new(0)),
        Event::Drop(storage(0)),
    ];
    assert_eq!(Step::forward().then(&events).validate(), Ok(()));
    assert_eq!(StepTrace::new("nothing").validate(), Ok(()));
}

#[test]
fn unknown_id() {
    let unknown = |kind, id, len| Fault::UnknownId { kind, id, len };
    let tensor = |storage, layout| Tensor { storage: StorageId::new(storage), layout: LayoutId::new(layout) };
    let step = Step::forward;
    assert_eq!(fault(&step().run(op(&[tensor(7, 0)], &[]))), unknown("storage", 7, 2));
    assert_eq!(fault(&step().run(op(&[], &[tensor(7, 0)]))), unknown("storage", 7, 2));
    assert_eq!(fault(&step().run(op(&[tensor(0, 7)], &[]))), unknown("layout", 7, 1));
    assert_eq!(fault(&step().run(OpRecord { saves: &[tensor(7, 0)], ..op(&[], &[]) })), unknown("storage", 7, 2));
    assert_eq!(fault(&step().run(OpRecord { mutates: &[storage(7)], ..op(&[], &[]) })), unknown("storage", 7, 2));
    assert_eq!(fault(&step().run(OpRecord { call: Some(CallId::new(7)), ..op(&[], &[]) })), unknown("call", 7, 1));
    let differentiates = Some(OpId::new(7));
    assert_eq!(fault(&step().run(OpRecord { differentiates, ..op(&[], &[]) })), unknown("op", 7, 2));
    for (event, expected) in [
        (Event::Op(OpId::new(7)), unknown("op", 7, 1)),
        (Event::Drop(storage(7)), unknown("storage", 7, 2)),
        (Event::Unsave(OpId::new(7)), unknown("op", 7, 1)),
        (Event::Recategorize(storage(7), Category::Temp), unknown("storage", 7, 2)),
        (Event::Enter(CallId::new(7)), unknown("call", 7, 1)),
        (Event::EnterBackward(CallId::new(7)), unknown("call", 7, 1)),
        (Event::ExitBackward(CallId::new(7)), unknown("call", 7, 1)),
    ] {
        assert_eq!(fault(&step().then(&[event])), expected);
    }
    let mut called = step();
    called.trace.enter(ModuleId::new(7), vec![]);
    assert_eq!(fault(&called.trace), unknown("module", 7, 1));
    let mut called = step();
    called.trace.enter(ModuleId::new(0), vec![storage(7)]);
    assert_eq!(fault(&called.trace), unknown("storage", 7, 2));
    let mut held = step();
    let layout = held.batch.layout;
    held.trace.module_mut(ModuleId::new(0)).buffers.push(Parameter {
        name: "b".to_owned(),
        storage: storage(7),
        layout,
    });
    assert_eq!(message(&held.trace), "the trace is not valid: modules[0]: unknown storage 7; there are 2");
}

#[test]
fn module_cycle() {
    for parent in [1, 2, 7] {
        let mut step = Step::forward();
        step.trace.add_module(module("child", Some(ModuleId::new(parent))));
        assert_eq!(fault(&step.trace), Fault::ModuleCycle { parent });
    }
    let mut trace = StepTrace::new("its own parent");
    trace.add_module(module("Root", Some(ModuleId::new(0))));
    assert_eq!(fault(&trace), Fault::ModuleCycle { parent: 0 });
}

#[test]
fn second_root() {
    let mut step = Step::forward();
    step.trace.add_module(module("Other", None));
    assert_eq!(fault(&step.trace), Fault::SecondRoot);
}

#[test]
fn too_deep() {
    let nested = |depth: usize| {
        let mut trace = StepTrace::new("a tower");
        let mut parent = None;
        for _ in 0..depth {
            parent = Some(trace.add_module(module("m", parent)));
        }
        trace
    };
    assert_eq!(nested(1000).validate(), Ok(()));
    assert_eq!(fault(&nested(1001)), Fault::TooDeep { limit: 1000 });
}

#[test]
fn duplicate_name() {
    let mut step = Step::forward();
    let root = Some(ModuleId::new(0));
    let first = step.trace.add_module(module("layer", root));
    step.trace.add_module(module("layer", Some(first)));
    assert_eq!(step.trace.validate(), Ok(()), "the same name elsewhere is no duplicate");
    step.trace.add_module(module("layer", root));
    assert_eq!(fault(&step.trace), Fault::DuplicateName { name: "layer".to_owned() });
}

#[test]
fn ragged_layout() {
    let mut step = Step::forward();
    step.trace.layout(&Layout { dtype: Dtype::F32, shape: vec![2, 3], strides: vec![1] });
    assert_eq!(fault(&step.trace), Fault::RaggedLayout { extents: 2, strides: 1 });
}

#[test]
fn shape_too_large() {
    let mut step = Step::forward();
    let shape = vec![1 << 31, 1 << 31];
    step.trace.layout(&Layout::contiguous(Dtype::I8, &[1 << 31, (1 << 31) - 1]));
    assert_eq!(step.trace.validate(), Ok(()));
    step.trace.layout(&Layout::contiguous(Dtype::I8, &shape));
    assert_eq!(fault(&step.trace), Fault::ShapeTooLarge(ShapeTooLarge { shape, dtype: Dtype::I8 }));
}

#[test]
fn storages_too_large() {
    let mut step = Step::forward();
    step.trace.storage_before_step(1 << 61, Category::Other);
    assert_eq!(step.trace.validate(), Ok(()));
    assert!(step.trace.storage_bytes().is_some_and(|bytes| bytes > 1 << 61));
    step.trace.storage_before_step(1 << 61, Category::Other);
    assert_eq!(fault(&step.trace), Fault::StoragesTooLarge);
    assert_eq!(step.trace.storage_bytes(), None);
}

#[test]
fn tensor_past_storage() {
    let wide = |strides: Vec<u64>| {
        let mut step = Step::forward();
        let layout = step.trace.layout(&Layout { dtype: Dtype::F32, shape: vec![4, 8], strides });
        let input = Tensor { layout, ..step.batch };
        step.run(op(&[input], &[]))
    };
    assert_eq!(wide(vec![0, 4]).validate(), Ok(()));
    let needed = (3 * 9 + 7 + 1) * 4;
    assert_eq!(fault(&wide(vec![9, 1])), Fault::TensorPastStorage { storage: storage(0), needed, bytes: BYTES });
    let huge = Fault::TensorPastStorage { storage: storage(0), needed: u64::MAX, bytes: BYTES };
    assert_eq!(fault(&wide(vec![u64::MAX, u64::MAX])), huge);
}

#[test]
fn birth_not_returned() {
    let trace = Step::forward().run(OpRecord { births: &[(4, Category::Temp)], ..op(&[], &[]) });
    assert_eq!(fault(&trace), Fault::BirthNotReturned { storage: storage(2) });
    assert!(message(&trace).contains("op 1 (relu.default): storage 2"), "{}", message(&trace));
}

/// The optimizer of a large model makes a storage for each parameter in one op; looking for each among all outputs would
/// take minutes.
#[test]
fn births_are_checked_in_linear_time() {
    const COUNT: usize = 400_000;
    let mut trace = StepTrace::new("one op with many outputs");
    let layout = trace.layout(&Layout::contiguous(Dtype::F32, &[]));
    let outputs: Vec<Tensor> = (0..COUNT).map(|index| Tensor { storage: storage(index), layout }).collect();
    trace.run(OpRecord { births: &vec![(4, Category::Optimizer); COUNT], ..op(&[], &outputs) });
    let start = std::time::Instant::now();
    assert_eq!(trace.validate(), Ok(()));
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
}

#[test]
fn not_alive() {
    let gone = || Step::forward().then(&[Event::Drop(storage(0))]);
    let expected = Fault::NotAlive { storage: storage(0) };
    let batch = Step::forward().batch;
    for record in [
        op(&[batch], &[]),
        op(&[], &[batch]),
        OpRecord { saves: &[batch], ..op(&[], &[]) },
        OpRecord { mutates: &[batch.storage], ..op(&[], &[]) },
    ] {
        let mut trace = gone();
        trace.run(record);
        assert_eq!(fault(&trace), expected);
    }
    let mut trace = gone();
    trace.push(Event::Recategorize(storage(0), Category::Temp));
    assert_eq!(fault(&trace), expected);

    // Autograd keeps the output alive after its last ordinary reference, but not after its backward.
    let output = Tensor { storage: storage(1), ..batch };
    let mut trace = Step::forward().then(&[Event::Drop(output.storage)]);
    trace.run(op(&[output], &[]));
    assert_eq!(trace.validate(), Ok(()));
    let mut trace = Step::forward().then(&[Event::Drop(output.storage), Event::Unsave(OpId::new(0))]);
    trace.run(op(&[output], &[]));
    assert_eq!(fault(&trace), Fault::NotAlive { storage: output.storage });
}

/// An operator reads what a later one makes.
#[test]
fn not_alive_before_birth() {
    let mut step = Step::forward();
    let later = Tensor { storage: step.trace.next_storage(), ..step.batch };
    step.trace.run(op(&[later], &[]));
    step.trace.run(OpRecord { births: &[(BYTES, Category::Temp)], ..op(&[], &[later]) });
    assert_eq!(fault(&step.trace), Fault::NotAlive { storage: later.storage });
}

#[test]
fn double_drop() {
    let trace = Step::forward().then(&[Event::Drop(storage(1)), Event::Drop(storage(1))]);
    assert_eq!(fault(&trace), Fault::DoubleDrop { storage: storage(1) });
    assert!(message(&trace).contains("events[4] ({\"drop\":1})"), "{}", message(&trace));
}

#[test]
fn nothing_saved() {
    let first = OpId::new(0);
    let trace = Step::forward().then(&[Event::Unsave(first), Event::Unsave(first)]);
    assert_eq!(fault(&trace), Fault::NothingSaved { op: first });
    let mut early = StepTrace::new("before it ran");
    early.push(Event::Unsave(first));
    early.run(op(&[], &[]));
    assert_eq!(fault(&early), Fault::NothingSaved { op: first });
}

#[test]
fn op_out_of_order() {
    let trace = Step::forward().then(&[Event::Op(OpId::new(0))]);
    assert_eq!(fault(&trace), Fault::OpOutOfOrder { expected: 1, found: 0 });
}

/// Only a file can leave an operator out: writing a trace in Rust runs each as it is added.
#[test]
fn ops_missing() {
    let mut text = Vec::new();
    Step::forward().trace.to_writer(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(r#"{"op":0},"#));
    let error = StepTrace::from_json(text.replace(r#"{"op":0},"#, "").as_bytes(), "step.rmt".as_ref()).unwrap_err();
    let rematic_trace::FileError::Invalid { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.fault(), &Fault::OpsMissing { ran: 0, len: 1 });
}

#[test]
fn differentiates_later() {
    for (first, later) in [(1, 2), (1, 1)] {
        let mut step = Step::forward();
        step.trace.run(OpRecord { differentiates: Some(OpId::new(later)), ..op(&[], &[]) });
        step.trace.run(op(&[], &[]));
        assert_eq!(first, step.trace.ops().len() - 2);
        assert_eq!(fault(&step.trace), Fault::DifferentiatesLater { later: OpId::new(later) });
    }
}

#[test]
fn call_nesting() {
    let call = CallId::new;
    let nesting = |index| Fault::CallNesting { call: call(index) };
    assert_eq!(fault(&Step::forward().then(&[Event::Enter(call(0))])), nesting(0));
    assert_eq!(fault(&Step::forward().then(&[Event::Exit(call(0))])), nesting(0));
    assert_eq!(fault(&Step::forward().then(&[Event::Exit(call(7))])), nesting(7));

    let mut crossed = Step::forward();
    let (first, second) =
        (crossed.trace.enter(ModuleId::new(0), vec![]), crossed.trace.enter(ModuleId::new(0), vec![]));
    crossed.trace.exit(first, vec![]);
    crossed.trace.exit(second, vec![]);
    assert_eq!(fault(&crossed.trace), nesting(1));

    let mut backward = Step::forward();
    let open = backward.trace.enter(ModuleId::new(0), vec![]);
    backward.trace.push(Event::EnterBackward(open));
    assert_eq!(fault(&backward.trace), nesting(1));

    // An operator of a call that has not begun.
    let mut early = Step::forward();
    early.trace.run(OpRecord { call: Some(call(1)), ..op(&[], &[]) });
    let late = early.trace.enter(ModuleId::new(0), vec![]);
    early.trace.exit(late, vec![]);
    assert_eq!(fault(&early.trace), nesting(1));
}

#[test]
fn call_open() {
    let mut step = Step::forward();
    let open = step.trace.enter(ModuleId::new(0), vec![]);
    assert_eq!(fault(&step.trace), Fault::CallOpen { call: open });
    assert!(message(&step.trace).contains("at the end of the step: call 1 has not returned"));
}
