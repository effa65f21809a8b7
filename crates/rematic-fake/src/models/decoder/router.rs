//! Which experts tokens go to.

use rematic_trace::Dtype;

use super::{DecoderConfig, ExpertsConfig, Family};
use crate::nn::{Outputs, Scope};
use crate::parallel::TensorParallel;
use crate::tensor::Tensor;

/// Where tokens go.
pub(super) struct Routes {
    pub(super) logits: Tensor,
    pub(super) weights: Tensor,
    pub(super) places: Tensor,
}

impl Outputs for Routes {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.logits.clone(), self.weights.clone(), self.places.clone()]
    }
}

/// Says which experts a token goes to, and with which weights.
pub(super) struct Router {
    scope: Scope,
    weight: Tensor,
    bias: Option<Tensor>,
    chosen: u64,
    normalized: bool,
    family: Family,
    /// Added to the scores by which experts are chosen.
    correction: Option<Tensor>,
    groups: Option<(u64, u64)>,
    group: Option<TensorParallel>,
}

impl Router {
    pub(super) fn new(parent: &Scope, config: &DecoderConfig, sizes: &ExpertsConfig) -> Self {
        let family = config.family;
        let name = if family == Family::GptOss { "router" } else { "gate" };
        let is_deepseek = matches!(family, Family::DeepseekV2 | Family::DeepseekV3);
        let class = if is_deepseek { "TopkRouter" } else { "TopKRouter" };
        let scope = parent.child(name, &format!("{}{class}", family.prefix()));
        let weight = scope.parameter("weight", &[sizes.count, config.hidden]);
        let bias = (family == Family::GptOss).then(|| scope.parameter("bias", &[sizes.count]));
        let correction = (family == Family::DeepseekV3)
            .then(|| scope.buffer("e_score_correction_bias", weight.dtype(), &[sizes.count]));
        let (chosen, normalized, groups) = (sizes.chosen, sizes.normalized, sizes.groups);
        Router { scope, weight, bias, chosen, normalized, family, correction, groups, group: config.group }
    }

    /// On all ranks the same, if there are several; what it says is the rank's own then.
    pub(super) fn forward(&self, tokens: &Tensor) -> Routes {
        let tokens = &if self.group.is_some() { tokens.for_replicas() } else { tokens.clone() };
        let routes = self.scope.call(&[tokens], || match self.family {
            Family::GptOss => self.of_logits(tokens),
            Family::DeepseekV2 | Family::DeepseekV3 => self.of_groups(tokens),
            _ => self.of_shares(tokens),
        });
        if self.group.is_none() {
            return routes;
        }
        let Routes { logits, weights, places } = routes;
        Routes { logits: logits.local(), weights: weights.local(), places: places.local() }
    }

    /// The experts with the highest logits, which share a token by them.
    fn of_logits(&self, tokens: &Tensor) -> Routes {
        let logits = tokens.linear(&self.weight, self.bias.as_ref());
        let (highest, places) = logits.top(self.chosen);
        let weights = highest.softmax_last_for(self.group);
        Routes { logits, weights, places }
    }

    /// DeepSeek's, in fp32.
    fn of_groups(&self, tokens: &Tensor) -> Routes {
        let width = tokens.size(-1);
        let tokens = tokens.view(&[tokens.layout().elements() / width.max(1), width]);
        let logits = {
            let (tokens, weight) = (tokens.to(Dtype::F32), self.weight.to(Dtype::F32));
            tokens.linear(&weight, None)
        };
        match &self.correction {
            None => self.greedy(logits),
            Some(correction) => self.corrected(logits, correction),
        }
    }

    /// DeepSeek-V2's: the largest shares, of the best groups only if there are groups.
    fn greedy(&self, logits: Tensor) -> Routes {
        let mut shares = logits.softmax_in_single();
        // What groups are chosen by is held to the end.
        let held = self.groups.map(|(groups, kept)| {
            let best = grouped(&shares, groups).max_last(false);
            let mask = mask_of_groups(&best, kept, shares.shape());
            shares = {
                let others = mask.others();
                shares.masked(&others)
            };
            (best, mask)
        });
        let (mut weights, places) = shares.top_for(self.chosen, self.group);
        weights = weights.mul_scalar();
        drop(held);
        Routes { logits, weights, places }
    }

    /// DeepSeek-V3's: by scores with a correction, of the groups whose two best are the highest.
    fn corrected(&self, logits: Tensor, correction: &Tensor) -> Routes {
        let scores = logits.sigmoid();
        let mut choice = scores.add(correction);
        let (groups, kept) = self.groups.unwrap_or((1, 1));
        let best = {
            let (two, _) = grouped(&choice, groups).top(2);
            two.sum_dim(-1, false)
        };
        let mask = mask_of_groups(&best, kept, choice.shape());
        choice = {
            let others = mask.others();
            choice.masked(&others)
        };
        let (_, places) = choice.top(self.chosen);
        let mut weights = scores.gather_last_for(&places, self.group);
        let denominator = self.normalized.then(|| {
            let sum = weights.sum_dim(-1, true);
            sum.add_scalar()
        });
        if let Some(denominator) = &denominator {
            weights = weights.divided_in_place(denominator);
        }
        weights = weights.mul_scalar();
        Routes { logits, weights, places }
    }

    /// The experts with the largest shares.
    fn of_shares(&self, tokens: &Tensor) -> Routes {
        let tokens = tokens.reshape(tokens.shape());
        let logits = tokens.linear(&self.weight, None);
        let is_mixtral = self.family == Family::Mixtral;
        let shares = if is_mixtral {
            let single = logits.to(Dtype::F32);
            single.softmax_last()
        } else {
            logits.softmax_in_single()
        };
        let (mut weights, places) = shares.top_for(self.chosen, self.group);
        if self.normalized {
            let sum = weights.sum_dim(-1, true);
            weights = weights.divided_in_place(&sum);
        }
        if !is_mixtral {
            weights = weights.to(logits.dtype());
        }
        Routes { logits, weights, places }
    }
}

/// Scores of experts by group.
fn grouped(scores: &Tensor, groups: u64) -> Tensor {
    scores.view(&[scores.size(0), groups, scores.size(-1) / groups.max(1)])
}

/// The groups that are kept, and what was made for it.
struct GroupMask {
    _places: Tensor,
    _of_groups: Tensor,
    of_experts: Tensor,
}

impl GroupMask {
    /// True for the experts of all other groups.
    fn others(&self) -> Tensor {
        let kept = self.of_experts.to(Dtype::Bool);
        kept.map("bitwise_not.default")
    }
}

fn mask_of_groups(best: &Tensor, kept: u64, experts: &[u64]) -> GroupMask {
    let (_, places) = best.top(kept);
    let of_groups = best.map("zeros_like.default");
    of_groups.change("scatter_.value", &[&places]);
    let (rows, groups) = (best.size(0), best.size(1));
    let each = experts.last().copied().unwrap_or(0) / groups.max(1);
    let of_experts = of_groups.unsqueeze(-1).expand(&[rows, groups, each]).reshape(experts);
    GroupMask { _places: places, _of_groups: of_groups, of_experts }
}
