//! Floating-point operations of an operator, from its name and the shapes of its tensors.
//!
//! A multiply-add counts as two. Only products of matrices count; everything else is bound by memory, so its flops never
//! decide its time.
//!
//! | operator | flops |
//! |---|---|
//! | `mm`, `addmm`, `_scaled_mm` of `[m,k]` and `[k,n]` | `2·m·k·n` |
//! | `bmm`, `baddbmm` of `[b,m,k]` and `[b,k,n]` | `2·b·m·k·n` |
//! | `_grouped_mm` of `[m,k]`, in groups of rows, and `[g,k,n]`; or, for the gradient, of `[m,k]` and `[k,n]` | `2·m·k·n` |
//! | convolution of `[N,…]` by a weight `[c0,c1,*kernel]` | `2·N·c0·c1·∏kernel·∏positions` |
//! | its backward | the same once for the input's gradient and once for the weight's, where they are returned |
//! | attention of `q [b,h,s,d]`, `k [b,g,t,d]`, `v [b,g,t,e]` | `2·b·h·s·t·(d+e)` |
//! | its backward | `2·b·h·s·t·(3d+2e)`: the scores again, then two products for each of the two of forward |
//! | recurrent layers of `[…,w]` with weights `[m,k]` | `2·m·k` for each weight and each element before `w` |
//! | their backward | twice that: for the gradients of inputs and of weights |
//!
//! `positions` are those of the output, or of the input if the convolution is transposed. With grouped queries (`g < h`)
//! keys and values are repeated, so `h` counts. The weight's second extent is already divided by the groups.
//!
//! # What a trace does not say
//! It holds tensors, not the other arguments.
//! - Whether attention is **causal**: all scores count, as torch counts them; a causal kernel does about half.
//! - Whether a convolution is **transposed**: the channels tell, as a weight begins with its output's channels, or, if
//!   transposed, with its input's. If both are equal, the smaller of the two spatial extents is taken. That is right for
//!   both kinds, except for a plain convolution padded beyond its input's size, whose extra products are with zeros.
//! - Which **gradients** a convolution's backward was asked for: the shapes of its outputs tell.
//!
//! # Where the rules differ
//! For the gradient of a *grouped* convolution's weight torch counts every pair of channels, so it is too high by the
//! number of groups. [`CostRule::Torch`] repeats that; [`CostRule::Physical`] does not. Torch knows no `_grouped_mm`, and
//! counts it as nothing.
//!
//! # Shapes that do not fit
//! An operator whose tensors are missing or do not fit together counts as 0 flops: its bytes still give it a time, and a
//! step is not refused for one operator that nobody could have run. Products saturate at 2^128 - 1.

use rematic_trace::{Dtype, Flops, Layout};

use crate::CostRule;

/// How the flops of an operator are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formula {
    /// Not a product of matrices.
    None,
    /// A matmul of the two inputs that begin at this position.
    Matmul(usize),
    /// A matmul of the second and third input, added to the first in place.
    AddedMatmul,
    /// A batched matmul of the two inputs that begin at this position.
    BatchedMatmul(usize),
    /// A matmul of rows with one of several matrices each, as experts have them.
    GroupedMatmul,
    /// A convolution of input and weight, plain or transposed.
    Convolution,
    /// Its backward: gradient of the output, input, weight.
    ConvolutionBackward,
    /// Attention of query, key and value.
    Attention,
    /// Its backward: gradient of the output, query, key, value.
    AttentionBackward,
    /// Recurrent layers of an input, followed by their weights and the hidden state.
    Recurrent {
        /// Products for each of forward.
        products: u64,
        /// How many matrices are weights. Without it, all before the hidden state, which has three extents: cuDNN's kernel
        /// has the weights of all layers.
        weights: Option<usize>,
    },
}

impl Formula {
    /// The formula for an operator, by its name without the overload (`mm`).
    #[must_use]
    pub fn of(operator: &str) -> Formula {
        match operator {
            "mm" | "_scaled_mm" => Formula::Matmul(0),
            "addmm" => Formula::Matmul(1),
            "addmm_" => Formula::AddedMatmul,
            "bmm" => Formula::BatchedMatmul(0),
            "baddbmm" => Formula::BatchedMatmul(1),
            "_grouped_mm" => Formula::GroupedMatmul,
            "convolution"
            | "_convolution"
            | "cudnn_convolution"
            | "_slow_conv2d_forward"
            | "convolution_overrideable" => Formula::Convolution,
            "convolution_backward" => Formula::ConvolutionBackward,
            "_scaled_dot_product_flash_attention"
            | "_scaled_dot_product_efficient_attention"
            | "_scaled_dot_product_cudnn_attention"
            | "_scaled_dot_product_flash_attention_for_cpu" => Formula::Attention,
            "_scaled_dot_product_flash_attention_backward"
            | "_scaled_dot_product_efficient_attention_backward"
            | "_scaled_dot_product_cudnn_attention_backward"
            | "_scaled_dot_product_flash_attention_for_cpu_backward" => Formula::AttentionBackward,
            "mkldnn_rnn_layer" => Formula::Recurrent { products: 1, weights: Some(2) },
            "mkldnn_rnn_layer_backward" => Formula::Recurrent { products: 2, weights: Some(2) },
            "_cudnn_rnn" => Formula::Recurrent { products: 1, weights: None },
            "_cudnn_rnn_backward" => Formula::Recurrent { products: 2, weights: None },
            _ => Formula::None,
        }
    }

    /// The flops of one call with these tensors.
    #[must_use]
    pub fn flops(self, inputs: &[&Layout], outputs: &[&Layout], rule: CostRule) -> Flops {
        let shape = |position: usize| inputs.get(position).map(|layout| layout.shape.as_slice());
        let count = match self {
            Formula::None => None,
            Formula::Matmul(first) => matmul(shape(first), shape(first + 1)),
            // Torch's counter does not know it.
            Formula::AddedMatmul if rule == CostRule::Torch => None,
            Formula::AddedMatmul => matmul(shape(1), shape(2)),
            Formula::BatchedMatmul(first) => batched_matmul(shape(first), shape(first + 1)),
            Formula::GroupedMatmul if rule == CostRule::Torch => None,
            Formula::GroupedMatmul => grouped_matmul(shape(0), shape(1)),
            Formula::Convolution => {
                let output = outputs.first().map(|layout| layout.shape.as_slice());
                Convolution::new(shape(0), shape(1), output).map(|convolution| convolution.forward())
            }
            Formula::ConvolutionBackward => {
                Convolution::new(shape(1), shape(2), shape(0)).map(|convolution| convolution.backward(outputs, rule))
            }
            Formula::Attention => Attention::new(shape(0), shape(1), shape(2)).map(|attention| attention.forward()),
            Formula::AttentionBackward => {
                Attention::new(shape(1), shape(2), shape(3)).and_then(|attention| attention.backward(shape(0)?))
            }
            Formula::Recurrent { products, weights } => recurrent(inputs, products, weights),
        };
        Flops(count.unwrap_or(0))
    }

    /// The type in which it multiplies: that of its first factor.
    #[must_use]
    pub fn dtype(self, inputs: &[&Layout]) -> Option<Dtype> {
        let factor = match self {
            Formula::None => return None,
            Formula::Matmul(first) | Formula::BatchedMatmul(first) => first,
            Formula::GroupedMatmul | Formula::Convolution | Formula::Attention | Formula::Recurrent { .. } => 0,
            Formula::AddedMatmul | Formula::ConvolutionBackward | Formula::AttentionBackward => 1,
        };
        inputs.get(factor).map(|layout| layout.dtype)
    }
}

type Shape<'a> = Option<&'a [u64]>;

fn product(extents: impl IntoIterator<Item = u64>) -> u128 {
    extents.into_iter().fold(1, |product: u128, extent| product.saturating_mul(u128::from(extent)))
}

fn matmul(left: Shape<'_>, right: Shape<'_>) -> Option<u128> {
    match (left?, right?) {
        (&[m, k], &[k2, n]) if k == k2 => Some(product([2, m, k, n])),
        _ => None,
    }
}

fn batched_matmul(left: Shape<'_>, right: Shape<'_>) -> Option<u128> {
    match (left?, right?) {
        (&[b, m, k], &[b2, k2, n]) if b == b2 && k == k2 => Some(product([2, b, m, k, n])),
        _ => None,
    }
}

fn grouped_matmul(left: Shape<'_>, right: Shape<'_>) -> Option<u128> {
    match (left?, right?) {
        (&[m, k], &[_, k2, n]) if k == k2 => Some(product([2, m, k, n])),
        (left, right) => matmul(Some(left), Some(right)),
    }
}

fn recurrent(inputs: &[&Layout], products: u64, weights: Option<usize>) -> Option<u128> {
    let (input, rest) = inputs.split_first()?;
    let (_, elements) = input.shape.split_last()?;
    let each = product(elements.iter().copied()).saturating_mul(u128::from(2 * products));
    let listed = rest.iter().map(|layout| layout.shape.as_slice()).take_while(|shape| shape.len() < 3);
    let matrices = listed.filter(|shape| shape.len() == 2).take(weights.unwrap_or(usize::MAX));
    Some(matrices.fold(0, |sum: u128, shape| sum.saturating_add(each.saturating_mul(product(shape.iter().copied())))))
}

/// The extents of a convolution that its shapes agree on.
struct Convolution<'a> {
    input: &'a [u64],
    weight: &'a [u64],
    output: &'a [u64],
    transposed: bool,
}

impl<'a> Convolution<'a> {
    fn new(input: Shape<'a>, weight: Shape<'a>, output: Shape<'a>) -> Option<Self> {
        let (input, weight, output) = (input?, weight?, output?);
        let same_rank = input.len() == weight.len() && weight.len() == output.len() && weight.len() > 2;
        if !same_rank || input[0] != output[0] {
            return None;
        }
        let positions = |shape: &[u64]| product(shape[2..].iter().copied());
        let transposed = match (weight[0] == output[1], weight[0] == input[1]) {
            (true, true) => positions(input) < positions(output),
            (true, false) => false,
            (false, true) => true,
            (false, false) => return None,
        };
        Some(Convolution { input, weight, output, transposed })
    }

    fn forward(&self) -> u128 {
        let positions = if self.transposed { self.input } else { self.output };
        let factors = [2, self.input[0]].into_iter().chain(self.weight.iter().copied());
        product(factors.chain(positions[2..].iter().copied()))
    }

    /// Each gradient needs the products of forward once more, in another order.
    fn backward(&self, gradients: &[&Layout], rule: CostRule) -> u128 {
        // They are returned in this order; a bias's gradient is a sum, without products.
        let mut gradients = gradients.iter().map(|layout| layout.shape.as_slice()).peekable();
        let of_input = gradients.next_if(|shape| *shape == self.input).is_some();
        let of_weight = gradients.next_if(|shape| *shape == self.weight).is_some();
        let mut count = 0;
        if of_input {
            count = self.forward();
        }
        if of_weight {
            let products = match rule {
                CostRule::Physical => self.forward(),
                CostRule::Torch => self.forward().saturating_mul(self.groups()),
            };
            count = count.saturating_add(products);
        }
        count
    }

    fn groups(&self) -> u128 {
        let channels = if self.transposed { self.output[1] } else { self.input[1] };
        u128::from(channels.checked_div(self.weight[1]).unwrap_or(1).max(1))
    }
}

/// The extents of an attention that its shapes agree on.
struct Attention {
    batch: u64,
    heads: u64,
    queries: u64,
    keys: u64,
    key_width: u64,
    value_width: u64,
}

impl Attention {
    fn new(query: Shape<'_>, key: Shape<'_>, value: Shape<'_>) -> Option<Self> {
        let (&[b, h, s, d], &[b2, g, t, d2], &[b3, g2, t2, e]) = (query?, key?, value?) else { return None };
        let fits = b == b2 && b == b3 && g == g2 && t == t2 && d == d2 && g > 0 && h % g == 0;
        fits.then_some(Attention { batch: b, heads: h, queries: s, keys: t, key_width: d, value_width: e })
    }

    fn scores(&self) -> u128 {
        product([2, self.batch, self.heads, self.queries, self.keys])
    }

    fn forward(&self) -> u128 {
        let (d, e) = (u128::from(self.key_width), u128::from(self.value_width));
        self.scores().saturating_mul(d + e)
    }

    fn backward(&self, gradient: &[u64]) -> Option<u128> {
        let (d, e) = (u128::from(self.key_width), u128::from(self.value_width));
        let fits = *gradient == [self.batch, self.heads, self.queries, self.value_width];
        fits.then(|| self.scores().saturating_mul(3 * d + 2 * e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(operator: &str, inputs: &[&[u64]], outputs: &[&[u64]], rule: CostRule) -> u128 {
        let layouts = |shapes: &[&[u64]]| -> Vec<Layout> {
            shapes.iter().map(|shape| Layout::contiguous(Dtype::F32, shape)).collect()
        };
        let (inputs, outputs) = (layouts(inputs), layouts(outputs));
        let inputs: Vec<&Layout> = inputs.iter().collect();
        let outputs: Vec<&Layout> = outputs.iter().collect();
        Formula::of(operator).flops(&inputs, &outputs, rule).0
    }

    fn physical(operator: &str, inputs: &[&[u64]], outputs: &[&[u64]]) -> u128 {
        count(operator, inputs, outputs, CostRule::Physical)
    }

    #[test]
    fn recurrent_layers_multiply_by_each_weight_at_each_step() {
        // Five steps of three sequences, from 8 to 16: four gates.
        let layer: [&[u64]; 7] = [&[5, 3, 8], &[64, 8], &[64, 16], &[64], &[64], &[3, 16], &[3, 16]];
        let once = 2 * 15 * (64 * 8 + 64 * 16);
        assert_eq!(physical("mkldnn_rnn_layer", &layer, &[]), once);
        assert_eq!(physical("mkldnn_rnn_layer_backward", &layer, &[]), 2 * once);
        let whole: [&[u64]; 8] = [&[15, 8], &[64, 8], &[64, 16], &[64], &[64], &[1664], &[1, 3, 16], &[1, 3, 16]];
        assert_eq!(physical("_cudnn_rnn", &whole, &[]), once);
        assert_eq!(physical("_cudnn_rnn_backward", &whole, &[]), 2 * once);
    }

    #[test]
    fn matmuls_count_two_per_product() {
        assert_eq!(physical("mm", &[&[2, 3], &[3, 5]], &[]), 60);
        assert_eq!(physical("addmm", &[&[5], &[2, 3], &[3, 5]], &[]), 60);
        assert_eq!(physical("addmm_", &[&[2, 5], &[2, 3], &[3, 5]], &[]), 60);
        assert_eq!(physical("_scaled_mm", &[&[2, 3], &[3, 5], &[], &[]], &[]), 60);
        assert_eq!(physical("bmm", &[&[7, 2, 3], &[7, 3, 5]], &[]), 420);
        assert_eq!(physical("baddbmm", &[&[7, 2, 5], &[7, 2, 3], &[7, 3, 5]], &[]), 420);
        assert_eq!(physical("_grouped_mm", &[&[8, 3], &[7, 3, 5], &[7]], &[]), 240);
        assert_eq!(physical("_grouped_mm", &[&[5, 8], &[8, 3], &[7]], &[]), 240);
        assert_eq!(count("_grouped_mm", &[&[8, 3], &[7, 3, 5], &[7]], &[], CostRule::Torch), 0);
        assert_eq!(physical("add", &[&[2, 3], &[3, 5]], &[]), 0);
    }

    /// The expected numbers are those that torch 2.15's FlopCounterMode gives for these modules.
    #[test]
    fn convolutions_count_as_torch_does() {
        let check = |input: &[u64], weight: &[u64], output: &[u64], forward: u128, torch: u128, physical: u128| {
            for rule in [CostRule::Physical, CostRule::Torch] {
                assert_eq!(count("convolution", &[input, weight], &[output], rule), forward);
            }
            let bias = [weight[0]];
            let backward =
                |rule| count("convolution_backward", &[output, input, weight], &[input, weight, &bias], rule);
            assert_eq!(backward(CostRule::Torch), torch);
            assert_eq!(backward(CostRule::Physical), physical);
        };
        check(&[2, 3, 16, 16], &[8, 3, 3, 3], &[2, 8, 8, 8], 55_296, 110_592, 110_592);
        check(&[2, 8, 16, 16], &[8, 1, 3, 3], &[2, 8, 16, 16], 73_728, 663_552, 147_456);
        check(&[2, 8, 16, 16], &[8, 4, 2, 2], &[2, 4, 32, 32], 131_072, 262_144, 262_144);
        check(&[2, 8, 16, 16], &[8, 8, 2, 2], &[2, 8, 32, 32], 262_144, 524_288, 524_288);
        check(&[2, 8, 16, 16], &[8, 2, 2, 2], &[2, 8, 32, 32], 65_536, 327_680, 131_072);
    }

    #[test]
    fn only_the_gradients_that_are_returned_count() {
        let (input, weight, output): (&[u64], &[u64], &[u64]) = (&[2, 3, 16], &[8, 3, 3], &[2, 8, 14]);
        let forward = physical("convolution", &[input, weight], &[output]);
        assert_eq!(forward, 2 * 2 * 8 * 3 * 3 * 14);
        let backward = |outputs: &[&[u64]]| physical("convolution_backward", &[output, input, weight], outputs);
        assert_eq!(backward(&[input]), forward);
        assert_eq!(backward(&[weight, &[8]]), forward);
        assert_eq!(backward(&[&[8]]), 0);
    }

    #[test]
    fn attention_counts_all_scores_and_every_query_head() {
        let (q, k): (&[u64], &[u64]) = (&[8, 12, 1024, 64], &[8, 12, 1024, 64]);
        let one_product: u128 = 2 * 8 * 12 * 1024 * 1024 * 64;
        for kernel in ["flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu"] {
            let forward = format!("_scaled_dot_product_{kernel}");
            assert_eq!(physical(&forward, &[q, k, k], &[]), 2 * one_product);
            let backward = format!("{forward}_backward");
            assert_eq!(physical(&backward, &[q, q, k, k, q], &[]), 5 * one_product);
        }
        let (q, k, v): (&[u64], &[u64], &[u64]) = (&[1, 8, 16, 4], &[1, 2, 32, 4], &[1, 2, 32, 6]);
        let scores = 2 * 8 * 16 * 32;
        assert_eq!(physical("_scaled_dot_product_flash_attention", &[q, k, v], &[]), scores * (4 + 6));
        let gradient: &[u64] = &[1, 8, 16, 6];
        let inputs = [gradient, q, k, v];
        assert_eq!(physical("_scaled_dot_product_flash_attention_backward", &inputs, &[]), scores * (12 + 12));
    }

    #[test]
    fn shapes_that_do_not_fit_count_nothing() {
        assert_eq!(physical("mm", &[&[2, 3], &[4, 5]], &[]), 0);
        assert_eq!(physical("mm", &[&[2, 3]], &[]), 0);
        assert_eq!(physical("bmm", &[&[2, 3], &[3, 5]], &[]), 0);
        assert_eq!(physical("convolution", &[&[2], &[2]], &[&[2]]), 0);
        assert_eq!(physical("convolution", &[&[2, 3, 4], &[9, 3, 1]], &[]), 0);
        let attention = "_scaled_dot_product_flash_attention";
        assert_eq!(physical(attention, &[&[1, 3, 4, 5], &[1, 2, 4, 5], &[1, 2, 4, 5]], &[]), 0);
        assert_eq!(physical(attention, &[&[1, 3, 4, 5], &[1, 0, 4, 5], &[1, 0, 4, 5]], &[]), 0);
    }

    #[test]
    fn products_saturate() {
        let huge = [u64::MAX; 4];
        assert_eq!(physical("_scaled_dot_product_flash_attention", &[&huge, &huge, &huge], &[]), u128::MAX);
    }
}
