use rematic_trace::{Bytes, Flops, Layout, Millis, NameId, Op, OpId, Phase, StepTrace, Table};

use crate::bytes::{Reading, Traffic};
use crate::device::{Device, GbPerSecond};
use crate::error::CostError;
use crate::flops::Formula;
use crate::rules::{CostRule, NoRate, Roofline, only_allocates, torch_skips, without_overload};
use crate::signature::Signatures;
use crate::table::CostTable;

/// What an operator, a phase or a step costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Time on the device.
    pub time: Millis,
    /// Floating-point operations.
    pub flops: Flops,
    /// Bytes moved to and from device memory.
    pub bytes: Bytes,
}

impl Cost {
    fn add(&mut self, other: Cost) {
        self.time += other.time;
        self.flops = Flops(self.flops.0.saturating_add(other.flops.0));
        self.bytes = Bytes(self.bytes.0.saturating_add(other.bytes.0));
    }
}

/// What every operator of a step costs on one device by one rule.
///
/// ```
/// use rematic_cost::{CostRule, Costs, Device};
/// use rematic_trace::{Phase, StepTrace};
///
/// let trace = StepTrace::new("nothing");
/// let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
/// assert_eq!(costs.total(Phase::Forward).time.0, 0.0);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    rule: CostRule,
    device: String,
    times: Table<OpId, Millis>,
    flops: Table<OpId, Flops>,
    bytes: Table<OpId, Bytes>,
    totals: [Cost; 3],
    measured: Option<Measured>,
    host: GbPerSecond,
}

/// How much of a step's time was measured; the rest follows the physical rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What it was measured on.
    pub device: String,
    /// Operators whose time was measured.
    pub ops: usize,
    /// Operators for which a kernel runs.
    pub of_ops: usize,
    /// The time of those that were measured.
    pub time: Millis,
    /// The time of the step.
    pub of_time: Millis,
}

impl Measured {
    /// The share of the step's time, from 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.of_time.0 > 0.0 { self.time.0 / self.of_time.0 } else { 0.0 }
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Measured { device, ops, of_ops, .. } = self;
        write!(f, "{ops} of {of_ops} kernels, {:.1} % of the time, measured on {device}", self.share() * 100.0)
    }
}

impl Costs {
    /// Costs every operator of a valid trace, in time linear in the trace.
    ///
    /// # Errors
    /// If an operator multiplies in a type that the device has no rate for, or if the `torch` rule is asked for on a
    /// device that torch has no numbers for.
    pub fn new(trace: &StepTrace, device: &Device, rule: CostRule) -> Result<Costs, CostError> {
        Self::with_times(trace, device, rule, |_| None)
    }

    /// Costs every operator by its measured time; those that were not measured follow the physical rule of the device.
    /// Operators for which no kernel runs still cost nothing.
    ///
    /// # Errors
    /// If the table knows no operator of the step, or if one that was not measured multiplies in a type that the device
    /// has no rate for.
    pub fn measured(trace: &StepTrace, device: &Device, table: &CostTable) -> Result<Costs, CostError> {
        let signatures = Signatures::new(trace);
        let known: Vec<Option<Millis>> = signatures.all().iter().map(|(signature, _)| table.time(signature)).collect();
        if known.iter().all(Option::is_none) {
            return Err(CostError::NothingMeasured {
                signatures: known.len(),
                rows: table.rows().len(),
                device: table.device().to_owned(),
            });
        }
        let time_of = |op: OpId| known[signatures.of_op()[op]?];
        let mut costs = Self::with_times(trace, device, CostRule::Physical, time_of)?;
        costs.measured = Some(Measured {
            device: table.device().to_owned(),
            ops: trace.ops().ids().filter_map(time_of).count(),
            of_ops: signatures.of_op().iter().flatten().count(),
            time: trace.ops().ids().filter_map(time_of).sum(),
            of_time: costs.step().time,
        });
        Ok(costs)
    }

    fn with_times(
        trace: &StepTrace,
        device: &Device,
        rule: CostRule,
        time_of: impl Fn(OpId) -> Option<Millis>,
    ) -> Result<Costs, CostError> {
        let roofline = Roofline::new(device, rule)?;
        let kernels: Table<NameId, Kernel> = trace.names().iter().map(|name| Kernel::named(name)).collect();
        let mut traffic = Traffic::new(trace);
        let len = trace.ops().len();
        let mut costs = Costs {
            rule,
            device: device.name.clone(),
            times: Vec::with_capacity(len).into(),
            flops: Vec::with_capacity(len).into(),
            bytes: Vec::with_capacity(len).into(),
            totals: [Cost::default(); 3],
            measured: None,
            host: device.host_link.rate(),
        };
        for (id, op) in trace.ops().entries() {
            let kernel = kernels[op.name];
            let no_rate = |NoRate(dtype)| CostError::NoRate {
                op: id,
                name: trace.op_name(op).to_owned(),
                dtype,
                device: device.name.clone(),
                rule,
            };
            let mut cost = kernel.cost(op, trace, &roofline, &mut traffic, time_of(id)).map_err(no_rate)?;
            let sent = trace.collective_of(op).filter(|_| rule == CostRule::Physical);
            if let (Some(collective), None) = (sent, time_of(id)) {
                cost.time = device.links.time(collective, &trace.place);
            }
            costs.times.push(cost.time);
            costs.flops.push(cost.flops);
            costs.bytes.push(cost.bytes);
            if sent.is_none() {
                costs.totals[row(op.phase)].add(cost);
            }
        }
        Ok(costs)
    }

    /// The rule that they follow.
    #[must_use]
    pub fn rule(&self) -> CostRule {
        self.rule
    }

    /// How much of the time was measured, where a table was given.
    #[must_use]
    pub fn measurements(&self) -> Option<&Measured> {
        self.measured.as_ref()
    }

    /// What copies between the device and pinned memory of the host reach, one direction.
    #[must_use]
    pub fn host_rate(&self) -> GbPerSecond {
        self.host
    }

    /// The name of the device that they hold for.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Time of each operator.
    #[must_use]
    pub fn times(&self) -> &Table<OpId, Millis> {
        &self.times
    }

    /// Flops of each operator.
    #[must_use]
    pub fn flops(&self) -> &Table<OpId, Flops> {
        &self.flops
    }

    /// Touched bytes of each operator.
    #[must_use]
    pub fn bytes(&self) -> &Table<OpId, Bytes> {
        &self.bytes
    }

    /// An operator's time.
    #[must_use]
    pub fn time(&self, op: OpId) -> Millis {
        self.times[op]
    }

    /// The sum over a phase, in the order of execution: of what is computed. What is sent between ranks runs beside it as far as
    /// streams let it, which a clock knows; only the `torch` rule adds it up too.
    #[must_use]
    pub fn total(&self, phase: Phase) -> Cost {
        self.totals[row(phase)]
    }

    /// The sum over the step, as [`Costs::total`].
    #[must_use]
    pub fn step(&self) -> Cost {
        let mut step = Cost::default();
        for total in self.totals {
            step.add(total);
        }
        step
    }

    /// For each of the step's signatures, the share of the step's time of all operators that have it, from 0 to 1.
    #[must_use]
    pub fn shares(&self, signatures: &Signatures) -> Vec<f64> {
        let mut times = vec![0.0; signatures.all().len()];
        for (signature, time) in signatures.of_op().iter().zip(&self.times) {
            if let Some(signature) = signature {
                times[*signature] += time.0;
            }
        }
        let step = self.step().time.0;
        times.into_iter().map(|time| if step > 0.0 { time / step } else { 0.0 }).collect()
    }
}

fn row(phase: Phase) -> usize {
    match phase {
        Phase::Forward => 0,
        Phase::Backward => 1,
        Phase::Optimizer => 2,
    }
}

/// What an operator's name says about its cost. Looked up once per name, not per call.
///
/// Together with the bytes per layout this leaves a few additions per call: 24–93 ns on the traces of the seed transformer
/// and gpt2. Remembering whole calls by name and layouts would not pay, although 88–94 % of them recur: making and looking
/// up the key alone took 78–116 ns.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    formula: Formula,
    reading: Reading,
    torch_skips: bool,
    only_allocates: bool,
}

impl Kernel {
    fn named(name: &str) -> Kernel {
        let operator = without_overload(name);
        Kernel {
            formula: Formula::of(operator),
            reading: Reading::of(operator),
            torch_skips: torch_skips(operator),
            only_allocates: only_allocates(operator),
        }
    }

    fn cost(
        self,
        op: &Op,
        trace: &StepTrace,
        roofline: &Roofline<'_>,
        traffic: &mut Traffic<'_>,
        measured: Option<Millis>,
    ) -> Result<Cost, NoRate> {
        let rule = roofline.rule();
        let free = match rule {
            CostRule::Physical => op.flags.view || op.flags.host || self.only_allocates,
            CostRule::Torch => self.torch_skips,
        };
        if free {
            return Ok(Cost::default());
        }
        let bytes = Bytes(match rule {
            CostRule::Physical => traffic.distinct(op, self.reading),
            CostRule::Torch => traffic.plain(op),
        });
        let (mut flops, mut compute) = (Flops(0), Millis(0.0));
        if self.formula != Formula::None {
            let inputs: Vec<&Layout> = trace.inputs(op).iter().map(|tensor| trace.layout_of(*tensor)).collect();
            let outputs: Vec<&Layout> = trace.outputs(op).iter().map(|tensor| trace.layout_of(*tensor)).collect();
            flops = self.formula.flops(&inputs, &outputs, rule);
            if measured.is_none() {
                compute = roofline.compute_time(self.formula, flops, &inputs, &outputs)?;
            }
        }
        Ok(Cost { time: measured.unwrap_or_else(|| roofline.time(compute, bytes)), flops, bytes })
    }
}
