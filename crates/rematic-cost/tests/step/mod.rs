//! Hand-made steps: operators by their shapes, without storages' births and deaths.

#![allow(dead_code, reason = "each test file uses a part of it")]

use rematic_cost::{CostRule, Costs, Device};
use rematic_trace::{
    CallId, Category, Dtype, Event, Flags, Layout, Millis, Module, ModuleId, OpRecord, Phase, StepTrace, StorageId,
    Tensor,
};

pub(crate) struct Step {
    pub(crate) trace: StepTrace,
    pub(crate) phase: Phase,
    pub(crate) call: Option<CallId>,
    pub(crate) flags: Flags,
}

impl Step {
    pub(crate) fn new() -> Self {
        Step { trace: StepTrace::new("by hand"), phase: Phase::Forward, call: None, flags: Flags::default() }
    }

    pub(crate) fn module(&mut self, name: &str, parent: Option<ModuleId>) -> ModuleId {
        let module = Module {
            name: name.to_owned(),
            class: "Module".to_owned(),
            parent,
            parameters: Vec::new(),
            buffers: Vec::new(),
        };
        self.trace.add_module(module)
    }

    /// A tensor in a storage of its own that exists before the step.
    pub(crate) fn tensor(&mut self, layout: &Layout) -> Tensor {
        let bytes = layout.checked_bytes().unwrap_or(0);
        let storage = self.trace.storage_before_step(bytes, Category::Other);
        Tensor { storage, layout: self.trace.layout(layout) }
    }

    pub(crate) fn f32(&mut self, shape: &[u64]) -> Tensor {
        self.tensor(&Layout::contiguous(Dtype::F32, shape))
    }

    pub(crate) fn bf16(&mut self, shape: &[u64]) -> Tensor {
        self.tensor(&Layout::contiguous(Dtype::Bf16, shape))
    }

    pub(crate) fn of(&mut self, dtype: Dtype, shape: &[u64]) -> Tensor {
        self.tensor(&Layout::contiguous(dtype, shape))
    }

    pub(crate) fn run(&mut self, name: &str, inputs: &[Tensor], outputs: &[Tensor]) {
        self.run_in_place(name, inputs, outputs, &[]);
    }

    pub(crate) fn run_in_place(&mut self, name: &str, inputs: &[Tensor], outputs: &[Tensor], mutates: &[StorageId]) {
        self.trace.run(OpRecord {
            name,
            phase: self.phase,
            call: self.call,
            differentiates: None,
            flags: self.flags,
            mutates,
            inputs,
            outputs,
            saves: &[],
            births: &[],
        });
    }

    pub(crate) fn enter(&mut self, module: ModuleId) -> CallId {
        let call = self.trace.enter(module, Vec::new());
        self.call = Some(call);
        call
    }

    pub(crate) fn exit(&mut self, call: CallId, then: Option<CallId>) {
        self.trace.exit(call, Vec::new());
        self.call = then;
    }

    pub(crate) fn push(&mut self, event: Event) {
        self.trace.push(event);
    }

    pub(crate) fn costs(&self, device: &str, rule: CostRule) -> Costs {
        self.trace.validate().expect("a hand-made step is valid");
        Costs::new(&self.trace, &Device::find(device).unwrap(), rule).unwrap()
    }

    /// The time of the last operator.
    pub(crate) fn last_time(&self, device: &str, rule: CostRule) -> f64 {
        self.costs(device, rule).times().last().unwrap().0
    }
}

#[track_caller]
pub(crate) fn assert_close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * expected.abs(), "found {found}, expected {expected}");
}

#[track_caller]
pub(crate) fn assert_millis(found: Millis, expected: f64) {
    assert_close(found.0, expected);
}
