//! The step of one rank under PyTorch's FSDP2, from that of the whole model on one device.
//!
//! What `fully_shard` does to a step (torch 2.15, `torch/distributed/fsdp/_fully_shard`):
//!
//! - A **unit** is a module that was handed to `fully_shard`. Its parameters are those below it that no unit inside has. Every rank
//!   keeps rows of each: the first dimension is cut into equal chunks, the last of them padded.
//! - Before a unit's forward its shards are gathered into one flat buffer, on streams of their own, and copied from there into
//!   the parameters' own memory, which comes back for that. The flat buffer stays until the next unit's has been gathered.
//! - After its forward the parameters' bytes go, if the unit reshards. The outermost unit never does.
//! - When the gradient of a unit's output is there, it is gathered again, and the unit before it in forward ahead of time.
//! - When the gradients of its inputs are there, its bytes go; its gradients are packed into a buffer and reduced, so that each rank
//!   has its rows of the sum, in one flat piece of memory. The packed buffer stays until the next unit has reduced.
//! - Units whose inputs need no gradient, and the outermost one, do that when backward is over.
//! - Gradients that ranks which share the model have otherwise than its parameters are brought there first.
//! - The optimizer sees the shards alone.

mod accumulation;
mod gathering;
mod gradients;
mod handed;
mod optimizer;
mod scaler;
mod settling;
mod shards;
mod traffic;
mod units;
mod walk;
mod weights;

use std::fmt;

use rematic_trace::{Axis, Dtype, InvalidTrace, ModuleId, StepTrace};

pub use units::layers;

use walk::Walk;

/// The axis along which parameters are spread, and the one along which they are repeated.
const SHARD: &str = "dp_shard";
const REPLICATE: &str = "dp_replicate";
/// The axis along which a model is shared: tensor parallelism.
const SHARED: &str = "tp";

/// How a step is spread by FSDP2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fsdp2 {
    /// Among how many ranks the parameters are spread; at least two.
    pub ranks: u32,
    /// How many such groups there are, each with the same parameters (HSDP); one is plain FSDP.
    pub replicas: u32,
    /// The rank whose step it is, along the axis that parameters are spread over.
    pub rank: u32,
    /// Whether the weights of all but the outermost unit go after forward.
    pub reshard: bool,
    /// How many of the last units in forward keep their weights for backward all the same.
    pub gathered: u32,
    /// The type that the shards, the optimizer's state and the reduced gradients have, if that is not the type in which the step
    /// computes: FSDP2's mixed precision.
    pub shards: Option<Dtype>,
}

impl Fsdp2 {
    /// FSDP2's defaults: weights go after forward, all in one type, the first rank.
    #[must_use]
    pub fn over(ranks: u32) -> Self {
        Fsdp2 { ranks, replicas: 1, rank: 0, reshard: true, gathered: 0, shards: None }
    }

    /// Whether a step is one of a rank among which parameters are spread already. Ranks that share the model (tensor parallelism)
    /// may have parameters that are spread among others besides.
    #[must_use]
    pub fn has_spread(&self, trace: &StepTrace) -> bool {
        trace.place.axes.iter().any(|axis| axis.name != SHARED)
    }

    /// What a step that was spread so says of itself; what is as usual is not said.
    #[must_use]
    pub fn facts(&self) -> Vec<(String, String)> {
        let mut facts = vec![(FSDP.to_owned(), self.ranks.to_string())];
        let mut add = |said: bool, name: &str, value: String| {
            if said {
                facts.push((name.to_owned(), value));
            }
        };
        add(self.replicas != 1, REPLICAS, self.replicas.to_string());
        add(self.rank != 0, RANK, self.rank.to_string());
        add(!self.reshard, RESHARD, NO.to_owned());
        add(self.reshard && self.gathered != 0, GATHERED, self.gathered.to_string());
        add(self.shards.is_some(), SHARDS, self.shards.map_or_else(String::new, |dtype| dtype.spelled().to_owned()));
        facts
    }

    /// How a step was spread that says so of itself; nothing if it was not.
    #[must_use]
    pub fn from_facts(facts: &[(String, String)]) -> Option<Self> {
        let find = |name: &str| facts.iter().find(|fact| fact.0 == name).map(|fact| fact.1.as_str());
        let number = |name: &str| find(name).and_then(|value| value.parse().ok());
        Some(Fsdp2 {
            ranks: number(FSDP)?,
            replicas: number(REPLICAS).unwrap_or(1),
            rank: number(RANK).unwrap_or(0),
            reshard: find(RESHARD) != Some(NO),
            gathered: number(GATHERED).unwrap_or(0),
            shards: find(SHARDS).map(|_| Dtype::F32),
        })
    }
}

/// The names of facts.
const FSDP: &str = "fsdp";
const REPLICAS: &str = "replicas";
const RANK: &str = "rank";
const RESHARD: &str = "reshard";
const GATHERED: &str = "gathered";
const SHARDS: &str = "shards";
const NO: &str = "no";
/// How many modules are sharded by themselves, the whole model among them.
const UNITS: &str = "units";

/// Why a step is not spread by FSDP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fsdp2Error {
    /// Over one rank or none.
    TooFewRanks,
    /// There is no such rank.
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// How many there are.
        ranks: u32,
    },
    /// In no group at all.
    NoReplicas,
    /// It is the step of one rank of several already.
    ShardedAlready,
    /// It has several micro-batches, which do not have gradients of the same parameters, each in memory of its own.
    MicroBatches,
    /// Gradients live on from step to step, as after `zero_grad(set_to_none=False)`.
    KeptGradients,
    /// There is nothing to spread.
    NoParameters,
    /// A parameter without dimensions.
    Scalar {
        /// Its name.
        parameter: String,
    },
    /// A parameter that does not lie row by row.
    NotContiguous {
        /// Its name.
        parameter: String,
    },
    /// A parameter of two units.
    SharedByUnits {
        /// Its name in the second.
        parameter: String,
    },
    /// Gradients of several types in one unit.
    SeveralTypes,
    /// Mixed precision for a step that computes in the type of the shards.
    NotMixed,
    /// Mixed precision for a step in which a unit is given numbers that FSDP2 would narrow.
    NarrowedInput {
        /// The unit's name.
        unit: String,
        /// Their type.
        given: Dtype,
    },
    /// A module reads weights of a unit that are not gathered then; PyTorch would fail.
    ReadWhileSharded {
        /// The operator.
        op: String,
        /// The unit's name.
        unit: String,
    },
    /// An operator of the optimizer makes something of another shape from whole parameters, so that it is not known what a rank has.
    Optimizer {
        /// The operator.
        op: String,
    },
    /// A gradient's parameter is not known.
    Gradient {
        /// The operator that makes it.
        op: String,
    },
    /// The step does with its parameters what no step of a model does, so that what comes of it is none.
    Senseless(InvalidTrace),
}

impl fmt::Display for Fsdp2Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fsdp2Error::TooFewRanks => f.write_str("FSDP2 spreads parameters over at least 2 ranks"),
            Fsdp2Error::NoSuchRank { rank, ranks } => {
                write!(f, "there is no such rank as {rank}; {ranks} GPUs have the ranks 0 to {}", ranks.saturating_sub(1))
            }
            Fsdp2Error::NoReplicas => f.write_str("there is at least one replica"),
            Fsdp2Error::ShardedAlready => f.write_str("the trace is the step of one rank of several already"),
            Fsdp2Error::MicroBatches => {
                f.write_str("the micro-batches of the step do not have gradients of the same parameters; capture the sharded model")
            }
            Fsdp2Error::KeptGradients => {
                f.write_str("gradients live on from step to step; trace the step with zero_grad(set_to_none=True)")
            }
            Fsdp2Error::Scalar { parameter } => {
                write!(f, "`{parameter}` has no dimensions, and FSDP2 shards none such; give it the shape [1]")
            }
            Fsdp2Error::NotContiguous { parameter } => {
                write!(f, "`{parameter}` does not lie row by row, and FSDP2 shards none such; make it contiguous")
            }
            Fsdp2Error::SharedByUnits { parameter } => {
                write!(f, "`{parameter}` is shared with a module outside of its layer, which FSDP2 refuses; untie them")
            }
            Fsdp2Error::SeveralTypes => {
                f.write_str("the trained parameters of a layer, or of what is outside of layers, have several types, which FSDP2 refuses")
            }
            Fsdp2Error::NotMixed => f.write_str(
                "mixed precision keeps fp32 shards of a step that computes in a half type, and this one computes in fp32, if only in \
                 parts (adapters); trace it in bf16, or capture the sharded model",
            ),
            Fsdp2Error::NarrowedInput { unit, given } => write!(
                f,
                "`{unit}` is given numbers in {}, which FSDP2 casts to the type of the step in mixed precision \
                 (`cast_forward_inputs`), so that the layer runs other operators; capture the sharded model",
                given.spelled()
            ),
            Fsdp2Error::NoParameters => f.write_str("the step has no parameters to spread"),
            Fsdp2Error::ReadWhileSharded { op, unit } => {
                write!(f, "`{op}` reads weights of `{unit}` outside of its forward, where FSDP2 has them sharded")
            }
            Fsdp2Error::Optimizer { op } => {
                write!(
                    f,
                    "the optimizer's `{op}` reads whole parameters; what it makes of a rank's rows is not known: take an optimizer \
                     that looks at each element alone (adamw, sgd, lion)"
                )
            }
            Fsdp2Error::Senseless(why) => {
                write!(
                    f,
                    "the step does with its parameters what FSDP2 cannot follow: {why}; capture the sharded model"
                )
            }
            Fsdp2Error::Gradient { op } => write!(f, "`{op}` makes a gradient, and it is not known of which parameter"),
        }
    }
}

impl std::error::Error for Fsdp2Error {}

/// The step of one rank, with these modules and the whole model as units.
///
/// # Errors
/// If it cannot be told what FSDP2 would do.
pub fn fsdp2(trace: &StepTrace, how: &Fsdp2, units: &[ModuleId]) -> Result<StepTrace, Fsdp2Error> {
    check(trace, how)?;
    let mut walk = Walk::new(trace, *how, units)?;
    walk.run()?;
    let mut made = walk.made;
    made.origin.options.extend(how.facts());
    made.origin.options.push((UNITS.to_owned(), (units.len() + 1).to_string()));
    if how.replicas > 1 {
        made.place.axes.push(Axis { name: REPLICATE.to_owned(), size: how.replicas, coordinate: 0 });
    }
    made.place.axes.push(Axis { name: SHARD.to_owned(), size: how.ranks, coordinate: how.rank });
    made.place.axes.extend(trace.place.axes.iter().cloned());
    made.validate().map_err(Fsdp2Error::Senseless)?;
    Ok(made)
}

fn check(trace: &StepTrace, how: &Fsdp2) -> Result<(), Fsdp2Error> {
    if trace.modules().is_empty() {
        Err(Fsdp2Error::NoParameters)
    } else if how.ranks < 2 {
        Err(Fsdp2Error::TooFewRanks)
    } else if how.rank >= how.ranks {
        Err(Fsdp2Error::NoSuchRank { rank: how.rank, ranks: how.ranks })
    } else if how.replicas == 0 {
        Err(Fsdp2Error::NoReplicas)
    } else if how.has_spread(trace) {
        Err(Fsdp2Error::ShardedAlready)
    } else {
        Ok(())
    }
}
