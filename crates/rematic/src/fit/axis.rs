use rematic_cost::Device;
use rematic_report::{FitQuestion, FitValue};
use rematic_trace::Bytes;

use super::MOST_GPUS;
use super::setup::Setup;

/// Sequences are tried in steps of so many positions: kernels want multiples of it.
const POSITIONS: u64 = 128;
/// More of either is more than any device has.
const MOST_BATCH: u64 = 1 << 20;
const MOST_SEQ: u64 = 1 << 24;
/// A line through two set-ups is believed up to so many times the larger one: small steps lie in segments that are not full.
const REACH: u64 = 8;

/// What is varied: places from 1 on, each of which asks for more memory, or has less, than the one before.
pub(crate) struct Axis {
    pub(crate) question: FitQuestion,
    base: Setup,
    /// What stands at the places; empty for numbers.
    counts: Vec<u32>,
    devices: Vec<Device>,
    /// What a place stands for, where these are numbers.
    unit: u64,
    pub(crate) most: u64,
}

impl Axis {
    fn of(question: FitQuestion, base: &Setup) -> Self {
        Axis { question, base: base.clone(), counts: Vec::new(), devices: Vec::new(), unit: 1, most: 0 }
    }

    pub(crate) fn batch(base: &Setup) -> Self {
        Axis { most: MOST_BATCH, ..Axis::of(FitQuestion::LargestBatch, base) }
    }

    pub(crate) fn seq(base: &Setup) -> Self {
        let unit = if base.seq.is_some_and(|seq| seq < POSITIONS) { 1 } else { POSITIONS };
        Axis { unit, most: MOST_SEQ / unit, ..Axis::of(FitQuestion::LongestSequence, base) }
    }

    /// Any number within a node, whole nodes beyond; the most first.
    pub(crate) fn gpus(base: &Setup) -> Self {
        let node = base.device.links.per_node.max(1);
        let within = (1..=node.min(MOST_GPUS)).filter(|count| count.is_multiple_of(base.tp));
        let nodes = (2..).map(|nodes| nodes * node).take_while(|count| *count <= MOST_GPUS);
        let mut counts: Vec<u32> = within.chain(nodes.filter(|count| count.is_multiple_of(base.tp))).collect();
        counts.reverse();
        Axis { most: counts.len() as u64, counts, ..Axis::of(FitQuestion::FewestGpus, base) }
    }

    /// The largest first; of equal ones that which the list has first is the last.
    pub(crate) fn devices(base: &Setup, devices: &[Device]) -> Self {
        let mut devices: Vec<Device> = devices.to_vec();
        devices.reverse();
        devices.sort_by_key(|device| std::cmp::Reverse(device.usable));
        Axis { most: devices.len() as u64, devices, ..Axis::of(FitQuestion::SmallestDevice, base) }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a place in a list")]
    pub(crate) fn setup(&self, place: u64) -> Setup {
        let base = self.base.clone();
        let at = place as usize - 1;
        match self.question {
            FitQuestion::LargestBatch => Setup { batch: place, ..base },
            FitQuestion::LongestSequence => Setup { seq: Some(place * self.unit), ..base },
            FitQuestion::FewestGpus => Setup { gpus: self.counts[at], ..base },
            FitQuestion::SmallestDevice => Setup { device: self.devices[at].clone(), ..base },
        }
    }

    pub(crate) fn value(&self, place: u64) -> FitValue {
        let Setup { batch, seq, gpus, device, .. } = self.setup(place);
        match self.question {
            FitQuestion::LargestBatch => FitValue::Count(batch),
            FitQuestion::LongestSequence => FitValue::Count(seq.unwrap_or(0)),
            FitQuestion::FewestGpus => FitValue::Count(gpus.into()),
            FitQuestion::SmallestDevice => FitValue::Device(device.name),
        }
    }

    /// Where the answer will be, as far as two set-ups say what memory depends on: bytes are a line in batch and sequence, and
    /// one in the share that each GPU has. Only where the search begins depends on it.
    pub(crate) fn hint<E>(
        &self,
        mut takes: impl FnMut(&Setup) -> Result<Option<Bytes>, E>,
        room: impl Fn(&Setup) -> Bytes,
    ) -> Result<u64, E> {
        let (low, high) = match self.question {
            FitQuestion::LargestBatch => (1, 2),
            FitQuestion::LongestSequence => {
                let base = (self.base.seq.unwrap_or(0) / self.unit).max(1);
                (base, base * 2)
            }
            FitQuestion::FewestGpus => return self.hint_of_gpus(takes, room),
            FitQuestion::SmallestDevice => {
                let Some(taken) = takes(&self.base)? else { return Ok(1) };
                let enough = (1..=self.most).filter(|place| room(&self.setup(*place)) >= taken);
                return Ok(enough.last().unwrap_or(1));
            }
        };
        let Some(less) = takes(&self.setup(low))? else { return Ok(low) };
        if less > room(&self.base) {
            return Ok(1);
        }
        let left = room(&self.base).saturating_sub(less).0;
        let (mut high, mut hint) = (high.min(self.most), low);
        while high > low {
            let Some(more) = takes(&self.setup(high))? else { break };
            let each = more.saturating_sub(less).0 / (high - low);
            hint = left.checked_div(each).map_or(self.most, |places| low.saturating_add(places)).min(self.most);
            let reach = high.saturating_mul(REACH).min(self.most);
            if hint <= reach || high == reach {
                break;
            }
            high = reach;
        }
        Ok(hint.max(1))
    }

    fn hint_of_gpus<E>(
        &self,
        mut takes: impl FnMut(&Setup) -> Result<Option<Bytes>, E>,
        room: impl Fn(&Setup) -> Bytes,
    ) -> Result<u64, E> {
        // From two on, a rank has the buffers of sharding.
        let few = self.counts.iter().rposition(|count| *count >= 2 && *count > self.base.tp);
        let Some(few) = few.map(|at| at as u64 + 1).filter(|few| *few > 1) else { return Ok(self.most) };
        let (Some(most), Some(least)) = (takes(&self.setup(few))?, takes(&self.setup(1))?) else { return Ok(1) };
        let share = |place: u64| 1.0 / f64::from(self.counts[usize::try_from(place - 1).unwrap_or(0)]);
        let slope = (most.0 as f64 - least.0 as f64) / (share(few) - share(1));
        let taken = |place: u64| least.0 as f64 + slope * (share(place) - share(1));
        let enough = |place: &u64| taken(*place) <= room(&self.setup(*place)).0 as f64;
        Ok((1..=self.most).rev().find(enough).unwrap_or(1))
    }
}
