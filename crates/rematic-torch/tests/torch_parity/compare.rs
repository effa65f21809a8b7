//! One native step against one fixture. Each check ends with the first difference.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};

use rematic_cost::{CostRule, Costs, Device, ModuleTimes};
use rematic_replay::{Allocator, ModuleMemory, Snapshot, Timeline};
use rematic_torch::{ModuleStats, StepStats};
use rematic_trace::{Bytes, Millis, ModuleId, OpId, StepTrace};

use crate::fixture::{ByCategory, CATEGORIES, Fixture, ModuleSaid, OpSaid, STATES, StatsSaid};

/// The device that the oracle asks for: "NVIDIA A100".
const DEVICE: &str = "a100-80";
/// Sums of times in another order differ by rounding.
const TIME_TOLERANCE: f64 = 1e-9;
/// Operators that are shown before a difference.
const CONTEXT: usize = 8;

type Outcome = Result<(), String>;

pub(crate) struct Comparison<'a> {
    said: &'a Fixture,
    trace: StepTrace,
    timeline: Timeline,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(said: &'a Fixture) -> Self {
        let trace = said.model().trace().unwrap_or_else(|error| panic!("{error}"));
        let timeline = Timeline::replay(&trace, Allocator::Cuda);
        Comparison { said, trace, timeline }
    }

    pub(crate) fn run(&self) -> Outcome {
        self.trace.validate().map_err(|error| format!("the trace is not valid: {error}"))?;
        self.file()?;
        self.ops()?;
        same("peak", by_category(&self.timeline.peak().snapshot), self.said.peak)?;
        self.modules()?;
        self.stats()
    }

    /// The trace survives its file.
    fn file(&self) -> Outcome {
        let directory = tempfile::tempdir().unwrap();
        for name in ["trace.rmt", "trace.rmt.zst"] {
            let path = directory.path().join(name);
            self.trace.write(&path).map_err(|error| error.to_string())?;
            let read = StepTrace::read(&path).map_err(|error| error.to_string())?;
            if read != self.trace {
                return Err(format!("{name} reads as another trace than was written"));
            }
        }
        Ok(())
    }

    fn ops(&self) -> Outcome {
        let said = self.said.timeline();
        let ours: Vec<OpSaid> = (self.trace.ops().iter().zip(self.timeline.totals()))
            .map(|(op, total)| OpSaid {
                name: self.trace.op_name(op).to_owned(),
                phase: op.phase.to_string(),
                total: total.0,
            })
            .collect();
        let Some(at) = (0..ours.len().max(said.len())).find(|&at| ours.get(at) != said.get(at)) else { return Ok(()) };
        let mut text = format!("operator {at} differs (ours {}, torch's {} operators)\n", ours.len(), said.len());
        for row in at.saturating_sub(CONTEXT)..at + 4 {
            let line = |ops: &[OpSaid]| {
                ops.get(row).map_or("-".to_owned(), |op| format!("{} {} {}", op.name, op.phase, op.total))
            };
            let mark = if row == at { '>' } else { ' ' };
            let _ = writeln!(text, "{mark} {row:5} {:60} | {:60} {}", line(&ours), line(&said), self.where_is(row));
        }
        Err(text)
    }

    /// The module of an operator and the layouts that it touches.
    fn where_is(&self, row: usize) -> String {
        if row >= self.trace.ops().len() {
            return String::new();
        }
        let op = self.trace.op(OpId::new(row));
        let module = self.trace.module_of(op).map_or_else(String::new, |module| self.trace.path(module));
        let layouts = |tensors: &[rematic_trace::Tensor]| {
            tensors.iter().map(|tensor| self.trace.layout_of(*tensor).to_string()).collect::<Vec<_>>().join(", ")
        };
        format!("{module}: {} -> {}", layouts(self.trace.inputs(op)), layouts(self.trace.outputs(op)))
    }

    fn modules(&self) -> Outcome {
        let ours: BTreeMap<String, &ModuleMemory> = (self.timeline.modules().iter().enumerate())
            .filter_map(|(index, memory)| Some((self.trace.path(ModuleId::new(index)), memory.as_ref()?)))
            .collect();
        same("modules", ours.keys().collect::<Vec<_>>(), self.said.modules.keys().collect())?;
        for (path, memory) in ours {
            let said = &self.said.modules[&path];
            same(&format!("{path}: parameters"), memory.parameter_bytes, Bytes(said.parameter))?;
            same(&format!("{path}: buffers"), memory.buffer_bytes, Bytes(said.buffer))?;
            same(&format!("{path}: inputs"), memory.input_bytes, Bytes(said.input))?;
            same(&format!("{path}: outputs"), memory.output_bytes, Bytes(said.output))?;
            snapshots(&path, memory, said)?;
        }
        Ok(())
    }

    fn stats(&self) -> Outcome {
        let device = Device::find(DEVICE).unwrap();
        let costs = Costs::new(&self.trace, &device, CostRule::Torch).map_err(|error| error.to_string())?;
        let stats = StepStats::new(&self.trace, &self.timeline, &costs);
        if let Some(said) = &self.said.order {
            let orders = &stats.orders;
            for (name, ours) in [
                ("fw_pre_order", &orders.fw_pre),
                ("fw_post_order", &orders.fw_post),
                ("bw_pre_order", &orders.bw_pre),
                ("bw_post_order", &orders.bw_post),
            ] {
                let ours: Vec<String> = ours.iter().map(|&module| self.trace.path(module)).collect();
                same(name, ours, said[name].clone())?;
            }
        }
        if let Some(said) = &self.said.runtime_ms {
            close("time of the step", costs.step().time.0 + self.host_time().0, said.total)?;
            let times = ModuleTimes::new(&self.trace, &costs);
            let ran = self.trace.modules().ids().filter(|&module| self.timeline.module(module).is_some());
            for module in ran {
                let path = self.trace.path(module);
                // Torch lists only modules that some operator ran in.
                let (fw, bw) = said.modules.get(&path).map_or((0.0, 0.0), |passes| (passes.fw, passes.bw));
                close(&format!("{path}: forward time"), times.forward()[module].0, fw)?;
                close(&format!("{path}: backward time"), times.backward()[module].0, bw)?;
            }
            // Torch counts operators outside all modules for `Global`.
            let known: Vec<String> = self.trace.modules().ids().map(|module| self.trace.path(module)).collect();
            let unknown: Vec<_> =
                said.modules.keys().filter(|path| *path != "Global" && !known.contains(path)).collect();
            same("modules with a time that are not ours", unknown, vec![])?;
        }
        if let Some(said) = &self.said.mod_stats {
            same("number of module stats", stats.modules.len(), said.len())?;
            let by_name: BTreeMap<&str, &ModuleStats> =
                stats.modules.iter().map(|module| (module.fqn.as_str(), module)).collect();
            for module in said {
                let Some(ours) = by_name.get(module.fqn.as_str()) else {
                    return Err(format!("no stats of {}", module.fqn));
                };
                self.module_stats(ours, module, &stats)?;
            }
        }
        if let Some(said) = &self.said.baseline {
            same("peak of the baseline", stats.baseline.peak_bytes, Bytes(said.peak_bytes))?;
            close("time of the baseline", stats.baseline.compute_ms.0, said.compute_ms)?;
        }
        Ok(())
    }

    /// The time that torch charges for Adam's step counters, as if the device read them. They are fp32 numbers in host
    /// memory, which a trace does not hold: all of them plus the number 1, which is of torch's default type, and each of
    /// them twice for the bias corrections.
    fn host_time(&self) -> Millis {
        const COUNTER: u64 = 4;
        let count = |name| self.trace.ops().iter().filter(|op| self.trace.op_name(op) == name).count() as u64;
        let reads = count("_local_scalar_dense.default");
        let one = if reads > 0 { self.said.default_dtype().size() } else { 0 };
        let sheet = Device::find(DEVICE).unwrap().torch_datasheet.unwrap();
        sheet.dram.time(Bytes((reads + reads / 2) * COUNTER + one))
    }

    fn module_stats(&self, ours: &ModuleStats, said: &StatsSaid, stats: &StepStats) -> Outcome {
        let field = |name: &str| format!("{}: {name}", said.fqn);
        for (name, ours, said) in [
            ("param_per_module", ours.param_per_module, said.param_per_module),
            ("grad_per_module", ours.grad_per_module, said.grad_per_module),
            ("grad_total", ours.grad_total, said.grad_total),
            ("act_fw_per_module", ours.act_fw_per_module, said.act_fw_per_module),
            ("act_bw_per_module", ours.act_bw_per_module, said.act_bw_per_module),
            ("act_total", ours.act_total, said.act_total),
            ("input_per_module", ours.input_per_module, said.input_per_module),
            ("output_per_module", ours.output_per_module, said.output_per_module),
        ] {
            same(&field(name), ours, Bytes(said))?;
        }
        same(&field("act_grad_per_module"), ours.act_grad_per_module, said.act_grad_per_module)?;
        same(&field("is_leaf"), ours.is_leaf, said.is_leaf)?;
        close(&field("fw_runtime_per_module"), ours.fw_runtime_per_module.0, said.fw_runtime_per_module)?;
        close(&field("bw_runtime_per_module"), ours.bw_runtime_per_module.0, said.bw_runtime_per_module)?;
        let position = stats.orders.fw_post.iter().position(|&module| self.trace.path(module) == said.fqn);
        same(&field("pos_fw_post_order"), position, Some(said.pos_fw_post_order))
    }
}

fn snapshots(path: &str, memory: &ModuleMemory, said: &ModuleSaid) -> Outcome {
    let ours = [
        memory.forward.pre,
        memory.forward.peak,
        memory.forward.post,
        memory.backward.pre,
        memory.backward.peak,
        memory.backward.post,
    ];
    for ((state, ours), said) in STATES.iter().zip(ours).zip(said.snapshots) {
        same(&format!("{path}: {state}, as {CATEGORIES:?}"), ours.as_ref().map(by_category), said)?;
    }
    Ok(())
}

fn by_category(snapshot: &Snapshot) -> ByCategory {
    CATEGORIES.map(|category| snapshot[category].0)
}

fn same<T: PartialEq + Debug>(what: &str, ours: T, said: T) -> Outcome {
    if ours == said { Ok(()) } else { Err(format!("{what}\n  ours:  {ours:?}\n  torch: {said:?}")) }
}

fn close(what: &str, ours: f64, said: f64) -> Outcome {
    let near = (ours - said).abs() <= TIME_TOLERANCE * ours.abs().max(said.abs());
    if near { Ok(()) } else { Err(format!("{what}\n  ours:  {ours:e}\n  torch: {said:e}")) }
}
