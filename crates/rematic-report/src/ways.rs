use rematic_plan::Remedy;
use rematic_trace::Millis;

/// Ways to bring a step within a budget that are no plan, the cheapest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ways {
    /// Those that do it alone.
    pub alone: Vec<Remedy>,
    /// Where none does, those that do it on top of a plan.
    pub with_plan: Vec<Remedy>,
}

impl Ways {
    /// The cheapest that takes less time than a plan, and what else it takes; of equal ones, that which takes no plan.
    pub(crate) fn cheaper_than(&self, plan: Millis) -> Option<(&Remedy, &'static str)> {
        let (alone, with_plan) = (self.alone.iter(), self.with_plan.iter());
        let all = alone.map(|remedy| (remedy, "")).chain(with_plan.map(|remedy| (remedy, AND_PLAN)));
        let timed = all.filter_map(|(remedy, plan)| Some((remedy.extra_ms?, remedy, plan)));
        let cheaper = timed.filter(|(extra, ..)| extra.0 < plan.0);
        cheaper.min_by(|(a, ..), (b, ..)| a.0.total_cmp(&b.0)).map(|(_, remedy, plan)| (remedy, plan))
    }
}

/// What a way takes besides.
pub(crate) const AND_PLAN: &str = " and a plan";
