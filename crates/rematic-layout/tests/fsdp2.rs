//! FSDP2: the step of one rank is a valid step, has all its buffers, and ends as it began.

use rematic_fake::models::{BUILTIN, Model, Options, Recipe};
use rematic_layout::{Fsdp2, Fsdp2Error, fsdp2, layers};
use rematic_replay::{Allocator, Timeline};
use rematic_trace::{Category, CollectiveKind, Dtype, Event, StepTrace};

fn step(name: &str) -> StepTrace {
    let options = Options { layers: Some(3), batch: Some(2), ..Options::default() };
    let model = Model::builtin(name).unwrap().with(&options).unwrap();
    // What reads images alone has no sequence to set.
    model.clone().with(&Options { seq: Some(64), ..options }).unwrap_or(model).trace().unwrap()
}

fn spread(trace: &StepTrace, how: Fsdp2) -> StepTrace {
    fsdp2(trace, &how, &layers(trace)).unwrap()
}

fn collectives(trace: &StepTrace, kind: CollectiveKind) -> Vec<u64> {
    let found = trace.ops().iter().filter_map(|op| trace.collective_of(op)).filter(|found| found.kind == kind);
    found.map(|found| found.bytes).collect()
}

/// It has a parameter without dimensions, which FSDP2 refuses.
fn is_clip(name: &str) -> bool {
    name.starts_with("clip")
}

#[test]
fn every_model_can_be_sharded_in_every_way() {
    for builtin in BUILTIN {
        let trace = step(builtin.name);
        let units = layers(&trace);
        // An encoder and a decoder, or a tower for text and one for images.
        let towers = if builtin.name.starts_with("t5") || is_clip(builtin.name) { 2 } else { 1 };
        assert_eq!(units.len(), 3 * towers, "{}", builtin.name);
        if is_clip(builtin.name) {
            let scale = Fsdp2Error::Scalar { parameter: "CLIPModel.logit_scale".to_owned() };
            assert_eq!(fsdp2(&trace, &Fsdp2::over(2), &units), Err(scale), "{}", builtin.name);
            continue;
        }
        for ranks in [2, 3, 8, 64, 1024] {
            let plain = Fsdp2::over(ranks);
            for how in [
                plain,
                Fsdp2 { reshard: false, ..plain },
                Fsdp2 { rank: ranks - 1, ..plain },
                Fsdp2 { replicas: 2, ..plain },
                Fsdp2 { shards: Some(Dtype::F32), ..plain },
            ] {
                if how.shards.is_some() && trace.origin.precision == Some(Dtype::F32) {
                    assert_eq!(fsdp2(&trace, &how, &units), Err(Fsdp2Error::NotMixed), "{}", builtin.name);
                    continue;
                }
                let made = spread(&trace, how);
                assert_eq!(made.validate(), Ok(()), "{}, {how:?}", builtin.name);
                let timeline = Timeline::replay(&made, Allocator::Cuda);
                assert_eq!(timeline.start().total(), timeline.end().total(), "{}, {how:?}", builtin.name);
                assert_eq!(Fsdp2::from_facts(&made.origin.facts()), Some(how), "{}", builtin.name);
                // Each unit once in forward and, if its weights went, once more in backward; the outermost one once.
                let gathers = if how.reshard { 2 * units.len() + 1 } else { units.len() + 1 };
                assert_eq!(collectives(&made, CollectiveKind::AllGather).len(), gathers, "{}, {how:?}", builtin.name);
                let reduced = collectives(&made, CollectiveKind::ReduceScatter).len();
                assert_eq!(reduced, units.len() + 1, "{}, {how:?}", builtin.name);
                let summed = collectives(&made, CollectiveKind::AllReduce).len();
                assert_eq!(summed, if how.replicas > 1 { reduced } else { 0 }, "{}, {how:?}", builtin.name);
            }
        }
    }
}

/// `backward()` holds it until it returns, and FSDP2's last reductions are part of it.
#[test]
fn micro_batches_of_models_with_parameters_that_are_alike_are_sharded() {
    // Weights and biases of norms are as long as each other.
    for name in ["gpt2", "llama-3-8b", "bert-base", "vit-base"] {
        let model = Model::builtin(name).unwrap();
        let once = Options { layers: Some(2), batch: Some(2), ..Options::default() };
        let trace = |options: &Options| model.clone().with(options).unwrap().trace().unwrap();
        let reduced = |trace: &StepTrace| collectives(&spread(trace, Fsdp2::over(4)), CollectiveKind::ReduceScatter);
        let recipe = Recipe { accumulate: Some(3), ..Recipe::default() };
        let thrice = trace(&Options { recipe, ..once.clone() });
        let made = spread(&thrice, Fsdp2::over(4));
        assert_eq!(made.validate(), Ok(()), "{name}");
        let timeline = Timeline::replay(&made, Allocator::Cuda);
        assert_eq!(timeline.start().total(), timeline.end().total(), "{name}");
        // Every micro-batch reduces what a step of one does.
        assert_eq!(reduced(&thrice), reduced(&trace(&once)).repeat(3), "{name}");
    }
}

/// Each rank looks at its rows of the gradients, and all are told what was found, once for all micro-batches.
#[test]
fn the_scaler_looks_at_rows_and_all_ranks_agree() {
    for (accumulate, replicas) in [(None, 1), (Some(3), 1), (None, 2)] {
        let recipe = Recipe { scaler: true, accumulate, ..Recipe::default() };
        let options = Options { layers: Some(2), dtype: Some(Dtype::F16), recipe, ..Options::default() };
        let trace = Model::builtin("llama-3-8b").unwrap().with(&options).unwrap().trace().unwrap();
        let made = spread(&trace, Fsdp2 { shards: Some(Dtype::F32), replicas, ..Fsdp2::over(8) });
        assert_eq!(made.validate(), Ok(()));
        let timeline = Timeline::replay(&made, Allocator::Cuda);
        assert_eq!(timeline.start().total(), timeline.end().total());
        let names: Vec<&str> = made.ops().iter().map(|op| made.op_name(op)).collect();
        let look = names.iter().position(|name| name.starts_with("_amp_foreach_non_finite_check")).unwrap();
        assert_eq!(names[look + 1..look + 3], ["_c10d_functional.all_reduce.default", "copy_.default"]);
        assert_eq!(collectives(&made, CollectiveKind::AllReduce).last(), Some(&4));
        // Shards of parameters and gradients are fp32, and so is what it reads.
        let (_, op) = made.ops().entries().nth(look).unwrap();
        assert!(made.inputs(op).iter().all(|tensor| made.layout_of(*tensor).dtype == Dtype::F32));
        let whole = trace.ops().iter().find(|op| trace.op_name(op) == names[look]).unwrap();
        let elements = |trace: &StepTrace, op| -> u64 {
            trace.inputs(op).iter().map(|tensor| trace.layout_of(*tensor).elements()).sum()
        };
        // Everything divides by eight, but for the two numbers that all ranks have.
        assert_eq!((elements(&made, op) - 2) * 8, elements(&trace, whole) - 2);
    }
}

#[test]
fn the_gradient_of_the_loss_stays_until_all_is_reduced() {
    for builtin in BUILTIN.iter().filter(|builtin| !is_clip(builtin.name)) {
        let made = spread(&step(builtin.name), Fsdp2::over(8));
        let of_loss = |op| made.op_name(made.op(op)) == "ones_like.default";
        let storages = made.storages().entries();
        let (gradient, _) = storages.rev().find(|(_, storage)| storage.birth.is_some_and(of_loss)).unwrap();
        let dropped = made.events().iter().position(|event| *event == Event::Drop(gradient));
        let kind = |op| made.collective_of(made.op(op)).map(|how| how.kind);
        let reduces =
            |event: &Event| matches!(event, Event::Op(op) if kind(*op) == Some(CollectiveKind::ReduceScatter));
        assert!(made.events().iter().rposition(reduces) < dropped, "{}", builtin.name);
    }
}

/// A table of 8192 rows in shards of 2731: the last of three ranks has two rows fewer, and pads its shard.
#[test]
fn shards_are_padded_and_state_is_not() {
    let trace = step("seed-transformer");
    let start = |rank| {
        let made = spread(&trace, Fsdp2 { rank, ..Fsdp2::over(3) });
        let start = *Timeline::replay(&made, Allocator::Cpu).start();
        [start[Category::Parameter].0, start[Category::Optimizer].0]
    };
    let ([first, first_state], [last, last_state]) = (start(0), start(2));
    assert_eq!(first, last);
    // Every parameter of 768 rows divides by three; the two tables of 8192 and of 64 rows do not.
    assert!(last_state < first_state, "{last_state} {first_state}");
}

/// Mixed precision: the shards, their gradients and the optimizer's state take twice what they take in bf16, and what is gathered as
/// much as before.
#[test]
fn mixed_precision_keeps_what_is_gathered() {
    let trace = step("llama-3-8b");
    let half = spread(&trace, Fsdp2::over(8));
    let mixed = spread(&trace, Fsdp2 { shards: Some(Dtype::F32), ..Fsdp2::over(8) });
    let start = |made: &StepTrace| *Timeline::replay(made, Allocator::Cpu).start();
    let (half_start, mixed_start) = (start(&half), start(&mixed));
    assert_eq!(mixed_start[Category::Parameter].0, 2 * half_start[Category::Parameter].0);
    assert_eq!(collectives(&half, CollectiveKind::AllGather), collectives(&mixed, CollectiveKind::AllGather));
    let doubled: Vec<u64> = collectives(&half, CollectiveKind::ReduceScatter).iter().map(|bytes| 2 * bytes).collect();
    assert_eq!(collectives(&mixed, CollectiveKind::ReduceScatter), doubled);
}

#[test]
fn what_cannot_be_sharded_is_refused() {
    let trace = step("gpt2");
    let units = layers(&trace);
    let refused = |how: Fsdp2| fsdp2(&trace, &how, &units).unwrap_err();
    assert_eq!(refused(Fsdp2::over(0)), Fsdp2Error::TooFewRanks);
    assert_eq!(refused(Fsdp2::over(1)), Fsdp2Error::TooFewRanks);
    assert_eq!(refused(Fsdp2 { rank: 8, ..Fsdp2::over(8) }), Fsdp2Error::NoSuchRank { rank: 8, ranks: 8 });
    assert_eq!(refused(Fsdp2 { replicas: 0, ..Fsdp2::over(8) }), Fsdp2Error::NoReplicas);
    let once = spread(&trace, Fsdp2::over(2));
    assert_eq!(fsdp2(&once, &Fsdp2::over(2), &layers(&once)), Err(Fsdp2Error::ShardedAlready));
    assert_eq!(fsdp2(&StepTrace::new("nothing"), &Fsdp2::over(2), &[]), Err(Fsdp2Error::NoParameters));
}
