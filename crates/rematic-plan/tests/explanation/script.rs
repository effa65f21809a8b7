//! Steps written by hand, with real shapes.

use rematic_trace::{
    Category, Dtype, Event, Flags, Layout, Module, OpId, OpRecord, Parameter, Phase, StepTrace, StorageId, Tensor,
};

pub(crate) struct Script {
    pub(crate) trace: StepTrace,
}

/// One operator that makes tensors of 32-bit floats.
#[derive(Clone, Copy)]
pub(crate) struct Action<'a> {
    pub(crate) name: &'a str,
    pub(crate) phase: Phase,
    pub(crate) reads: &'a [Tensor],
    pub(crate) makes: &'a [&'a [u64]],
    pub(crate) differentiates: Option<OpId>,
}

impl Script {
    pub(crate) fn new() -> Self {
        let mut trace = StepTrace::new("by hand");
        let (parameters, buffers) = (Vec::new(), Vec::new());
        let (name, class) = ("Model".to_owned(), "Model".to_owned());
        trace.add_module(Module { name, class, parent: None, parameters, buffers });
        Script { trace }
    }

    /// A tensor of 32-bit floats that exists before the step.
    pub(crate) fn before(&mut self, shape: &[u64], category: Category) -> Tensor {
        let layout = Layout::contiguous(Dtype::F32, shape);
        let storage = self.trace.storage_before_step(layout.checked_bytes().unwrap(), category);
        let tensor = Tensor { storage, layout: self.trace.layout(&layout) };
        if category == Category::Parameter {
            let name = format!("p{storage}");
            let root = rematic_trace::ModuleId::new(0);
            let parameter = Parameter { name, storage, layout: tensor.layout };
            self.trace.module_mut(root).parameters.push(parameter);
        }
        tensor
    }

    pub(crate) fn run(&mut self, action: Action<'_>) -> (OpId, Vec<Tensor>) {
        let category = match action.phase {
            Phase::Forward => Category::Activation,
            Phase::Backward => Category::Temp,
            Phase::Optimizer => Category::Optimizer,
        };
        let layouts: Vec<Layout> = action.makes.iter().map(|shape| Layout::contiguous(Dtype::F32, shape)).collect();
        let first = self.trace.next_storage().index();
        let outputs: Vec<Tensor> = layouts
            .iter()
            .enumerate()
            .map(|(at, layout)| Tensor { storage: StorageId::new(first + at), layout: self.trace.layout(layout) })
            .collect();
        let births: Vec<_> = layouts.iter().map(|layout| (layout.checked_bytes().unwrap(), category)).collect();
        let id = self.trace.run(OpRecord {
            name: action.name,
            phase: action.phase,
            call: None,
            differentiates: action.differentiates,
            flags: Flags::default(),
            mutates: &[],
            inputs: action.reads,
            outputs: &outputs,
            saves: &[],
            births: &births,
        });
        (id, outputs)
    }

    /// A forward operator with one result.
    pub(crate) fn forward(&mut self, name: &str, reads: &[Tensor], shape: &[u64]) -> (OpId, Tensor) {
        let action = Action { name, phase: Phase::Forward, reads, makes: &[shape], differentiates: None };
        let (id, outputs) = self.run(action);
        (id, outputs[0])
    }

    /// A backward operator with one result.
    pub(crate) fn backward(&mut self, name: &str, of: OpId, reads: &[Tensor], shape: &[u64]) -> Tensor {
        let action = Action { name, phase: Phase::Backward, reads, makes: &[shape], differentiates: Some(of) };
        self.run(action).1[0]
    }

    pub(crate) fn drop(&mut self, tensor: Tensor) {
        self.trace.push(Event::Drop(tensor.storage));
    }
}
