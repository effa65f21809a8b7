//! Tries.
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let trace = rematic_trace::StepTrace::read(path.as_ref()).unwrap();
    let start = rematic_replay::Ledger::new(&trace, rematic_replay::Allocator::Cuda);
    let schedule = rematic_replay::Schedule::plain(&trace, &start);
    let sm: u32 = std::env::args().nth(2).map_or(90, |x| x.parse().unwrap());
    let scratch = rematic_replay::Scratch::new(
        &trace,
        rematic_replay::Architecture { capability: sm, processors: if sm >= 90 { 132 } else { 108 } },
    );
    let t = std::time::Instant::now();
    let r = rematic_replay::Reserved::new(
        &trace,
        &schedule,
        Default::default(),
        rematic_allocator::Device::with_memory(400 << 30),
        &scratch,
    );
    println!("{:?}", t.elapsed());
    println!("{r:?}");
}
