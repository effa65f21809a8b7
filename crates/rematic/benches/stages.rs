//! What each stage costs: `cargo bench`.

use rematic::{
    Allocator, CostRule, CostSource, Costs, Device, Model, Options, StatsReport, StepStats, StepTrace, Target, Timeline,
};

fn main() {
    divan::main();
}

const MODELS: [&str; 4] = ["seed-transformer", "gpt2-xl", "llama-3-8b", "llama-3-405b"];

fn model(name: &str) -> Model {
    Model::builtin(name).unwrap().with(&Options::default()).unwrap()
}

#[divan::bench(args = MODELS)]
fn trace(bencher: divan::Bencher<'_, '_>, name: &str) {
    bencher.with_inputs(|| model(name)).bench_values(|model| model.trace().unwrap());
}

#[divan::bench(args = MODELS)]
fn validate(bencher: divan::Bencher<'_, '_>, name: &str) {
    let trace = model(name).trace().unwrap();
    bencher.bench(|| trace.validate());
}

#[divan::bench(args = MODELS)]
fn replay(bencher: divan::Bencher<'_, '_>, name: &str) {
    let trace = model(name).trace().unwrap();
    bencher.bench(|| Timeline::replay(&trace, Allocator::Cuda));
}

/// Three steps through PyTorch's caching allocator, with what kernels take for themselves.
#[divan::bench(args = MODELS)]
fn memory(bencher: divan::Bencher<'_, '_>, name: &str) {
    let trace = model(name).trace().unwrap();
    let target = Target::find("b200", None, CostSource::Rule(CostRule::Physical)).unwrap();
    bencher.bench(|| target.memory(&trace));
}

#[divan::bench(args = MODELS)]
fn costs(bencher: divan::Bencher<'_, '_>, name: &str) {
    let trace = model(name).trace().unwrap();
    let device = Device::find("h100").unwrap();
    bencher.bench(|| Costs::new(&trace, &device, CostRule::Physical));
}

#[divan::bench(args = MODELS)]
fn report(bencher: divan::Bencher<'_, '_>, name: &str) {
    let trace = model(name).trace().unwrap();
    let device = Device::find("h100").unwrap();
    let timeline = Timeline::replay(&trace, Allocator::Cuda);
    let costs = Costs::new(&trace, &device, CostRule::Physical).unwrap();
    bencher.bench(|| {
        let stats = StepStats::new(&trace, &timeline, &costs);
        let device = &device;
        StatsReport {
            trace: &trace,
            timeline: &timeline,
            costs: &costs,
            stats: &stats,
            device,
            memory: None,
            pace: None,
        }
        .json(false)
    });
}

#[divan::bench(args = MODELS)]
fn file(bencher: divan::Bencher<'_, '_>, name: &str) {
    let trace = model(name).trace().unwrap();
    bencher.bench(|| {
        let mut text = Vec::new();
        trace.to_writer(&mut text).unwrap();
        StepTrace::from_json(&text, std::path::Path::new("memory")).unwrap()
    });
}
