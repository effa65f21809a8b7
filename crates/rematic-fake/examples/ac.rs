//! x
use rematic_fake::models::{Model, Options};
use rematic_memory::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let o = if a[1].ends_with("json") {
        Options { batch: Some(2), seq: Some(64), dtype: Some(rematic_fake::Dtype::Bf16), ..Default::default() }
    } else {
        Options { batch: Some(2), seq: Some(64), layers: Some(2), heads: Some(4), vocab: Some(128), dim: Some(64), ..Default::default() }
    };
    let m = if a[1].ends_with("json") { Model::from_config("x", &std::fs::read_to_string(&a[1]).unwrap()).unwrap() } else { Model::builtin("seed-transformer").unwrap() };
    let trace = m.with(&o).unwrap().trace().unwrap();
    let regions = Regions::new(&trace);
    let save: Vec<&str> = a[3].split(',').collect();
    let units: Vec<&str> = a[2].split(',').collect();
    let cps: Vec<Checkpoint> = regions.all().iter().enumerate().filter(|(_, r)| {
        let p = trace.path(r.module);
        units.contains(&p.split_once('.').map_or("", |x| x.1))
    }).map(|(i, r)| Checkpoint { region: i, saved: r.ops.clone().map(rematic_trace::OpId::new).filter(|o| save.contains(&trace.op_name(trace.op(*o)))).collect() }).collect();
    let mut l = Ledger::new(&trace, Allocator::Cuda).with_copies();
    replay_checkpointed(&trace, &regions, &cps, &mut l, |r, s| println!("{} {} {}", trace.op_name(trace.op(r.op)), r.again, s.total().0));
}
