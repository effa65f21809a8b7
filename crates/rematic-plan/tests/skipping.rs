//! What need not run again, because nothing reads what it makes: steps written by hand.

use rematic_cost::{CostRule, Costs, Device};
use rematic_plan::{Candidate, Candidates, DocumentError, Facts, Limits, PlanDocument, Pricing, Problem};
use rematic_replay::{Allocator, Ledger, Regions, unread};
use rematic_trace::{
    Bytes, CallId, Category, Decision, Dtype, Event, Flags, Layout, Module, OpId, OpRecord, Phase, StepTrace,
    StorageId, Tensor,
};

/// A root that calls a child, which has a leaf and is the region that is looked at. It is given one tensor.
struct Step {
    trace: StepTrace,
    input: Tensor,
    call: CallId,
    saving: Vec<OpId>,
}

/// Elements of a tensor of ordinary size.
const SIZE: u64 = 1 << 20;

impl Step {
    fn new() -> Self {
        let mut trace = StepTrace::new("by hand");
        let module = |name: &str, parent| Module {
            name: name.to_owned(),
            class: "Module".to_owned(),
            parent,
            parameters: Vec::new(),
            buffers: Vec::new(),
        };
        let root = trace.add_module(module("Root", None));
        let child = trace.add_module(module("child", Some(root)));
        trace.add_module(module("leaf", Some(child)));
        let storage = trace.storage_before_step(4 * SIZE, Category::Other);
        let layout = trace.layout(&Layout::contiguous(Dtype::F32, &[SIZE]));
        let call = trace.enter(child, vec![storage]);
        Step { trace, input: Tensor { storage, layout }, call, saving: Vec::new() }
    }

    /// An operator with a new output of so many elements; autograd saves some tensors.
    fn run(
        &mut self,
        name: &str,
        flags: Flags,
        inputs: &[Tensor],
        size: u64,
        saves: &[Tensor],
        saves_own: bool,
    ) -> Tensor {
        let layout = self.trace.layout(&Layout::contiguous(Dtype::F32, &[size]));
        let output = Tensor { storage: self.trace.next_storage(), layout };
        let saves: Vec<Tensor> = saves.iter().copied().chain(saves_own.then_some(output)).collect();
        let op = self.trace.run(OpRecord {
            name,
            phase: Phase::Forward,
            call: Some(self.call),
            differentiates: None,
            flags,
            mutates: &[],
            inputs,
            outputs: &[output],
            saves: &saves,
            births: &[(4 * size, Category::Activation)],
        });
        if !saves.is_empty() {
            self.saving.push(op);
        }
        output
    }

    fn make(&mut self, inputs: &[Tensor], size: u64) -> Tensor {
        self.run("op.default", Flags::default(), inputs, size, &[], false)
    }

    /// An operator whose backward needs what it is given.
    fn keep(&mut self, input: Tensor) -> Tensor {
        self.run("keep.default", Flags::default(), &[input], SIZE, &[input], false)
    }

    fn on_same(&mut self, target: Tensor, flags: Flags, changed: &[StorageId]) {
        self.trace.run(OpRecord {
            name: "same.default",
            phase: Phase::Forward,
            call: Some(self.call),
            differentiates: None,
            flags,
            mutates: changed,
            inputs: &[target],
            outputs: &[target],
            saves: &[],
            births: &[],
        });
    }

    /// Forward is over and all but the input goes; then comes backward.
    fn end(mut self) -> StepTrace {
        let made =
            (0..self.trace.storages().len()).map(StorageId::new).filter(|storage| *storage != self.input.storage);
        let made: Vec<StorageId> = made.collect();
        self.trace.exit(self.call, Vec::new());
        made.into_iter().for_each(|storage| self.trace.push(Event::Drop(storage)));
        for &op in self.saving.iter().rev() {
            self.trace.run(OpRecord {
                name: "backward.default",
                phase: Phase::Backward,
                call: None,
                differentiates: Some(op),
                flags: Flags::default(),
                mutates: &[],
                inputs: &[],
                outputs: &[],
                saves: &[],
                births: &[],
            });
            self.trace.push(Event::Unsave(op));
        }
        self.trace
    }
}

fn unread_of(trace: &StepTrace, saved: &[usize]) -> Vec<usize> {
    let regions = Regions::new(trace);
    let saved: Vec<OpId> = saved.iter().map(|op| OpId::new(*op)).collect();
    let found = unread(trace, &regions.all().items()[0], &saved);
    (0..found.len()).filter(|&op| found[op]).collect()
}

fn costs(trace: &StepTrace) -> Costs {
    Costs::new(trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap()
}

fn candidate(trace: &StepTrace) -> Candidate {
    let (regions, ledger, costs) = (Regions::new(trace), Ledger::new(trace, Allocator::Cuda), costs(trace));
    let facts = Facts::new(trace);
    let mut candidates = Candidates::new(trace, &facts, &regions, &ledger, &costs).skipping(true);
    candidates.candidate(&regions.all().items()[0], Pricing::Low).unwrap()
}

const VIEW: Flags = Flags { view: true, random: false, host: false, holds: false };
const RANDOM: Flags = Flags { view: false, random: true, host: false, holds: false };

/// 0 is read by 1, which is read by 2, whose result its backward needs; 3 is needed too.
fn chain() -> StepTrace {
    let mut step = Step::new();
    let first = step.make(&[step.input], SIZE);
    let second = step.make(&[first], SIZE / 8);
    let third = step.run("op.default", Flags::default(), &[second], SIZE / 8, &[], true);
    let fourth = step.make(&[third], SIZE);
    step.keep(fourth);
    step.end()
}

#[test]
fn what_only_a_saved_operator_reads_need_not_run_again() {
    let trace = chain();
    assert_eq!(unread_of(&trace, &[]), Vec::<usize>::new());
    assert_eq!(unread_of(&trace, &[2]), [0, 1]);
    assert_eq!(unread_of(&trace, &[1]), [0]);
}

#[test]
fn it_goes_with_that_one_where_it_makes_no_less() {
    let trace = chain();
    let candidate = candidate(&trace);
    let items: Vec<(Vec<usize>, Vec<usize>)> =
        candidate.items.iter().map(|item| (item.ops.clone(), item.skipped.clone())).collect();
    assert_eq!(items, [(vec![2], vec![0, 1]), (vec![3], vec![])]);
    let costs = costs(&trace);
    let times: f64 = (0..3).map(|op| costs.time(OpId::new(op)).0).sum();
    assert!((candidate.items[0].time.0 - times).abs() < 1e-12);

    let problem = Problem::new(trace, costs, Limits::default()).unwrap();
    let region = problem.regions().all().ids().next().unwrap();
    let plan = [candidate.checkpoint(region, 0, [0].into_iter())];
    let replayed = problem.replay(&plan);
    assert_eq!(replayed.recomputed, [OpId::new(3)]);
    assert_eq!(problem.replay(&[candidate.checkpoint(region, 0, [].into_iter())]).recomputed.len(), 4);
}

#[test]
fn what_makes_less_may_be_kept_by_itself() {
    let mut step = Step::new();
    let small = step.make(&[step.input], SIZE / 8);
    let large = step.make(&[small], SIZE);
    step.keep(large);
    let candidate = candidate(&step.end());
    assert_eq!(candidate.items.iter().map(|item| item.ops[0]).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn what_nothing_reads_never_runs_again() {
    let mut step = Step::new();
    let lost = step.make(&[step.input], SIZE);
    step.on_same(lost, Flags::default(), &[lost.storage]);
    step.on_same(lost, VIEW, &[]);
    step.make(&[lost], SIZE);
    step.keep(step.input);
    let last = step.make(&[step.input], SIZE);
    step.keep(last);
    let trace = step.end();
    assert_eq!(unread_of(&trace, &[]), [0, 1, 2, 3, 4]);
    assert_eq!(candidate(&trace).unread, [0, 1, 2, 3, 4]);
}

#[test]
fn what_draws_or_is_not_known_runs_again() {
    let mut step = Step::new();
    let first = step.make(&[step.input], SIZE);
    step.run("op.default", RANDOM, &[first], SIZE, &[], false);
    let second = step.make(&[step.input], SIZE);
    step.run("library.op.default", Flags::default(), &[second], SIZE, &[], false);
    let last = step.make(&[step.input], SIZE);
    step.keep(last);
    assert_eq!(unread_of(&step.end(), &[]), Vec::<usize>::new());
}

#[test]
fn what_more_than_operators_reads_runs_again() {
    let mut step = Step::new();
    let first = step.make(&[step.input], SIZE);
    let second = step.make(&[first], SIZE);
    step.make(&[first], SIZE);
    let last = step.make(&[step.input], SIZE);
    step.keep(last);
    step.trace.set_seen(second.storage);
    let trace = step.end();
    assert_eq!(unread_of(&trace, &[]), [2]);
    assert_eq!(unread_of(&trace, &[1]), [0, 2]);
}

/// A tensor that is given other memory stands for that: the operator that does so is handed back, and the tensor must be there.
#[test]
fn what_is_given_other_memory_runs_again() {
    let mut step = Step::new();
    let made = step.make(&[step.input], SIZE);
    let other = step.make(&[step.input], SIZE);
    step.trace.run(OpRecord {
        call: Some(step.call),
        mutates: &[other.storage],
        inputs: &[made],
        outputs: &[other],
        ..OpRecord::new("set_.source_Storage", Phase::Forward)
    });
    step.keep(other);
    let trace = step.end();
    assert!(!unread_of(&trace, &[2]).contains(&0));
}

/// Autograd would make the view once more if it had no memory.
#[test]
fn what_is_changed_behind_a_view_runs_again() {
    let mut step = Step::new();
    let viewed = step.make(&[step.input], SIZE);
    step.on_same(viewed, VIEW, &[]);
    step.on_same(viewed, Flags::default(), &[viewed.storage]);
    step.make(&[viewed], SIZE);
    let last = step.make(&[step.input], SIZE);
    step.keep(last);
    assert_eq!(unread_of(&step.end(), &[]), [3]);
}

/// Recomputation ends when all is there that autograd saved, on the host too.
#[test]
fn what_autograd_saves_of_the_host_is_reached() {
    let mut step = Step::new();
    let first = step.make(&[step.input], SIZE);
    step.keep(step.input);
    let second = step.make(&[first], SIZE);
    let third = step.make(&[second], SIZE);
    step.run("op.default", Flags { holds: true, ..Flags::default() }, &[third], SIZE, &[], false);
    step.make(&[third], SIZE);
    let trace = step.end();
    let region = &Regions::new(&trace).all().items()[0].clone();
    assert_eq!((region.stop, region.stop_runs, region.savers), (OpId::new(4), false, 1));
    assert_eq!(unread_of(&trace, &[]), [0, 1, 2, 3]);
}

/// Random numbers are drawn again whoever reads them; then they are what they were.
#[test]
fn nothing_is_half_made() {
    let mut step = Step::new();
    let drawn = step.run("op.default", RANDOM, &[step.input], SIZE, &[], false);
    step.on_same(drawn, Flags::default(), &[drawn.storage]);
    let last = step.make(&[step.input], SIZE);
    step.keep(last);
    assert_eq!(unread_of(&step.end(), &[]), Vec::<usize>::new());
}

#[test]
fn who_changes_what_is_read_runs_again() {
    let mut step = Step::new();
    let first = step.make(&[step.input], SIZE);
    let kept = step.make(&[first], SIZE);
    step.on_same(first, Flags::default(), &[first.storage]);
    step.keep(kept);
    assert_eq!(unread_of(&step.end(), &[]), Vec::<usize>::new());
}

#[test]
fn a_plan_says_what_it_skips_and_is_refused_where_that_is_read() {
    let trace = chain();
    let candidate = candidate(&trace);
    let costs = costs(&trace);
    let problem = Problem::new(trace, costs, Limits::default()).unwrap();
    let region = problem.regions().all().ids().next().unwrap();
    let mut solution = problem.unplanned();
    solution.checkpoints = vec![candidate.checkpoint(region, 0, [0].into_iter())];
    solution.replayed = problem.replay(&solution.checkpoints);
    let document = PlanDocument::new(&problem, &solution, Bytes(0), "H100");
    let decisions: Vec<Decision> = document.regions[0].policy.iter().map(|op| op.decision).collect();
    let (skip, save, again) = (Decision::Skip, Decision::Save, Decision::Recompute);
    assert_eq!((document.version, decisions), (6, vec![skip, skip, save, again, again]));
    assert_eq!(document.checkpoints(problem.trace(), problem.regions()).unwrap(), solution.checkpoints);

    let mut wrong = document.clone();
    wrong.regions[0].policy[2].decision = again;
    let error = wrong.checkpoints(problem.trace(), problem.regions()).unwrap_err();
    assert!(matches!(&error, DocumentError::CannotSkip { index: 0, .. }), "{error}");
    wrong.version = 5;
    let text = serde_json::to_vec(&wrong).unwrap();
    let error = PlanDocument::from_json(&text, std::path::Path::new("plan.json")).unwrap_err();
    assert!(matches!(&error, DocumentError::SkipVersion { found: 5, .. }), "{error}");
}
