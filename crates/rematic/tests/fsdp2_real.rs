//! Steps under FSDP2 as PyTorch's own FSDP2 and CUDA allocator run them, on a GPU that is not there.
//!
//! The figures are those of `tests/allocator/predictions sharded`, torch 2.15.

use rematic::{CostRule, CostSource, Dtype, Fsdp2, Model, Optimizer, Options, StepTrace, Target, fsdp2, fsdp2_layers};
use rematic_replay::{Allocator, Ledger, Reserved, Schedule};

/// More than any of the steps takes.
const ROOM: u64 = 1 << 42;

/// What PyTorch allocates and reserves, and how near we come: parts in a million.
struct Real {
    trace: StepTrace,
    how: Fsdp2,
    allocated: u64,
    reserved: u64,
    near: (u64, u64),
}

fn step(name: &str, options: Options) -> StepTrace {
    Model::builtin(name).unwrap().with(&options).unwrap().trace().unwrap()
}

fn steps() -> Vec<Real> {
    let seed = || step("seed-transformer", Options::default());
    let adam = Some(Optimizer::Adam);
    let gpt2 = || step("gpt2", Options { batch: Some(4), seq: Some(512), optimizer: adam, ..Options::default() });
    let optimizer = Some(Optimizer::AdamW);
    let llama = || step("llama-3-8b", Options { batch: Some(1), seq: Some(8192), optimizer, ..Options::default() });
    let eight = Fsdp2::over(8);
    let real = |trace, how, allocated, reserved, near| Real { trace, how, allocated, reserved, near };
    vec![
        real(seed(), Fsdp2::over(2), 2_614_421_504, 2_971_664_384, (151, 0)),
        real(seed(), Fsdp2 { reshard: false, ..eight }, 2_537_076_736, 2_774_532_096, (156, 0)),
        real(seed(), Fsdp2 { rank: 2, ..Fsdp2::over(3) }, 2_540_962_816, 2_841_640_960, (413, 0)),
        real(gpt2(), eight, 4_205_344_768, 4_877_975_552, (0, 431)),
        real(gpt2(), Fsdp2 { rank: 7, ..eight }, 4_205_344_768, 4_877_975_552, (0, 431)),
        real(gpt2(), Fsdp2 { replicas: 2, rank: 3, ..Fsdp2::over(4) }, 4_386_084_864, 5_014_290_432, (0, 0)),
        real(llama(), eight, 76_193_035_264, 85_796_585_472, (0, 0)),
        real(llama(), Fsdp2::over(64), 70_936_423_936, 77_936_459_776, (33, 0)),
        real(llama(), Fsdp2 { rank: 1023, ..Fsdp2::over(1024) }, 70_224_408_064, 77_412_171_776, (0, 0)),
        real(llama(), Fsdp2 { reshard: false, ..eight }, 89_715_979_264, 99_371_450_368, (0, 0)),
        real(llama(), Fsdp2 { replicas: 2, ..Fsdp2::over(4) }, 82_214_158_336, 93_811_900_416, (0, 0)),
        real(llama(), Fsdp2 { shards: Some(Dtype::F32), ..eight }, 82_214_158_336, 94_078_238_720, (0, 0)),
    ]
}

fn distance(found: u64, real: u64) -> u64 {
    (u128::from(found.abs_diff(real)) * 1_000_000).div_ceil(u128::from(real)).try_into().unwrap()
}

#[test]
fn allocated_and_reserved_are_pytorchs() {
    // There is no cuDNN on that runtime.
    let mut target = Target::find("h100", None, CostSource::Rule(CostRule::Physical)).unwrap();
    target.prefers_cudnn = false;
    for Real { trace, how, allocated, reserved, near } in steps() {
        let rank = fsdp2(&trace, &how, &fsdp2_layers(&trace)).unwrap();
        let start = Ledger::new(&rank, Allocator::Cuda);
        let device = rematic_allocator::Device::with_memory(ROOM);
        let scratch = target.scratch(&rank);
        let schedule = Schedule::plain(&rank, &start);
        let found = Reserved::new(&rank, &schedule, target.settings.clone(), device, &scratch).unwrap().counters;
        let far = (distance(found.allocated.peak, allocated), distance(found.reserved.peak, reserved));
        let (allocated, reserved) = (found.allocated.peak, found.reserved.peak);
        let model = &trace.origin.model;
        assert!(far.0 <= near.0 && far.1 <= near.1, "{model}, {how:?}: {allocated} and {reserved}, {far:?} away");
    }
}
