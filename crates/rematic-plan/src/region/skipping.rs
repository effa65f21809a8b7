//! Which operators of a region need not run again, because nothing reads what they make.
//!
//! Some are never read again, whatever the policy ([`Skipping::always`]). Others are read by operators of one bundle alone: if that is
//! saved, they need not run either. To keep what such an operator makes in place of what the bundle makes would take no less
//! memory at any moment, if it makes no less, and more time; so it is never kept, and goes with the bundle: it runs again if the
//! bundle does. So what a policy frees and takes stays a sum over its bundles.

use rematic_replay::{Ledger, Readings, Region, births};
use rematic_trace::{Bytes, OpId, StepTrace};

use super::{Bundle, Fate};

/// What need not run again in a region.
pub(crate) struct Skipping {
    /// By operator of the region: whether it never runs again.
    pub(crate) always: Vec<bool>,
    /// By bundle: the operators that run again only if it does, with views of what they make, ascending.
    pub(crate) with: Vec<Vec<usize>>,
    /// By bundle: whether its one operator goes with another bundle.
    pub(crate) goes: Vec<bool>,
}

/// Who reads what an operator makes.
#[derive(Clone, Copy, PartialEq)]
enum Readers {
    None,
    /// Operators of a bundle, or such as go with it.
    Bundle(usize),
    /// Others too, or backward.
    Many,
}

impl Readers {
    fn and(self, other: Readers) -> Readers {
        match (self, other) {
            (Readers::None, one) | (one, Readers::None) => one,
            (one, same) if one == same => one,
            _ => Readers::Many,
        }
    }
}

impl Skipping {
    /// All that is not saved runs again.
    pub(crate) fn nothing(region: &Region, bundles: &[Bundle]) -> Self {
        let with = vec![Vec::new(); bundles.len()];
        Skipping { always: vec![false; region.ops.len()], with, goes: vec![false; bundles.len()] }
    }

    /// In time linear in the region.
    pub(crate) fn new(
        trace: &StepTrace,
        readings: &Readings,
        region: &Region,
        ledger: &Ledger,
        bundles: &[Bundle],
    ) -> Self {
        let start = region.ops.start;
        let stored = bundles.iter().filter(|bundle| bundle.fate == Fate::Store).flat_map(|bundle| &bundle.ops);
        let mut stored: Vec<OpId> = stored.map(|op| OpId::new(start + op)).collect();
        stored.sort_unstable();
        let always = readings.unread(region, &stored);
        let mut bundle_of = vec![None; region.ops.len()];
        for (index, bundle) in bundles.iter().enumerate() {
            bundle.ops.iter().for_each(|&op| bundle_of[op] = Some(index));
        }
        let mut skipping = Skipping { always, with: vec![Vec::new(); bundles.len()], goes: vec![false; bundles.len()] };
        if readings.communicates(region) {
            return skipping;
        }
        // By operator, the bundle that it goes with.
        let mut goes_with = vec![None; region.ops.len()];
        let mut readers = vec![Readers::None; region.ops.len()];
        let birth = |storage| {
            let birth = trace.storages()[storage].birth.filter(|birth| region.contains(*birth));
            birth.map(|birth| birth.index() - start)
        };
        for id in region.ops.clone().map(OpId::new) {
            let changed = trace.mutates(trace.op(id)).iter().filter_map(|storage| birth(*storage));
            readings.read_whatever_runs(region, id).chain(changed).for_each(|at| readers[at] = Readers::Many);
        }
        let made = |op: usize| births(trace, OpId::new(start + op)).map(|storage| ledger.footprint(storage)).sum();
        let made_by = |bundle: usize| -> Bytes { bundles[bundle].ops.iter().map(|op| made(*op)).sum() };
        for at in (0..region.ops.len()).rev() {
            let id = OpId::new(start + at);
            let op = trace.op(id);
            if op.flags.view || !region.reaches(id) || skipping.always[at] {
                continue;
            }
            let mut reads = bundle_of[at].map_or(Readers::Many, |bundle| match bundles[bundle].fate {
                Fate::Store => Readers::None,
                Fate::Recompute => Readers::Many,
                Fate::Free => Readers::Bundle(bundle),
            });
            if let (Readers::Bundle(own), Readers::Bundle(reader)) = (reads, readers[at])
                && own != reader
                && bundles[own].ops.len() == 1
                && readings.may_rest(region, id)
                && made(at) >= made_by(reader)
            {
                skipping.goes[own] = true;
                goes_with[at] = Some(reader);
                reads = Readers::Bundle(reader);
            }
            for at in trace.inputs(op).iter().filter_map(|tensor| birth(tensor.storage)) {
                readers[at] = readers[at].and(reads);
            }
        }
        for (at, op) in trace.ops().items()[region.ops.clone()].iter().enumerate() {
            if op.flags.view && region.reaches(OpId::new(start + at)) {
                let mut viewed = trace.inputs(op).iter().filter_map(|tensor| birth(tensor.storage));
                goes_with[at] = viewed.find_map(|maker| goes_with[maker]);
            }
            if let Some(bundle) = goes_with[at] {
                skipping.with[bundle].push(at);
            }
        }
        skipping
    }
}
