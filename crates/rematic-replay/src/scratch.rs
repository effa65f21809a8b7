//! What kernels take for themselves while they run, besides what they return.
//!
//! No dispatch mode sees these blocks; PyTorch takes them from its caching allocator inside of an operator. Each rule is that
//! of PyTorch 2.15's CUDA code, measured operator by operator on its real allocator (`tests/allocator/scratch.py`).

mod attention;
mod convolution;
mod embedding;
mod gemm;
mod images;
mod index;
mod norm;
mod pointwise;
mod pool;
mod reduction;
mod sort;

use std::ops::Range;

use rematic_trace::{Layout, OpId, Phase, StepTrace, StorageId, Table, Tensor};

/// What the kernels that a GPU picks depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// Its compute capability: 80 for an A100, 90 for an H100.
    pub capability: u32,
    /// How many multiprocessors it has.
    pub processors: u32,
    /// Whether attention may take cuDNN's kernel, as it does with PyTorch's wheels. Convolutions always run through it.
    pub cudnn: bool,
}

/// One thing that an operator does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Takes a block of so many bytes.
    Take(u64),
    /// Gives back the block that was taken so many takes ago: 0 is the last one.
    Give(usize),
    /// Makes one of its outputs; the first is 0.
    Output(usize),
    /// One of its outputs lies on the host.
    OnHost(usize),
    /// Makes its outputs, or those that are not there yet, in order.
    Outputs,
}

/// What all operators of a step take for themselves.
#[derive(Clone, Debug)]
pub struct Scratch {
    uses: Vec<Use>,
    of_op: Table<OpId, Range<u32>>,
    accumulates: Table<OpId, Option<StorageId>>,
}

impl Scratch {
    /// Looks at every operator once. Of a card of which nothing is known, kernels take nothing for themselves.
    #[must_use]
    pub fn new(trace: &StepTrace, architecture: Option<Architecture>) -> Self {
        let mut scratch =
            Scratch { uses: Vec::new(), of_op: trace.ops().filled(0..0), accumulates: trace.ops().filled(None) };
        scratch.find_accumulations(trace);
        let Some(architecture) = architecture else { return scratch };
        let drops = trace.names().iter().any(|name| name.starts_with("native_dropout"));
        // A backward does not say whether its forward drew numbers; those of a step are alike.
        let drops_in_flash =
            trace.ops().iter().any(|op| op.flags.random && trace.op_name(op).contains("flash_attention"));
        let rules: Table<_, Option<Rule>> = trace.names().iter().map(|name| rule(name)).collect();
        for (id, op) in trace.ops().entries() {
            let Some(rule) = rules[op.name] else { continue };
            let layouts =
                |tensors: &[Tensor]| tensors.iter().map(|tensor| trace.layout_of(*tensor)).collect::<Vec<_>>();
            let call = Call {
                inputs: layouts(trace.inputs(op)),
                outputs: layouts(trace.outputs(op)),
                architecture,
                random: op.flags.random,
                backward: op.phase == Phase::Backward,
                drops,
                drops_in_flash,
            };
            let start = as_u32(scratch.uses.len());
            rule(&call, &mut scratch.uses);
            scratch.of_op[id] = start..as_u32(scratch.uses.len());
        }
        scratch
    }

    /// What an operator does; nothing if it only takes its outputs.
    #[must_use]
    pub fn of(&self, op: OpId) -> &[Use] {
        let Range { start, end } = self.of_op.get(op).cloned().unwrap_or(0..0);
        &self.uses[start as usize..end as usize]
    }

    /// The storage that an operator adds to in place, where a dispatch mode sees it make a new one.
    #[must_use]
    pub fn accumulates(&self, op: OpId) -> Option<StorageId> {
        self.accumulates.get(op).copied().flatten()
    }

    /// The math kernel of attention adds its mask to the scores in place (`_scaled_dot_product_attention_math` in
    /// `attention.cpp`). Autograd adds a second gradient to the first in place, if nothing else refers to that one (`can_accumulate_inplace` in
    /// `input_buffer.cpp`); only while somebody watches, it makes a new tensor. So it does with the zeros that picked rows are
    /// added to (`index_backward` in `TensorAdvancedIndexing.cpp`). A view refers to what it is a view of; once an operator has read
    /// the view, what is left is the original.
    fn find_accumulations(&mut self, trace: &StepTrace) {
        let (mut last, mut viewed) = (None, trace.storages().filled(false));
        for event in trace.events() {
            match *event {
                rematic_trace::Event::Op(id) => {
                    if let Some(before) = last.replace(id) {
                        note_views(trace, before, &mut viewed);
                    }
                }
                rematic_trace::Event::Drop(storage) => {
                    let Some(id) = last else { continue };
                    let op = trace.op(id);
                    if is_mask_of_scores(trace, id, storage) {
                        self.accumulates[id] = Some(storage);
                        continue;
                    }
                    if op.phase != Phase::Backward || !matches!(trace.op_name(op), "add.Tensor" | "index_put.default") {
                        continue;
                    }
                    let (&[first, ..], &[output]) = (trace.inputs(op), trace.outputs(op)) else { continue };
                    let alike = first.storage == storage
                        && first.layout == output.layout
                        && trace.storages()[storage].bytes == trace.storages()[output.storage].bytes;
                    let is_new = trace.storages()[output.storage].birth == Some(id);
                    if alike && is_new && lies_as_born(trace, first) && !viewed[storage] {
                        self.accumulates[id] = Some(storage);
                    }
                }
                _ => {}
            }
        }
    }
}

/// Which storages have views that lie as they do themselves, and are yet to be read, after an operator.
fn note_views(trace: &StepTrace, id: OpId, viewed: &mut Table<StorageId, bool>) {
    let op = trace.op(id);
    for tensor in trace.inputs(op).iter().filter(|tensor| lies_as_born(trace, **tensor)) {
        viewed[tensor.storage] = false;
    }
    for tensor in trace.outputs(op).iter().filter(|tensor| op.flags.view && lies_as_born(trace, **tensor)) {
        viewed[tensor.storage] = true;
    }
}

/// Whether an operator adds a mask to scores that nobody reads any more, before the softmax that only the math kernel runs.
fn is_mask_of_scores(trace: &StepTrace, id: OpId, scores: StorageId) -> bool {
    let op = trace.op(id);
    if op.phase != Phase::Forward || trace.op_name(op) != "add.Tensor" {
        return false;
    }
    let (&[first, ..], &[output]) = (trace.inputs(op), trace.outputs(op)) else { return false };
    let next = trace.ops().get(OpId::new(id.index() + 1));
    let is_read = next.is_some_and(|next| {
        trace.op_name(next).starts_with("_safe_softmax.") && trace.inputs(next).first() == Some(&output)
    });
    is_read
        && first.storage == scores
        && trace.storages()[scores].bytes == trace.storages()[output.storage].bytes
        && trace.storages()[output.storage].birth == Some(id)
}

/// Whether a tensor lies as the operator left it that made its storage. A view of a view may, too.
fn lies_as_born(trace: &StepTrace, tensor: Tensor) -> bool {
    let Some(birth) = trace.storages()[tensor.storage].birth else { return false };
    trace.outputs(trace.op(birth)).contains(&tensor)
}

/// An operator with the layouts of what it reads and returns.
pub(crate) struct Call<'a> {
    inputs: Vec<&'a Layout>,
    outputs: Vec<&'a Layout>,
    architecture: Architecture,
    /// Whether it draws random numbers.
    random: bool,
    /// Whether autograd runs it.
    backward: bool,
    /// Whether the step has dropout. Of memory-efficient attention a trace does not say whether it drops weights.
    drops: bool,
    /// Whether flash attention drops weights in the step.
    drops_in_flash: bool,
}

impl Call<'_> {
    fn input(&self, index: usize) -> Option<&Layout> {
        self.inputs.get(index).copied()
    }
}

type Rule = fn(&Call<'_>, &mut Vec<Use>);

fn rule(name: &str) -> Option<Rule> {
    let operator = name.split_once('.').map_or(name, |(operator, _)| operator);
    Some(match operator {
        "mm" | "bmm" | "dot" | "mv" | "vdot" => gemm::product,
        "baddbmm" => gemm::with_matrices,
        "addmm" => gemm::with_bias,
        "_scaled_dot_product_flash_attention" | "_flash_attention_forward" => attention::flash,
        "_scaled_dot_product_flash_attention_backward" | "_flash_attention_backward" => attention::flash_backward,
        "_scaled_dot_product_efficient_attention" => attention::efficient,
        "_scaled_dot_product_efficient_attention_backward" | "_efficient_attention_backward" => {
            attention::efficient_backward
        }
        "embedding_dense_backward" => embedding::backward,
        "sum" | "mean" | "nansum" | "linalg_vector_norm" => reduction::reduce,
        "amax" | "amin" | "any" | "all" => reduction::extreme,
        "aminmax" => reduction::extremes,
        "var" | "std" | "var_mean" | "std_mean" => reduction::variance,
        "argmax" | "argmin" => reduction::place,
        "max" | "min" if name.ends_with(".dim") => reduction::place,
        "max" | "min" if name.ends_with(".default") => reduction::extreme_of_all,
        "max_pool2d_with_indices" | "avg_pool2d" => pool::pool,
        "max_pool2d_with_indices_backward" | "avg_pool2d_backward" => pool::pool_backward,
        "_adaptive_avg_pool2d" => pool::adaptive,
        "_adaptive_avg_pool2d_backward" => pool::adaptive_backward,
        "upsample_nearest2d" | "upsample_nearest2d_backward" | "upsample_bilinear2d_backward" => pool::resized,
        "upsample_bilinear2d" => pool::weighed,
        "upsample_bicubic2d_backward" | "reflection_pad2d" => pool::channels_first,
        "cumsum" => sort::running,
        "roll" => pointwise::roll,
        "index_put" => index::add_unchecked,
        "index_put_" | "_index_put_impl_" => index::add,
        "embedding" => embedding::forward,
        "native_dropout" => pointwise::dropout,
        "_safe_softmax" => pointwise::safe_softmax,
        "native_layer_norm" | "_fused_rms_norm" => norm::layer,
        "native_layer_norm_backward" | "_fused_rms_norm_backward" => norm::layer_backward,
        "native_group_norm" => norm::group,
        "native_group_norm_backward" => norm::group_backward,
        "native_batch_norm" => norm::batch,
        "native_batch_norm_backward" => norm::batch_backward,
        "convolution" => convolution::forward,
        "convolution_backward" => convolution::backward,
        "sort" => sort::sort,
        "topk" => sort::top,
        "_softmax" | "_log_softmax" => pointwise::softmax,
        "_softmax_backward_data" => pointwise::softmax_backward,
        "_log_softmax_backward_data" => pointwise::log_softmax_backward,
        "mse_loss" | "smooth_l1_loss" => pointwise::summed_loss,
        "huber_loss" => pointwise::loss_then_sum,
        "binary_cross_entropy_with_logits" => pointwise::two_losses_then_sum,
        "logsumexp" => pointwise::log_sum_exp,
        "_foreach_norm" => pointwise::norms,
        _ => return None,
    })
}

/// Saturates: sizes come from files.
fn product<const N: usize>(factors: [u64; N]) -> u64 {
    factors.into_iter().fold(1, u64::saturating_mul)
}

/// The next multiple, or the largest number there is.
fn round_up(size: u64, to: u64) -> u64 {
    size.div_ceil(to).saturating_mul(to)
}

fn bytes(layout: &Layout) -> u64 {
    layout.elements().saturating_mul(layout.dtype.size())
}

fn as_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
