use rematic_fake::models::SeedTransformer;
use rematic_memory::{Allocator, Timeline};
fn main() {
    let trace = SeedTransformer::default().trace(rematic_fake::Optimizer::Adam).unwrap();
    trace.validate().unwrap();
    let t = Timeline::replay(&trace, Allocator::Cuda);
    for (op, b) in trace.ops().iter().zip(t.totals()) {
        println!("{} {} {}", trace.op_name(op), op.phase, b.0);
    }
}
