use std::fmt;

use serde::{Deserialize, Serialize};

/// What a collective operator does between the ranks of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveKind {
    /// Every rank gets what all of them have.
    AllGather,
    /// All are added up, and every rank gets its part of the sum.
    ReduceScatter,
    /// All are added up, and every rank gets the sum.
    AllReduce,
    /// Every rank gives each other one a part.
    AllToAll,
    /// Every rank gets what one has.
    Broadcast,
    /// To one other rank.
    Send,
    /// From one other rank.
    Receive,
    /// Known to communicate, and no more than that: files of version 1 do not say how.
    Unknown,
}

impl fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::Send => "send",
            CollectiveKind::Receive => "receive",
            CollectiveKind::Unknown => "unknown",
        })
    }
}

/// How an operator communicates with other ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collective {
    /// What it does.
    pub kind: CollectiveKind,
    /// How many ranks take part; 0 only if the kind is unknown.
    pub group: u32,
    /// The axis of the mesh along which they stand; the names of several are joined by `+`. Empty only if the kind is
    /// unknown.
    pub axis: String,
    /// The whole message: what an all-gather gives to this rank, what a reduce-scatter takes from it, and so on, whichever
    /// is larger.
    pub bytes: u64,
}

impl Collective {
    /// One of which no more is known than that it is one.
    #[must_use]
    pub fn unknown() -> Self {
        Collective { kind: CollectiveKind::Unknown, group: 0, axis: String::new(), bytes: 0 }
    }
}
