//! Who bears what it costs that a storage lives longer than in the plain step.
//!
//! Several may hold it: regions that are given it, and the one that makes it, if it saves it. It then lives until the last of
//! them lets go, which costs its bytes once. A bound lets every region decide by itself, so each bears a share: of all that
//! can be chosen together, the shares add up to one at most. Any such shares give a bound; it is high if those bear the cost that
//! hold the storage in a good plan.

use rematic_trace::StorageId;

use crate::problem::Problem;

/// The life of a storage beyond the plain one is cut where one of those that may hold it lets go, into so many pieces at most.
const MOST_PIECES: usize = 12;

/// What one of those that may hold a storage bears for a piece of its life.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) storage: StorageId,
    /// The end of the piece.
    pub(super) until: usize,
    pub(super) node: usize,
    /// Only if this is saved; otherwise always if the node is chosen.
    pub(super) choice: Option<usize>,
    /// Where it is written.
    pub(super) change: usize,
    pub(super) bytes: f64,
}

/// All shares.
#[derive(Clone)]
pub(super) struct Shares {
    /// By storage: where its life is cut; nothing for those that one at most may hold.
    cuts: Vec<Vec<usize>>,
    /// By storage and piece, in the order of nodes.
    all: Vec<Share>,
}

impl Shares {
    /// For lives of storages, each from one moment to before another.
    pub(super) fn new(storages: usize, held: impl Iterator<Item = (StorageId, usize, usize)>) -> Self {
        let mut cuts: Vec<Vec<usize>> = vec![Vec::new(); storages];
        for (storage, _, until) in held {
            cuts[storage.index()].push(until);
        }
        for cuts in &mut cuts {
            if cuts.len() < 2 {
                cuts.clear();
            }
            cuts.sort_unstable();
            cuts.dedup();
            if cuts.len() > MOST_PIECES {
                // The first is common to all.
                *cuts = (0..MOST_PIECES).map(|piece| cuts[piece * (cuts.len() - 1) / (MOST_PIECES - 1)]).collect();
            }
        }
        Shares { cuts, all: Vec::new() }
    }

    pub(super) fn are_none(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn are_shared(&self, storage: StorageId) -> bool {
        !self.cuts[storage.index()].is_empty()
    }

    /// The pieces of a life, as far as they are whole.
    pub(super) fn pieces(&self, storage: StorageId, from: usize, until: usize) -> Vec<(usize, usize)> {
        let ends = self.cuts[storage.index()].iter().copied().filter(|&cut| from < cut && cut <= until);
        let mut begin = from;
        ends.map(|end| (std::mem::replace(&mut begin, end), end)).collect()
    }

    pub(super) fn add(&mut self, share: Share) {
        self.all.push(share);
    }

    pub(super) fn sort(&mut self) {
        self.all.sort_by_key(|share| (share.storage, share.until, share.node));
    }

    /// Shares every piece among those that hold it, by how much they do; says what to write where.
    pub(super) fn share(
        &self,
        problem: &Problem,
        holds: impl Fn(usize, Option<usize>) -> f64,
        mut write: impl FnMut(usize, f64),
    ) {
        for piece in self.all.chunk_by(|a, b| (a.storage, a.until) == (b.storage, b.until)) {
            let holding: Vec<f64> = piece.iter().map(|share| holds(share.node, share.choice)).collect();
            distribute(problem, piece, &holding, 1.0, &mut write);
        }
    }
}

/// Shares a part among nodes beside each other, and each one's again among those inside it.
fn distribute(problem: &Problem, piece: &[Share], holding: &[f64], part: f64, write: &mut impl FnMut(usize, f64)) {
    let mut families: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    while at < piece.len() {
        let end = problem.nodes[piece[at].node].end;
        let inside = piece[at + 1..].iter().take_while(|share| problem.nodes[share.node].start < end).count();
        families.push((at, at + 1 + inside));
        at += 1 + inside;
    }
    let weight = |&(from, until): &(usize, usize)| holding[from..until].iter().sum::<f64>();
    let all: f64 = families.iter().map(weight).sum();
    for family in &families {
        let share = if all > 0.0 { weight(family) / all } else { 1.0 / families.len() as f64 };
        let (from, until) = *family;
        write(piece[from].change, part * share * piece[from].bytes);
        if until > from + 1 {
            distribute(problem, &piece[from + 1..until], &holding[from + 1..until], part * share, write);
        }
    }
}
