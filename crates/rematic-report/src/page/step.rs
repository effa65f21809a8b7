//! A recorded step, in columns.

use std::collections::HashMap;
use std::hash::Hash;

use rematic_cost::Costs;
use rematic_replay::{Checkpoint, Life, Recording, Regions, holder};
use rematic_trace::{Bytes, Category, ModuleId, OpId, Phase, StepTrace, StorageId, Table, any_layer};
use serde::Serialize;

use super::columns::Column;
use crate::regions::inner;

/// How many points of a step under a plan the page holds where it does not hold all.
const POINTS: usize = 480;

/// Values that repeat, each once, by number.
pub(crate) struct Numbering<T> {
    values: Vec<T>,
    numbers: HashMap<T, usize>,
}

impl<T: Clone + Eq + Hash> Numbering<T> {
    pub(crate) fn new() -> Self {
        Numbering { values: Vec::new(), numbers: HashMap::new() }
    }

    pub(crate) fn number(&mut self, value: T) -> u64 {
        let next = self.values.len();
        let number = *self.numbers.entry(value).or_insert_with_key(|value| {
            self.values.push(value.clone());
            next
        });
        number as u64
    }

    pub(crate) fn into_values(self) -> Vec<T> {
        self.values
    }
}

/// The operators of the trace.
#[derive(Serialize)]
pub(crate) struct Ops {
    count: usize,
    name: Column,
    /// From 1; 0 is none.
    module: Column,
    phase: Column,
    time: Column,
    names: Vec<String>,
    /// The different times, in milliseconds.
    times: Vec<f64>,
}

impl Ops {
    pub(crate) fn new(trace: &StepTrace, costs: &Costs) -> Self {
        let (mut name, mut module, mut phase, mut time) =
            (Column::default(), Column::default(), Column::default(), Column::default());
        let mut times = Numbering::new();
        for (index, op) in trace.ops().iter().enumerate() {
            name.push(op.name.index() as u64);
            module.push_difference(trace.module_of(op).map_or(0, |module| module.index() as u64 + 1));
            phase.push(match op.phase {
                Phase::Forward => 0,
                Phase::Backward => 1,
                Phase::Optimizer => 2,
            });
            time.push(times.number(costs.time(OpId::new(index)).0.to_bits()));
        }
        let times = times.into_values().into_iter().map(f64::from_bits).collect();
        Ops { count: trace.ops().len(), name, module, phase, time, names: trace.names().to_vec(), times }
    }
}

/// What runs, and what lives from when to when.
#[derive(Serialize)]
pub(crate) struct Step {
    runs: usize,
    /// Operators as they run; twice the number, and one more if it runs again.
    run: Column,
    lives: usize,
    from: Column,
    /// How many moments it lives.
    length: Column,
    /// For how many of them, at the end, no ordinary reference is left.
    unheld: Column,
    /// The operator that makes it, from 1; 0 is none.
    maker: Column,
    /// The module that owns what is there before the step, from 1.
    owner: Column,
    bytes: Column,
    /// Twice the category, and one more if it is made anew.
    kind: Column,
    /// While there is a reference.
    held_by: Column,
    /// When there is none any more.
    kept_by: Column,
    sizes: Vec<Bytes>,
    holders: Vec<String>,
}

impl Step {
    pub(crate) fn new(
        trace: &StepTrace,
        regions: &Regions,
        checkpoints: &[Checkpoint],
        recording: &Recording,
        origins: &Origins,
    ) -> Self {
        let Origins { owners, savers } = origins;
        let kept = Kept::new(trace, regions, checkpoints);
        let mut step = Step {
            runs: recording.runs.len(),
            run: Column::default(),
            lives: recording.lives.len(),
            from: Column::default(),
            length: Column::default(),
            unheld: Column::default(),
            maker: Column::default(),
            owner: Column::default(),
            bytes: Column::default(),
            kind: Column::default(),
            held_by: Column::default(),
            kept_by: Column::default(),
            sizes: Vec::new(),
            holders: Vec::new(),
        };
        for ran in &recording.runs {
            step.run.push_difference(2 * ran.op.index() as u64 + u64::from(ran.again));
        }
        let (mut sizes, mut holders) = (Numbering::new(), Numbering::new());
        for life in &recording.lives {
            let maker = trace.storages()[life.storage].birth;
            step.from.push_difference(life.from.into());
            step.length.push((life.until - life.from).into());
            step.unheld.push((life.until - life.held_until).into());
            step.maker.push_difference(maker.map_or(0, |op| op.index() as u64 + 1));
            let owner = owners[life.storage].filter(|_| maker.is_none());
            step.owner.push(owner.map_or(0, |module| module.index() as u64 + 1));
            step.bytes.push(sizes.number(life.bytes));
            step.kind.push(2 * life.category as u64 + u64::from(life.again));
            step.held_by.push(holders.number(holder::owner(life.category).to_owned()));
            step.kept_by
                .push(holders.number(kept.by(trace, life, &savers[life.storage], |path| inner(path).to_owned())));
        }
        step.sizes = sizes.into_values();
        step.holders = holders.into_values();
        step
    }
}

/// Who has the storages of a step: the same under every plan.
pub struct Origins {
    /// For every storage, the first module that has it as a parameter or buffer.
    owners: Table<StorageId, Option<ModuleId>>,
    /// For every storage, the operators that save it.
    savers: Table<StorageId, Vec<OpId>>,
}

impl Origins {
    /// Looks through a step once.
    #[must_use]
    pub fn new(trace: &StepTrace) -> Self {
        Origins { owners: owners(trace), savers: savers(trace) }
    }
}

/// For every storage, the first module that has it as a parameter or buffer.
fn owners(trace: &StepTrace) -> Table<StorageId, Option<ModuleId>> {
    let mut owners = trace.storages().filled(None);
    for (id, module) in trace.modules().entries() {
        for parameter in module.parameters.iter().chain(&module.buffers) {
            owners[parameter.storage].get_or_insert(id);
        }
    }
    owners
}

/// For every storage, the operators that save it.
fn savers(trace: &StepTrace) -> Table<StorageId, Vec<OpId>> {
    let mut savers: Table<StorageId, Vec<OpId>> = trace.storages().filled(Vec::new());
    for (id, op) in trace.ops().entries() {
        for tensor in trace.saves(op) {
            let savers = &mut savers[tensor.storage];
            if savers.last() != Some(&id) {
                savers.push(id);
            }
        }
    }
    savers
}

/// Why a storage that nothing refers to is there, under a plan.
struct Kept {
    /// For every operator, the module of the checkpointed region that it is in, and whether its output is saved.
    region_of: Table<OpId, Option<(ModuleId, bool)>>,
    /// For every storage, the first checkpointed region that has it as an input.
    input_of: HashMap<StorageId, ModuleId>,
}

impl Kept {
    fn new(trace: &StepTrace, regions: &Regions, checkpoints: &[Checkpoint]) -> Self {
        let mut region_of = trace.ops().filled(None);
        let mut input_of = HashMap::new();
        for checkpoint in checkpoints {
            let region = regions.region(checkpoint.region);
            region_of.items_mut()[region.ops.clone()].fill(Some((region.module, false)));
            for &op in checkpoint.saved.iter().filter(|op| region.contains(**op)) {
                region_of[op] = Some((region.module, true));
            }
            for input in &region.inputs {
                input_of.entry(*input).or_insert(region.module);
            }
        }
        Kept { region_of, input_of }
    }

    fn by(&self, trace: &StepTrace, life: &Life, savers: &[OpId], name: impl Fn(&str) -> String) -> String {
        let maker = trace.storages()[life.storage].birth;
        let region = maker.and_then(|op| self.region_of[op]);
        match (life.again, region) {
            (true, Some((module, _))) => format!("recomputed for {}", name(&trace.path(module))),
            (false, Some((_, true))) => "saved by the plan".to_owned(),
            _ => {
                let outside: Vec<OpId> = savers.iter().copied().filter(|op| self.region_of[*op].is_none()).collect();
                // The first lets go last.
                match (holder::autograd(trace, &outside[..outside.len().min(1)]), self.input_of.get(&life.storage)) {
                    (Some(autograd), _) => autograd,
                    (None, Some(module)) => format!("input of {}", name(&trace.path(*module))),
                    (None, None) => "nobody".to_owned(),
                }
            }
        }
    }
}

/// What is in memory at the peak of a step under a plan, alike but for its layer in one row, the largest first: bytes, how
/// many, category, made by, in, held by.
pub(crate) fn residents(
    trace: &StepTrace,
    regions: &Regions,
    checkpoints: &[Checkpoint],
    recording: &Recording,
    origins: &Origins,
) -> Vec<(Bytes, usize, [String; 4])> {
    let Some(peak) = recording.peak().and_then(|(moment, _)| u32::try_from(moment).ok()) else { return Vec::new() };
    let kept = Kept::new(trace, regions, checkpoints);
    let mut rows: Vec<(Bytes, usize, [String; 4])> = Vec::new();
    let mut places = HashMap::new();
    for life in recording.lives.iter().filter(|life| life.from <= peak && peak < life.until) {
        let maker = trace.storages()[life.storage].birth;
        let module = match maker {
            Some(op) => trace.module_of(trace.op(op)),
            None => origins.owners[life.storage],
        };
        let again = if life.again { " (again)" } else { "" };
        let made_by = format!("{}{again}", holder::maker(trace, maker, life.category));
        let held_by = if peak < life.held_until {
            holder::owner(life.category).to_owned()
        } else {
            kept.by(trace, life, &origins.savers[life.storage], any_layer)
        };
        let module = module.map_or_else(String::new, |module| any_layer(&trace.path(module)));
        let key = [life.category.to_string(), made_by, module, held_by];
        let place = *places.entry(key.clone()).or_insert_with(|| {
            rows.push((Bytes(0), 0, key));
            rows.len() - 1
        });
        rows[place].0 += life.bytes;
        rows[place].1 += 1;
    }
    rows.sort_by_key(|(bytes, ..)| std::cmp::Reverse(*bytes));
    rows
}

/// A step under a plan in some points: of each stretch of it the highest moment, so that no peak is lost.
#[derive(Serialize)]
pub(crate) struct Outline {
    points: usize,
    /// All operators that run.
    runs: usize,
    moment: Column,
    run: Column,
    /// The bytes of each category.
    categories: Vec<Column>,
}

impl Outline {
    pub(crate) fn new(recording: &Recording) -> Self {
        let runs = recording.runs.len();
        let stretches = POINTS.min(runs);
        let mut outline = Outline {
            points: stretches,
            runs,
            moment: Column::default(),
            run: Column::default(),
            categories: vec![Column::default(); Category::ALL.len()],
        };
        for stretch in 0..stretches {
            let moments = stretch * runs / stretches..(stretch + 1) * runs / stretches;
            let first = moments.start;
            // The first of the highest.
            let highest = moments.rev().max_by_key(|moment| recording.snapshots[*moment].total()).unwrap_or(first);
            let ran = recording.runs[highest];
            outline.moment.push_difference(highest as u64);
            outline.run.push_difference(2 * ran.op.index() as u64 + u64::from(ran.again));
            for (category, bytes) in recording.snapshots[highest].iter() {
                outline.categories[category as usize].push_difference(bytes.0);
            }
        }
        outline
    }
}
