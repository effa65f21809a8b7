//! What it takes to send something between devices.
//!
//! NCCL's own model, with its constants (`src/graph/tuning.cc`, as torch 2.15's `torch/_inductor/comm_analysis.py` has them):
//!
//! ```text
//! time = latency + bytes / bandwidth
//! ```
//!
//! | | ring | tree, for all-reduce alone |
//! |---|---|---|
//! | steps | n − 1; all-reduce 2 (n − 1) | |
//! | bandwidth | bus · n / steps | bus · 0.92 / 2 |
//! | latency | base + steps within nodes · near + steps between nodes · far | base + 2 ((ranks of a node − 1) · near + log₂ nodes · far) |
//!
//! Three protocols trade bandwidth for latency; NCCL takes what is fastest for the size, and so does this.
//!
//! The **bus** is what a ring moves through each device. Within a node it is that of NVLink or PCIe. Between nodes a ring leaves every
//! node once in each of its channels, and the channels go through the network adapters of all members that the node has: it is their
//! number times the adapter's rate, and never more than within a node. torch counts one adapter, whatever the number of members; with
//! eight of them per node, all-gathers of 64 GPUs would take eight times as long as they do.

use rematic_trace::{Bytes, Collective, CollectiveKind, Millis, Place};

use crate::device::GbPerSecond;

/// The share of a link's data sheet that NCCL's rings move: 120 of 150 GB/s on V100, 240 of 300 on A100, 370 of 450 on H100, 720 of
/// 900 on B200 (NCCL's `src/graph/topo.h`).
pub const BUS_SHARE: f64 = 0.8;
/// The same over PCIe, where data go through the host's bridges: 24 of 31.5 GB/s (torch 2.15).
pub const PCIE_SHARE: f64 = 0.76;
/// 16 lanes of PCIe 3, in GB/s; each generation has twice the rate of the one before.
const PCIE_3: f64 = 15.75;
/// The network that is taken for a device whose sheet names none: 100 Gb/s.
pub const DEFAULT_NETWORK: GbPerSecond = GbPerSecond(12.5);
/// Devices in a node whose sheet does not say.
pub const DEFAULT_PER_NODE: u32 = 8;

/// The share of the tree's bandwidth that NCCL counts.
const TREE: f64 = 0.92;
/// The share of the adapters that two nodes reach, and from how many nodes on they reach all of it (torch 2.15, from measurements on
/// H100 over RoCE).
const TWO_NODES: f64 = 0.77;
const MANY_NODES: f64 = 8.0;
/// What a step within a node takes at least, in µs, where messages go on to other nodes; three times that with [`Protocol::Simple`].
const NEAR_AT_LEAST: f64 = 1.0;

/// How the devices of a run are connected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Links {
    /// What a ring moves through each device of a node.
    pub bus: GbPerSecond,
    /// Whether devices are connected with each other, and not only with the host.
    pub direct: bool,
    /// What each device sends to other nodes, one direction.
    pub network: GbPerSecond,
    /// How many devices a node has.
    pub per_node: u32,
    /// What the protocol with the least latency moves at most.
    pub low_latency: GbPerSecond,
}

impl Links {
    /// What a ring moves over PCIe of this generation.
    #[must_use]
    pub fn pcie(generation: u8) -> GbPerSecond {
        GbPerSecond(PCIE_3 * 2f64.powi(i32::from(generation) - 3) * PCIE_SHARE)
    }

    /// What a ring moves over direct links of this rate.
    #[must_use]
    pub fn ring(link: GbPerSecond) -> GbPerSecond {
        GbPerSecond(link.0 * BUS_SHARE)
    }

    /// The limit of NCCL's low-latency protocol for a compute capability (80 for 8.0).
    #[must_use]
    pub fn low_latency(capability: Option<u32>) -> GbPerSecond {
        GbPerSecond(match capability {
            Some(..80) => 39.0,
            Some(100..) => 282.0,
            Some(90..) => 141.0,
            _ => 87.7,
        })
    }

    /// How long a collective takes; nothing if only this rank takes part, or it is not known what it does.
    #[must_use]
    pub fn time(&self, collective: &Collective, place: &Place) -> Millis {
        let bytes = Bytes(collective.bytes);
        let group = self.group(collective, place);
        if group.members < 2.0 {
            return Millis(0.0);
        }
        let ring = |steps: f64, crossings: f64| self.best(&group, Algorithm::Ring { steps, crossings }, bytes);
        let (others, other_nodes) = (group.members - 1.0, group.nodes - 1.0);
        let micros = match collective.kind {
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::Broadcast => {
                ring(others, other_nodes)
            }
            CollectiveKind::AllReduce => {
                ring(2.0 * others, 2.0 * other_nodes).min(self.best(&group, Algorithm::Tree, bytes))
            }
            // Each pair of ranks on its own: what goes to other nodes goes through one adapter.
            CollectiveKind::AllToAll => {
                let far = (group.members - group.per_node) / group.members;
                let near = (group.per_node - 1.0) / group.members;
                self.direct_time(&group, bytes, near, far)
            }
            CollectiveKind::Send | CollectiveKind::Receive => {
                let far = if group.nodes > 1.0 { 1.0 } else { 0.0 };
                self.direct_time(&group, bytes, 1.0 - far, far)
            }
            CollectiveKind::Unknown => 0.0,
        };
        Millis(micros / 1e3)
    }

    /// The members of a collective, and how many of them share a node. Ranks fill nodes one after the other, the innermost axis of the
    /// mesh first.
    fn group(&self, collective: &Collective, place: &Place) -> Group {
        let names: Vec<&str> = collective.axis.split('+').collect();
        let inside = place.axes.iter().rev().take_while(|axis| !names.contains(&axis.name.as_str()));
        let stride = match place.group(&collective.axis) {
            Some(_) => inside.fold(1, |stride: u64, axis| stride.saturating_mul(u64::from(axis.size.max(1)))),
            None => 1,
        };
        let members = u64::from(collective.group);
        let per_node = (u64::from(self.per_node) / stride).clamp(1, members.max(1));
        let nodes = members.div_ceil(per_node);
        Group { members: members as f64, per_node: per_node as f64, nodes: nodes as f64 }
    }

    /// What a ring through the group moves, in bytes per µs / 1000, that is GB/s.
    fn ring_bus(&self, group: &Group) -> f64 {
        if group.nodes <= 1.0 {
            return self.bus.0;
        }
        (self.adapter(group) * group.per_node).min(self.bus.0)
    }

    /// What one adapter reaches.
    fn adapter(&self, group: &Group) -> f64 {
        let reached = ((group.nodes - 1.0) / (MANY_NODES - 1.0)).min(1.0);
        self.network.0 * (TWO_NODES + (1.0 - TWO_NODES) * reached)
    }

    /// By the protocol that is fastest, in µs.
    fn best(&self, group: &Group, algorithm: Algorithm, bytes: Bytes) -> f64 {
        Protocol::ALL
            .into_iter()
            .filter(|protocol| *protocol != Protocol::LowLatency128 || group.nodes <= 1.0)
            .map(|protocol| self.micros(group, algorithm, protocol, bytes))
            .fold(f64::INFINITY, f64::min)
    }

    fn micros(&self, group: &Group, algorithm: Algorithm, protocol: Protocol, bytes: Bytes) -> f64 {
        let bus = self.protocol_bus(group, algorithm, protocol);
        let (near, far) = self.hops(group, algorithm, protocol);
        let (latency, bandwidth) = match algorithm {
            Algorithm::Ring { steps, crossings } => {
                ((steps - crossings) * near + crossings * far, bus * group.members / steps)
            }
            Algorithm::Tree => (2.0 * ((group.per_node - 1.0) * near + group.nodes.log2().floor() * far), bus * 0.5),
        };
        base(algorithm, protocol) + latency + bytes.0 as f64 / (1e3 * bandwidth)
    }

    fn protocol_bus(&self, group: &Group, algorithm: Algorithm, protocol: Protocol) -> f64 {
        // Between nodes the limits of Volta hold for every device.
        let most = match group.nodes {
            nodes if nodes <= 1.0 => self.low_latency.0,
            nodes if nodes <= 2.0 => 39.0,
            _ => 20.4,
        };
        let bus = self.ring_bus(group);
        match (algorithm, protocol) {
            (Algorithm::Ring { .. }, Protocol::LowLatency) => (bus * 0.5).min(most),
            (Algorithm::Ring { .. }, Protocol::LowLatency128) => bus * 120.0 / 128.0,
            (Algorithm::Ring { .. }, Protocol::Simple) => bus,
            (Algorithm::Tree, Protocol::LowLatency) => (bus / 3.8).min(most),
            (Algorithm::Tree, Protocol::LowLatency128) => bus * 7.0 / 9.0,
            (Algorithm::Tree, Protocol::Simple) => bus * TREE,
        }
    }

    /// What a step within a node and one between nodes take, in µs.
    fn hops(&self, group: &Group, algorithm: Algorithm, protocol: Protocol) -> (f64, f64) {
        let of = |lows: [f64; 3]| lows[protocol as usize];
        let (near, far) = match (algorithm, self.direct) {
            (Algorithm::Ring { .. }, true) => (of([0.6, 1.9, 3.4]), of([2.7, 4.0, 14.0])),
            (Algorithm::Ring { .. }, false) => (of([1.0, 2.5, 5.7]), of([2.7, 4.0, 14.0])),
            (Algorithm::Tree, true) => (of([0.6, 1.25, 4.0]), of([5.0, 8.5, 14.0])),
            (Algorithm::Tree, false) => (of([1.0, 1.9, 4.0]), of([5.0, 8.5, 14.0])),
        };
        let least = if protocol == Protocol::Simple { 3.0 * NEAR_AT_LEAST } else { NEAR_AT_LEAST };
        (if group.nodes > 1.0 { near.max(least) } else { near }, far)
    }

    /// Shares of a message to ranks of the node and to others, in µs.
    fn direct_time(&self, group: &Group, bytes: Bytes, near: f64, far: f64) -> f64 {
        let ring = Algorithm::Ring { steps: 1.0, crossings: 0.0 };
        let (step, crossing) = self.hops(group, ring, Protocol::Simple);
        let rate = |share: f64, rate: f64| bytes.0 as f64 * share / (1e3 * rate);
        let hop = if far > 0.0 { crossing } else { step };
        base(ring, Protocol::Simple) + hop + rate(near, self.bus.0).max(rate(far, self.adapter(group)))
    }
}

/// The ranks that take part.
struct Group {
    members: f64,
    /// How many of them a node has.
    per_node: f64,
    nodes: f64,
}

#[derive(Clone, Copy)]
enum Algorithm {
    Ring { steps: f64, crossings: f64 },
    Tree,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    LowLatency,
    LowLatency128,
    Simple,
}

impl Protocol {
    const ALL: [Protocol; 3] = [Protocol::LowLatency, Protocol::LowLatency128, Protocol::Simple];
}

/// What NCCL takes whatever the size and the group, in µs.
fn base(algorithm: Algorithm, protocol: Protocol) -> f64 {
    match (algorithm, protocol) {
        (Algorithm::Ring { .. }, Protocol::LowLatency) => 6.6,
        (Algorithm::Tree, Protocol::LowLatency) => 6.8,
        (_, Protocol::LowLatency128) => 14.0,
        (_, Protocol::Simple) => 8.4,
    }
}
