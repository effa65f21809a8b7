use rematic_fake::models::{Model, Options};
use rematic_memory::{Allocator, Timeline};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let model = if a[1].ends_with(".json") {
        Model::from_config(&a[1], &std::fs::read_to_string(&a[1]).unwrap()).unwrap()
    } else {
        Model::builtin(&a[1]).unwrap()
    };
    let d = match a[4].as_str() {
        "fp32" => rematic_fake::Dtype::F32,
        "bf16" => rematic_fake::Dtype::Bf16,
        _ => rematic_fake::Dtype::F16,
    };
    let o = Options { batch: a[2].parse().ok(), seq: a[3].parse().ok(), dtype: Some(d), ..Default::default() };
    let trace = model.with(&o).unwrap().trace().unwrap();
    if let Err(e) = trace.validate() {
        eprintln!("{e}");
    }
    let t = Timeline::replay(&trace, Allocator::Cuda);
    for (op, b) in trace.ops().iter().zip(t.totals()) {
        println!("{} {} {}", trace.op_name(op), op.phase, b.0);
    }
}
