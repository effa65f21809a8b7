use std::path::Path;

use rematic_allocator::{Device as Card, Settings};
use rematic_cost::{CostRule, CostTable, Costs, Device, Devices, HostLink};
use rematic_replay::{Allocator, Architecture, Course, Ledger, Reserved, Schedule, Scratch};
use rematic_report::Memory;
use rematic_trace::{Bytes, CardKind, DeviceKind, Dtype, Op, Opt, StepTrace};

use crate::connection::{HostBandwidth, Link, Network};
use crate::error::Error;

/// Where the time of an operator comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum CostSource {
    /// A rule, from the device's data sheet.
    Rule(CostRule),
    /// Measurements; what was not measured follows the physical rule.
    Table(CostTable),
}

impl CostSource {
    /// Measurements, from a file.
    ///
    /// # Errors
    /// If it cannot be read or is not a table.
    pub fn table(path: &Path) -> Result<Self, Error> {
        Ok(CostSource::Table(CostTable::read(path)?))
    }

    /// Whether times are to equal those of torch's tools, which see calls and memory through hooks.
    #[must_use]
    pub fn is_torch(&self) -> bool {
        *self == CostSource::Rule(CostRule::Torch)
    }
}

/// What the CUDA context and libraries take beside PyTorch's allocator. Out-of-memory messages of an L40S (Wan2.1's issue 205) and an
/// L40 (Qwen3-VL's 2097) leave 0.48 and 0.49 GiB; other cards and versions take between 0.4 and 0.9.
pub const CONTEXT: Bytes = Bytes(512 << 20);

/// What NCCL takes for a communicator on each device: 544 MB with two GPUs and 688 MB with more (four A100, NCCL's issue 964).
pub const NCCL: Bytes = Bytes(688_000_000);

/// What is taken of a device beside PyTorch's allocator.
pub(crate) fn context(ranks: u64) -> Bytes {
    if ranks > 1 { CONTEXT + NCCL } else { CONTEXT }
}

/// The card that a rehearsal runs on.
pub(crate) fn card(device: &Device, context: Bytes) -> Result<rematic_rehearsal::Card, Error> {
    let (capability, processors) = device.chip.ok_or_else(|| Error::NoChip { device: device.name.clone() })?;
    let (name, usable) = (device.product.clone(), device.usable.0);
    Ok(rematic_rehearsal::Card { name, capability, processors, usable, context: context.0 })
}

/// More than any device has.
pub(crate) const UNLIMITED: Bytes = Bytes(1 << 50);

/// What a step is for: a device, where times come from, and how memory is counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The device.
    pub device: Device,
    /// Where times come from.
    pub cost: CostSource,
    /// How memory is rounded; `None` for what the step itself says.
    pub allocator: Option<Allocator>,
    /// Among how many ranks parameters, gradients and optimizer state are spread evenly.
    pub ranks: u64,
    /// Over how many nodes the devices of a run are spread; `None` for as few as hold them.
    pub nodes: Option<u32>,
    /// How PyTorch's caching allocator is set: `PYTORCH_CUDA_ALLOC_CONF`.
    pub settings: Settings,
    /// Whether these settings were asked for, and are not what the environment has by chance.
    pub asks_for_settings: bool,
    /// Whether attention takes cuDNN's kernel on the cards where PyTorch prefers it. It does, unless its own variable
    /// `TORCH_CUDNN_SDPA_DEPRIORITIZED` says otherwise.
    pub prefers_cudnn: bool,
}

impl Target {
    /// A known device, or one of a user's file.
    ///
    /// # Errors
    /// If there is none of that name, or the file is wrong.
    pub fn find(name: &str, device_file: Option<&Path>, cost: CostSource) -> Result<Self, Error> {
        let mut devices = Devices::builtin();
        if let Some(file) = device_file {
            devices.extend_from(file)?;
        }
        Ok(Target {
            device: devices.find(name)?.clone(),
            cost,
            allocator: None,
            ranks: 1,
            nodes: None,
            settings: Settings::default(),
            asks_for_settings: false,
            prefers_cudnn: std::env::var("TORCH_CUDNN_SDPA_DEPRIORITIZED").as_deref() != Ok("1"),
        })
    }

    /// The same device with other links, as far as they are given.
    #[must_use]
    pub fn connected(mut self, link: Option<Link>, network: Option<Network>, nodes: Option<u32>) -> Self {
        let links = &mut self.device.links;
        if let Some(Link { bus, direct }) = link {
            (links.bus, links.direct) = (bus, direct);
        }
        if let Some(Network(rate)) = network {
            links.network = rate;
        }
        Target { nodes, ..self }
    }

    /// The same device with another link to its host, if one is given.
    #[must_use]
    pub fn with_host(mut self, bandwidth: Option<HostBandwidth>) -> Self {
        if let Some(HostBandwidth(rate)) = bandwidth {
            self.device.host_link = HostLink::Measured(rate);
        }
        self
    }

    /// Spreads the devices evenly over the nodes that were asked for.
    pub(crate) fn place_on_nodes(&mut self) -> Result<(), Error> {
        let (Some(nodes), devices) = (self.nodes, self.ranks) else { return Ok(()) };
        let per_node = devices.checked_div(nodes.into()).and_then(|per_node| u32::try_from(per_node).ok());
        let is_even = |per_node: &u32| *per_node > 0 && u64::from(*per_node) * u64::from(nodes) == devices;
        self.device.links.per_node = per_node.filter(is_even).ok_or(Error::Nodes { nodes, ranks: devices })?;
        Ok(())
    }

    /// What the step's operators cost there.
    ///
    /// # Errors
    /// If the device has no rate for a type of the step, or the table knows nothing of it.
    pub fn costs(&self, trace: &StepTrace) -> Result<Costs, Error> {
        Ok(match &self.cost {
            CostSource::Rule(rule) => Costs::new(trace, &self.device, *rule)?,
            CostSource::Table(table) => Costs::measured(trace, &self.device, table)?,
        })
    }

    /// What there is to say about a budget that the device does not have.
    #[must_use]
    pub fn budget_warning(&self, budget: Bytes) -> Option<String> {
        let Device { product, usable, .. } = &self.device;
        (budget > *usable).then(|| format!("the budget of {budget} is larger than the memory of {product}, {usable}"))
    }

    /// What a step takes of the device, in its first iterations.
    ///
    /// Where PyTorch's allocator wants more than there is, it empties its cache and tries again, as it does on the device.
    #[must_use]
    pub fn memory(&self, trace: &StepTrace) -> Memory {
        let start = Ledger::new(trace, Allocator::Cuda);
        self.memory_of(&Course::new(trace, &Schedule::plain(trace, &start)), &self.scratch(trace))
    }

    /// What kernels take for themselves on the device.
    #[must_use]
    pub fn scratch(&self, trace: &StepTrace) -> Scratch {
        // A kernel that was asked for is the one that runs.
        let chosen = trace.origin.attention.as_deref().is_none_or(|kernel| kernel == "auto");
        let cudnn = self.prefers_cudnn && chosen;
        let architecture = |(capability, processors)| Architecture { capability, processors, cudnn };
        Scratch::new(trace, self.device.chip.map(architecture))
    }

    /// What kind of card it is, if that is known.
    #[must_use]
    pub fn card(&self) -> Option<CardKind> {
        card_of(&self.device)
    }

    /// What there is to say about a step whose attention the device runs with another kernel (`select_sdp_backend` in PyTorch's
    /// `sdp_utils.cpp`): one that was traced for another card, or with a kernel that was asked for.
    #[must_use]
    pub fn attention_warning(&self, trace: &StepTrace) -> Option<String> {
        let (here, traced) = (self.card()?, trace.origin.card);
        let is_other = match traced {
            Some(card) => card != here,
            None => trace.ops().iter().any(|op| !runs_on(trace, op, here)),
        };
        let product = &self.device.product;
        is_other.then(|| {
            format!(
                "{product} runs another kernel for the attention of this step than the one that it is traced with; trace it for \
                 that device ({}), with the kernel that PyTorch picks there",
                Opt("device").to(&self.device.name)
            )
        })
    }

    /// As [`Target::memory`], for the step as it is scheduled.
    pub(crate) fn memory_of(&self, course: &Course<'_>, scratch: &Scratch) -> Memory {
        self.memory_within(course, scratch).unwrap_or_else(|| {
            let settings = Settings { memory_fraction: 1.0, ..self.settings.clone() };
            let found = Reserved::of(course, settings, Card::with_memory(UNLIMITED.0), scratch);
            Memory { retries: None, ..self.memory_from(course.trace(), found.ok()) }
        })
    }

    /// The same, if it fits.
    pub(crate) fn memory_within(&self, course: &Course<'_>, scratch: &Scratch) -> Option<Memory> {
        let card = Card { taken: context(self.ranks).0, ..Card::with_memory(self.device.usable.0) };
        let found = Reserved::of(course, self.settings.clone(), card, scratch).ok()?;
        Some(self.memory_from(course.trace(), Some(found)))
    }

    fn memory_from(&self, trace: &StepTrace, found: Option<Reserved>) -> Memory {
        let (allocated, reserved, retries) = found.map_or((u64::MAX, u64::MAX, 0), |found| {
            (found.counters.allocated.peak, found.counters.reserved.peak, found.counters.retries)
        });
        Memory {
            allocated: Bytes(allocated),
            reserved: Bytes(reserved),
            context: context(self.ranks),
            usable: self.device.usable,
            room: self.room(),
            ranks: self.ranks,
            has_buffers: !trace.collectives().is_empty(),
            retries: Some(retries),
        }
    }

    /// What of the device is left for PyTorch's allocator, or what it is allowed of it.
    #[must_use]
    pub fn room(&self) -> Bytes {
        let left = self.device.usable.saturating_sub(context(self.ranks));
        self.settings.allowed_bytes(self.device.usable.0).map_or(left, |allowed| left.min(Bytes(allowed)))
    }

    /// How the step's memory is rounded: as asked for, or else as the step itself says.
    #[must_use]
    pub fn allocator(&self, trace: &StepTrace) -> Allocator {
        self.allocator.unwrap_or_else(|| Self::default_allocator(trace))
    }

    /// CUDA's allocator, unless the step was traced for the CPU.
    #[must_use]
    pub fn default_allocator(trace: &StepTrace) -> Allocator {
        match trace.origin.device {
            Some(DeviceKind::Cpu) => Allocator::Cpu,
            Some(DeviceKind::Cuda) | None => Allocator::Cuda,
        }
    }
}

/// What kind of card a device is, if its capability is known.
pub(crate) fn card_of(device: &Device) -> Option<CardKind> {
    device.chip.map(|(capability, _)| CardKind::of(capability))
}

/// Whether a kind of card runs an operator, as far as it is one of attention.
fn runs_on(trace: &StepTrace, op: &Op, card: CardKind) -> bool {
    let name = trace.op_name(op);
    let is_flash = name.starts_with("_scaled_dot_product_flash_attention.");
    if !is_flash && !name.starts_with("_scaled_dot_product_efficient_attention.") {
        return true;
    }
    let Some(query) = trace.inputs(op).first().map(|query| trace.layout_of(*query)) else { return true };
    let width = query.shape.last().copied().unwrap_or(0);
    match card {
        CardKind::BeforeAmpere => !is_flash && query.dtype != Dtype::Bf16,
        CardKind::DataCenter => true,
        CardKind::Consumer => !is_flash || width <= 192 || (width > 224 && !op.flags.random),
    }
}
