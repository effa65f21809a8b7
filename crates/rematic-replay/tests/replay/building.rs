//! How a model is built before its first step.

use rematic_allocator::{Device, Settings};
use rematic_replay::{Allocator, Ledger, Reserved, Schedule, Scratch};
use rematic_trace::{Category, Dtype, Layout, Module, ModuleId, Parameter, StepTrace};

const ELEMENTS: u64 = 4 << 20;

/// A body of two modules that share a weight, and a head that shares it too or has one of its own.
fn model(head_shares: bool) -> StepTrace {
    let mut trace = StepTrace::new("tied");
    let layout = trace.layout(&Layout::contiguous(Dtype::F32, &[ELEMENTS]));
    let shared = trace.storage_before_step(ELEMENTS * 4, Category::Parameter);
    let own = if head_shares { shared } else { trace.storage_before_step(ELEMENTS * 4, Category::Parameter) };
    let parents = [None, Some(0), Some(1), Some(1), Some(0)];
    let weights = [None, None, Some(shared), Some(shared), Some(own)];
    for (at, (parent, weight)) in parents.into_iter().zip(weights).enumerate() {
        let parameters = weight.map(|storage| Parameter { name: "weight".to_owned(), storage, layout });
        trace.add_module(Module {
            name: at.to_string(),
            class: "Module".to_owned(),
            parent: parent.map(ModuleId::new),
            parameters: parameters.into_iter().collect(),
            buffers: Vec::new(),
        });
    }
    trace
}

/// For every request whether it takes a block, and where that lies.
fn requests(trace: &StepTrace) -> Vec<(bool, u64)> {
    let start = Ledger::new(trace, Allocator::Cuda);
    let schedule = Schedule::plain(trace, &start);
    let (settings, device, scratch) = (Settings::default(), Device::with_memory(1 << 40), Scratch::new(trace, None));
    let (_, asked) = Reserved::recorded(trace, &schedule, settings, device, &scratch).unwrap();
    asked.iter().map(|request| (request.takes.is_some(), request.address)).collect()
}

#[test]
fn what_is_tied_goes_when_the_module_around_both_is_whole() {
    let found = requests(&model(false));
    let [(true, _), (true, copy), (false, gone), (true, head)] = found[..] else { panic!("{found:?}") };
    assert_eq!((gone, head), (copy, copy), "the body is whole, and the head lies where the copy was");
}

#[test]
fn what_the_head_shares_goes_at_the_end() {
    let found = requests(&model(true));
    let [(true, _), (true, copy), (false, gone), (true, head), (false, last)] = found[..] else { panic!("{found:?}") };
    assert_eq!((gone, head, last), (copy, copy, copy));
}
