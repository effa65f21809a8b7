mod bias;

use std::fmt;
use std::str::FromStr;

use rematic_trace::{CardKind, Dtype, Layout, Opt};

use super::elementwise::elementwise_layout;
use crate::autograd::Gradients;
use crate::error::FakeError;
use crate::kernel::{Derivative, Kernel, Out, Slot};
use crate::tensor::Tensor;
use bias::{BIAS_GRADIENT_ALIGNMENT, causal_bias};

/// Which kernel runs scaled-dot-product attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionKernel {
    /// What PyTorch picks on the card: flash for half precision without a mask; else memory-efficient; math for widths of
    /// heads and types that neither of the others takes there.
    #[default]
    Auto,
    /// Flash attention; half precision only.
    Flash,
    /// The memory-efficient kernel.
    Efficient,
    /// Plain matrix products and softmax.
    Math,
}

impl AttentionKernel {
    /// All names, as the command line takes them.
    pub const NAMES: [(&'static str, AttentionKernel); 4] = [
        ("auto", AttentionKernel::Auto),
        ("flash", AttentionKernel::Flash),
        ("efficient", AttentionKernel::Efficient),
        ("math", AttentionKernel::Math),
    ];
}

impl fmt::Display for AttentionKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, kernel)| kernel == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

impl FromStr for AttentionKernel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::NAMES
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, kernel)| *kernel)
            .ok_or_else(|| format!("`{text}` is not an attention kernel; take auto, flash, efficient or math"))
    }
}

/// Scaled-dot-product attention, causal unless it is told otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// The kernel.
    pub kernel: AttentionKernel,
    /// The share of attention weights that is dropped.
    pub dropout: f64,
    /// Whether a position sees only those before it. The math kernel makes a mask of it; the others do without.
    pub causal: bool,
    /// How many elements into their memory the values begin, where that is no multiple of a head's width.
    pub value_offset: u64,
}

impl Default for Attention {
    fn default() -> Self {
        Attention { kernel: AttentionKernel::default(), dropout: 0.0, causal: true, value_offset: 0 }
    }
}

impl Attention {
    /// Attends with queries, keys and values of shape `[batch, heads, positions, width]`; keys and values may have
    /// fewer heads, each shared by a group of query heads. A boolean mask, of a shape that broadcasts to
    /// `[batch, heads, positions, positions]`, stands in for causality.
    #[must_use]
    pub fn attend(&self, query: &Tensor, key: &Tensor, value: &Tensor, mask: Option<&Tensor>) -> Tensor {
        let fits = query.shape().len() == 4
            && value.shape().len() == 4
            && key.shape().get(..3) == value.shape().get(..3)
            && query.size(0) == key.size(0)
            && query.size(3) == key.size(3)
            && key.size(1) > 0
            && query.size(1).is_multiple_of(key.size(1));
        if !fits {
            query.tape().fail(FakeError::Shape {
                op: "scaled_dot_product_attention",
                expected: "queries, keys and values must agree, and the key heads divide the query heads",
                found: format!("{}, {} and {}", query.layout(), key.layout(), value.layout()),
            });
            return query.clone();
        }
        let (value, key, query) = (&value.lowered(), &key.lowered(), &query.lowered());
        query.tape().inside_operator(|| self.attend_inside(query, key, value, mask))
    }

    /// The same with numbers that are added to the scores, of a shape that broadcasts to `[batch, heads, positions, positions]`. They
    /// may have a gradient.
    pub(crate) fn attend_biased(&self, query: &Tensor, key: &Tensor, value: &Tensor, bias: &Tensor) -> Tensor {
        let bias = &bias.lowered();
        let (value, key, query) = (&value.lowered(), &key.lowered(), &query.lowered());
        query.tape().inside_operator(|| match self.kernel_for(query, value, true) {
            None => query.clone(),
            Some(AttentionKernel::Efficient) => {
                let bias = bias.clone().aligned_bias(query, key);
                efficient(query, key, value, Some(&bias))
            }
            Some(_) => self.math(query, key, value, Some(bias)),
        })
    }

    /// The kernel that runs; none, after it has been said why, if the one that was asked for does not take these queries.
    fn kernel_for(&self, query: &Tensor, value: &Tensor, masked: bool) -> Option<AttentionKernel> {
        let refused = match self.kernel {
            AttentionKernel::Flash => refused_by_flash(query, value, masked),
            AttentionKernel::Efficient => refused_by_efficient(query, value, self.value_offset, CardKind::default()),
            AttentionKernel::Auto | AttentionKernel::Math => None,
        };
        if let Some(rule) = refused {
            query.tape().fail(FakeError::Option { name: Opt("attention"), value: self.kernel.to_string(), rule });
            return None;
        }
        Some(self.chosen(query, value, masked))
    }

    /// The same behind autocast.
    fn attend_inside(&self, query: &Tensor, key: &Tensor, value: &Tensor, mask: Option<&Tensor>) -> Tensor {
        let Some(kernel) = self.kernel_for(query, value, mask.is_some()) else { return query.clone() };
        match kernel {
            AttentionKernel::Flash => padded_flash(query, key, value, self.dropout),
            AttentionKernel::Efficient => {
                let bias = mask.map(|mask| mask.as_bias(query.dtype()).aligned_bias(query, key));
                efficient(query, key, value, bias.as_ref())
            }
            AttentionKernel::Auto | AttentionKernel::Math => {
                let bias = mask.map(|mask| mask.as_bias(query.dtype()));
                self.math(query, key, value, bias.as_ref())
            }
        }
    }

    /// The kernel that was asked for, or the card's choice. The step says whose it is, if another card's is another.
    fn chosen(&self, query: &Tensor, value: &Tensor, masked: bool) -> AttentionKernel {
        if self.kernel != AttentionKernel::Auto {
            return self.kernel;
        }
        let card = query.tape().state().card;
        let [chosen, usual] = [card, CardKind::default()].map(|card| self.picked(query, value, masked, card));
        if chosen != usual && query.tape().state().trace.origin.card.is_none() {
            query.tape().fact("card", card);
        }
        chosen
    }

    /// `select_sdp_backend` of `sdp_utils.cpp`, as far as steps of models differ in what it looks at: flash, else
    /// memory-efficient, else math. Both take keys and values with fewer heads.
    fn picked(&self, query: &Tensor, value: &Tensor, masked: bool, card: CardKind) -> AttentionKernel {
        let trains = query.requires_grad() || value.requires_grad();
        let runs_flash = refused_by_flash(query, value, masked).is_none()
            && match card {
                CardKind::BeforeAmpere => false,
                CardKind::DataCenter => true,
                CardKind::Consumer => !trains || self.trains_on_consumer_cards(query.size(3)),
            };
        if runs_flash {
            AttentionKernel::Flash
        } else if refused_by_efficient(query, value, self.value_offset, card).is_none() {
            AttentionKernel::Efficient
        } else {
            AttentionKernel::Math
        }
    }

    /// `check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120`.
    fn trains_on_consumer_cards(&self, width: u64) -> bool {
        width <= 192 || (width > 224 && self.dropout == 0.0)
    }

    /// The decomposition that PyTorch runs where no fused kernel applies.
    fn math(&self, query: &Tensor, key: &Tensor, value: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let dtype = query.dtype();
        // Half precision is computed in single. What is derived from the operands does not replace them: all live to
        // the end.
        let (query, key, value) = (query.to(Dtype::F32), key.to(Dtype::F32), value.to(Dtype::F32));
        let scaled = query.scale();
        let causal = (self.causal && bias.is_none()).then(|| causal_bias(&scaled, key.size(2)));
        let group = query.size(1) / key.size(1);
        let (all_keys, all_values) =
            if group > 1 { (key.repeat_heads(group), value.repeat_heads(group)) } else { (key.clone(), value.clone()) };
        let mut weights = {
            let flipped = {
                let transposed = all_keys.transpose(-2, -1);
                transposed.scale()
            };
            scaled.batched_matmul(&flipped)
        };
        // In place where no dispatch mode looks on. The peak is the same: the next operator holds two of them as well.
        if let Some(bias) = bias.or(causal.as_ref()) {
            weights = weights.add(bias);
        }
        weights = weights.safe_softmax();
        weights = weights.dropout(self.dropout);
        // The weights are returned too, in the input's type: made before the result, and dropped by the caller.
        let _returned = weights.to(dtype);
        let result = weights.batched_matmul(&all_values);
        result.to(dtype)
    }
}

/// The widest heads that flash attention takes (`check_head_dim_size_flash`).
const FLASH_WIDEST: u64 = 256;

/// Why flash attention does not take these queries, if it does not (`can_use_flash_attention`).
fn refused_by_flash(query: &Tensor, value: &Tensor, masked: bool) -> Option<String> {
    if masked {
        Some(format!(
            "flash attention takes no mask, and a sliding window or a bias for distances needs one; use {}",
            Opt("attention").to("efficient")
        ))
    } else if query.dtype() == Dtype::F32 {
        Some(format!(
            "flash attention takes bf16 and fp16, but the step is in {}; use {} or {}",
            query.dtype().spelled(),
            Opt("dtype").to("bf16"),
            Opt("attention").to("auto")
        ))
    } else if query.size(3) > FLASH_WIDEST {
        Some(format!(
            "flash attention takes heads up to {FLASH_WIDEST} wide, but these are {} wide; use {}",
            query.size(3),
            Opt("attention").to("auto")
        ))
    } else if query.size(3) != value.size(3) {
        Some(format!(
            "flash attention takes heads of one width, but these are {} wide, and those of values {}; use {}",
            query.size(3),
            value.size(3),
            Opt("attention").to("auto")
        ))
    } else {
        None
    }
}

/// The elements in whose steps the memory-efficient kernel reads heads (`minimum_gemm_alignment`): 16 bytes where tensor cores
/// compute, which before Ampere take fp16 alone; none where the kernel does not take the type.
fn efficient_step(dtype: Dtype, card: CardKind) -> Option<u64> {
    const TENSOR_CORES: u64 = 16;
    match (card, dtype) {
        (CardKind::BeforeAmpere, Dtype::Bf16) => None,
        (CardKind::BeforeAmpere, Dtype::F32) => Some(1),
        _ => Some(TENSOR_CORES / dtype.size().max(1)),
    }
}

/// Why the memory-efficient kernel does not take these queries, if it does not (`check_head_dim_size_mem_efficient`).
fn refused_by_efficient(query: &Tensor, value: &Tensor, offset: u64, card: CardKind) -> Option<String> {
    let Some(step) = efficient_step(query.dtype(), card) else {
        return Some(format!("the memory-efficient kernel takes {} from Ampere on", query.dtype().spelled()));
    };
    let uneven = [query.size(3), value.size(3)].into_iter().find(|width| !width.is_multiple_of(step));
    if uneven.is_none() && !offset.is_multiple_of(step) && card != CardKind::BeforeAmpere {
        let rule = format!(
            "the memory-efficient kernel takes values that begin at a multiple of {step} elements in {}, but these begin at {offset}; \
             use {}",
            query.dtype().spelled(),
            Opt("attention").to("auto")
        );
        return Some(rule);
    }
    uneven.map(|width| {
        format!(
            "the memory-efficient kernel takes heads whose width is a multiple of {step} in {}, but these are {width} \
             wide; use {}",
            query.dtype().spelled(),
            Opt("attention").to("auto")
        )
    })
}

/// `[batch, heads, positions, width]` that lies as `[batch, positions, heads, width]`.
fn heads_inside(like: &Tensor) -> Layout {
    heads_inside_of(like, like.size(3))
}

/// The same with heads of another width.
fn heads_inside_of(like: &Tensor, width: u64) -> Layout {
    let [batch, heads, positions, _] = *like.shape() else { return like.layout().clone() };
    let mut layout = Layout::contiguous(like.dtype(), &[batch, positions, heads, width]);
    layout.shape.swap(1, 2);
    layout.strides.swap(1, 2);
    layout
}

/// The order of dimensions of `tensor`, without gaps.
fn dense_like(tensor: &Tensor) -> Layout {
    elementwise_layout(tensor.dtype(), &[tensor.layout()]).unwrap_or_else(|| tensor.layout().clone())
}

/// Flash attention wants widths that are multiples of this (`pad_last_dim<8>` in `attention.cpp`).
const FLASH_WIDTH_ALIGNMENT: u64 = 8;

/// Flash attention of heads of any width: filled up before it, and cut off after.
fn padded_flash(query: &Tensor, key: &Tensor, value: &Tensor, dropout: f64) -> Tensor {
    let width = query.size(3);
    let missing = width.next_multiple_of(FLASH_WIDTH_ALIGNMENT) - width;
    if missing == 0 {
        return flash(query, key, value, dropout);
    }
    let [query, key, value] = [query, key, value].map(|tensor| tensor.padded_width(missing));
    flash(&query, &key, &value, dropout).slice(-1, 0, width)
}

fn flash(query: &Tensor, key: &Tensor, value: &Tensor, dropout: f64) -> Tensor {
    let outputs = vec![
        Out::New(dense_like(query)),
        Out::New(Layout::contiguous(Dtype::F32, &query.shape()[..3])),
        // The state of the random generator, an unused tensor, and an empty debug mask.
        Out::New(Layout::contiguous(Dtype::U64, &[2])),
        Out::New(Layout::contiguous(Dtype::U64, &[])),
        Out::New(Layout::contiguous(query.dtype(), &[0])),
    ];
    let gradients = [dense_like(query), dense_like(key), dense_like(value)];
    fused(
        "_scaled_dot_product_flash_attention.default",
        "_scaled_dot_product_flash_attention_backward.default",
        [query, key, value],
        None,
        outputs,
        gradients,
        dropout > 0.0,
    )
}

/// The kernel writes its log-sum-exp in rows of this many positions.
const EFFICIENT_ROW: u64 = 32;

fn efficient(query: &Tensor, key: &Tensor, value: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let rows = query.size(2).div_ceil(EFFICIENT_ROW).saturating_mul(EFFICIENT_ROW);
    // Log-sum-exp is computed only where backward will need it.
    let rows = if query.requires_grad() { rows } else { 0 };
    let outputs = vec![
        Out::New(heads_inside_of(query, value.size(3))),
        Out::New(Layout::contiguous(Dtype::F32, &[query.size(0), query.size(1), rows])),
        // Seed and offset of the random generator.
        Out::New(Layout::contiguous(Dtype::I64, &[])),
        Out::New(Layout::contiguous(Dtype::I64, &[])),
    ];
    let gradients = [heads_inside(query), heads_inside(key), heads_inside(value)];
    fused(
        "_scaled_dot_product_efficient_attention.default",
        "_scaled_dot_product_efficient_attention_backward.default",
        [query, key, value],
        bias,
        outputs,
        gradients,
        // Torch's checkpointing knows this kernel by its tag alone, which says random whether or not it drops weights.
        true,
    )
}

fn fused(
    name: &'static str,
    backward_name: &'static str,
    inputs: [&Tensor; 3],
    bias: Option<&Tensor>,
    outputs: Vec<Out<'_>>,
    gradient_layouts: [Layout; 3],
    random: bool,
) -> Tensor {
    let of_bias = bias.filter(|bias| bias.requires_grad()).map(|bias| bias.layout().clone());
    let backward = Box::new(move |gradients: &Gradients<'_>| {
        let mut arguments = vec![gradients.output()];
        arguments.extend(gradients.saved);
        let of_bias = of_bias.map(|bias| Out::aligned(bias.dtype, &bias.shape, BIAS_GRADIENT_ALIGNMENT));
        let outputs = gradient_layouts.into_iter().map(Out::New).chain(of_bias).collect();
        gradients.tape.launch(Kernel::new(backward_name, &arguments, outputs)).into_iter().map(Some).collect()
    });
    let arguments: Vec<&Tensor> = inputs.into_iter().chain(bias).collect();
    let mut saves: Vec<Slot<'_>> = arguments.iter().map(|argument| Slot::Input(argument)).collect();
    saves.extend([Slot::Output(0), Slot::Auxiliary(1), Slot::Auxiliary(2), Slot::Auxiliary(3)]);
    let mut kernel = Kernel::new(name, &arguments, outputs);
    kernel.flags.random = random;
    let derivative = Derivative { inputs: &arguments, saves, backward };
    inputs[0].tape().launch_differentiable(kernel, derivative).swap_remove(0)
}

impl Tensor {
    /// Zeros behind the last dimension; its gradient is cut by as much.
    fn padded_width(&self, count: u64) -> Tensor {
        let own = Layout::contiguous(self.dtype(), self.shape());
        let mut wide = self.shape().to_vec();
        if let Some(width) = wide.last_mut() {
            *width = width.saturating_add(count);
        }
        let pad = "constant_pad_nd.default";
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let cut = Kernel::new(pad, &[gradients.output()], vec![Out::New(own)]);
            vec![Some(gradients.tape.launch_one(cut))]
        });
        let kernel = Kernel::new(pad, &[self], vec![Out::New(Layout::contiguous(self.dtype(), &wide))]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    fn scale(&self) -> Tensor {
        let backward = Box::new(|gradients: &Gradients<'_>| vec![Some(gradients.output().map("mul.Scalar"))]);
        let kernel = Kernel::new("mul.Scalar", &[self], vec![Out::New(dense_like(self))]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// Repeats each head `group` times, as `repeat_interleave` along dimension 1 does.
    fn repeat_heads(&self, group: u64) -> Tensor {
        let [batch, heads, positions, width] = *self.shape() else { return self.clone() };
        let copy = {
            let wide = self.unsqueeze(2);
            let wide = wide.expand(&[batch, heads, group, positions, width]);
            wide.clone_contiguous()
        };
        copy.view(&[batch, heads.saturating_mul(group), positions, width])
    }

    /// `torch.matmul` of two tensors of rank four, which autocast sees as one operator.
    pub(crate) fn matmul(&self, other: &Tensor) -> Tensor {
        let right = other.lowered();
        let left = self.lowered();
        left.batched_matmul(&right)
    }

    /// The product over the last two dimensions of two tensors of rank four, as `torch.matmul` runs it.
    fn batched_matmul(&self, other: &Tensor) -> Tensor {
        let [batch, heads, rows, inner] = *self.shape() else { return self.clone() };
        let columns = other.size(3);
        let stack = batch.saturating_mul(heads);
        let left = {
            let left = self.expand(self.shape());
            left.reshape(&[stack, rows, inner])
        };
        let right = {
            let right = other.expand(other.shape());
            right.reshape(&[stack, inner, columns])
        };
        left.bmm(&right).unsafe_view(&[batch, heads, rows, columns])
    }
}
