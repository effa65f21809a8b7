use rematic_cost::Costs;
use rematic_replay::Allocator;
use rematic_trace::{Bytes, Millis, ModuleId, StepTrace, Table};

use crate::{GreedyOrder, OpGroups, PiecewiseFit, SacFacts, SacRegion, SacStats, TorchError, TradeoffCurve};

/// The number of line segments that torch fits to a curve.
pub const SEGMENTS: usize = 2;

/// Memory against time for one region; torch's `SACTradeOffStats` with all that it is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct Tradeoff {
    /// Facts about the operators.
    pub stats: SacStats,
    /// The order in which they are best recomputed.
    pub order: GreedyOrder,
    /// Discarded memory and recompute time in that order.
    pub curve: TradeoffCurve,
    /// Lines through the curve; `None` if the region has nothing to free.
    pub fit: Option<PiecewiseFit>,
    /// Bytes of all operators' outputs.
    pub sac_memory: Bytes,
    /// Time of all operators.
    pub sac_runtime: Millis,
}

impl Tradeoff {
    /// The trade-off that follows from a region's facts.
    ///
    /// # Errors
    /// If the facts do not fit each other; see [`SacStats::check`].
    pub fn new(stats: SacStats, segments: usize) -> Result<Self, TorchError> {
        let groups = OpGroups::new(&stats)?;
        let order = GreedyOrder::new(&stats, &groups);
        let curve = TradeoffCurve::new(&stats, &groups, &order);
        Ok(Tradeoff {
            fit: PiecewiseFit::new(&curve.shifted(), segments),
            sac_memory: stats.total_memory(),
            sac_runtime: stats.total_runtime(),
            stats,
            order,
            curve,
        })
    }
}

/// The trade-offs of all regions of a step, in the order in which their forward begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Tradeoffs {
    regions: Vec<(SacRegion, Tradeoff)>,
    /// By module: its last call.
    last_of_module: Table<ModuleId, Option<usize>>,
}

impl Tradeoffs {
    /// All regions of a step, with torch's number of segments.
    ///
    /// # Errors
    /// If the sizes of one region's outputs add up to more than 64 bits; no other error can come from a valid trace.
    pub fn new(trace: &StepTrace, costs: &Costs, allocator: Allocator) -> Result<Self, TorchError> {
        let facts = SacFacts::new(trace, costs, allocator);
        let mut last_of_module = trace.modules().filled(None);
        let mut regions = Vec::new();
        for region in SacRegion::all(trace) {
            last_of_module[region.module] = Some(regions.len());
            let tradeoff = Tradeoff::new(facts.stats(&region), SEGMENTS)?;
            regions.push((region, tradeoff));
        }
        Ok(Tradeoffs { regions, last_of_module })
    }

    /// The regions.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&SacRegion, &Tradeoff)> {
        self.regions.iter().map(|(region, tradeoff)| (region, tradeoff))
    }

    /// The trade-off of a module; of its last call, as in torch, if there are several. `None` for modules without
    /// children, and for those that are never called.
    #[must_use]
    pub fn of_module(&self, module: ModuleId) -> Option<&Tradeoff> {
        let index = self.last_of_module.get(module).copied().flatten()?;
        Some(&self.regions[index].1)
    }
}
