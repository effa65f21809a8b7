//! Rotary position embeddings.

use rematic_trace::Dtype;

use super::{DecoderConfig, Family};
use crate::nn::Scope;
use crate::tensor::Tensor;

/// How heads are turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotation {
    /// The two halves of a head against each other.
    Halves,
    /// As many of a head's numbers as there are angles; the rest stays.
    Part,
    /// Neighbours against each other, in fp32.
    Neighbours,
    /// The two halves, by angles in fp32.
    Wide,
    /// The two halves as tensors of their own, with one angle for both.
    Chunks,
    /// As complex numbers.
    Complex,
}

/// The module that makes cosines and sines of positions.
pub(in crate::models) struct RotaryEmbedding {
    scope: Scope,
    /// The frequencies of the layers that see all, or of all layers; and of those with a window, if they have their own.
    full: Tensor,
    sliding: Option<Tensor>,
    rotation: Rotation,
    positional: bool,
}

impl RotaryEmbedding {
    pub(super) fn new(parent: &Scope, config: &DecoderConfig) -> Self {
        let family = config.family;
        let class = format!("{}RotaryEmbedding", family.prefix());
        let (first, second) = match (family, config.window_layers()) {
            (Family::Gemma3, (true, true)) => ("full_attention_", Some("sliding_attention_")),
            (Family::Gemma3, (false, true)) => ("sliding_attention_", None),
            (Family::Gemma3, _) => ("full_attention_", None),
            _ => ("", None),
        };
        let mut made = Self::of_width(parent, &class, config.rotary_dim, first);
        made.sliding = second.map(|kind| frequencies(&made.scope, config.rotary_dim, kind));
        RotaryEmbedding { rotation: family.rotation(), positional: family.positions_are_positional(), ..made }
    }

    /// One for so many numbers of a head, with buffers of this kind.
    pub(in crate::models) fn of_width(parent: &Scope, class: &str, width: u64, kind: &str) -> Self {
        let scope = parent.child("rotary_emb", class);
        let full = frequencies(&scope, width, kind);
        RotaryEmbedding { scope, full, sliding: None, rotation: Rotation::Halves, positional: false }
    }

    /// Whether layers with a window have angles of their own.
    pub(super) fn tells_layers_apart(&self) -> bool {
        self.sliding.is_some()
    }

    /// Cosines and sines of every position.
    pub(in crate::models) fn forward(&self, hidden: &Tensor, positions: &Tensor, windowed: bool) -> (Tensor, Tensor) {
        let frequencies = self.sliding.as_ref().filter(|_| windowed).unwrap_or(&self.full);
        let given = [hidden, positions];
        let (positional, keywords) = given.split_at(if self.positional { 2 } else { 1 });
        let tape = hidden.tape();
        self.scope.call_with(positional, keywords, || {
            tape.no_grad(|| {
                let angles = {
                    let numbers = {
                        let column = positions.unsqueeze(-1);
                        column.to(Dtype::F32)
                    };
                    numbers.mul(frequencies)
                };
                if self.rotation == Rotation::Complex {
                    let mut numbers = angles.polar();
                    numbers = numbers.mul_scalar();
                    return (numbers.clone(), numbers);
                }
                let doubled = match self.rotation {
                    Rotation::Neighbours => angles.repeat_each(2),
                    Rotation::Chunks | Rotation::Complex => angles.clone(),
                    Rotation::Halves | Rotation::Part | Rotation::Wide => Tensor::cat(tape, &[&angles, &angles], -1),
                };
                let cosines = {
                    let raw = doubled.cos();
                    raw.mul_scalar()
                };
                let sines = {
                    let raw = doubled.sin();
                    raw.mul_scalar()
                };
                let dtype = if self.rotation == Rotation::Wide { Dtype::F32 } else { hidden.dtype() };
                (cosines.to(dtype), sines.to(dtype))
            })
        })
    }
}

/// The buffers of a module: the frequencies, and what they were before anything changed them.
fn frequencies(scope: &Scope, width: u64, kind: &str) -> Tensor {
    let shape = [width.div_ceil(2)];
    let inv_freq = scope.buffer(&format!("{kind}inv_freq"), Dtype::F32, &shape);
    let _original = scope.buffer(&format!("{kind}original_inv_freq"), Dtype::F32, &shape);
    inv_freq
}

impl Rotation {
    /// `apply_rotary_pos_emb`.
    pub(super) fn apply(self, queries: &Tensor, keys: &Tensor, angles: &(Tensor, Tensor)) -> (Tensor, Tensor) {
        if self == Rotation::Neighbours {
            let (wide_queries, wide_keys) = (queries.to(Dtype::F32), keys.to(Dtype::F32));
            let turn = Turn::new(angles);
            let turned = (turn.neighbours(&wide_queries), turn.neighbours(&wide_keys));
            return (turned.0.to(queries.dtype()), turned.1.to(queries.dtype()));
        }
        let turn = Turn::new(angles);
        if self == Rotation::Chunks {
            return (turn.chunks(queries), turn.chunks(keys));
        }
        if self != Rotation::Part {
            let turned = (turn.halves(queries), turn.halves(keys));
            return match self {
                Rotation::Wide => (turned.0.to(queries.dtype()), turned.1.to(keys.dtype())),
                _ => turned,
            };
        }
        let width = turn.cosines.size(-1);
        let (query, query_rest) = parts(queries, width);
        let (key, key_rest) = parts(keys, width);
        let join = |turned: &Tensor, rest: &Tensor| Tensor::cat(turned.tape(), &[turned, rest], -1);
        let whole_query = {
            let turned = turn.halves(&query);
            join(&turned, &query_rest)
        };
        let whole_key = {
            let turned = turn.halves(&key);
            join(&turned, &key_rest)
        };
        (whole_query, whole_key)
    }
}

/// What is turned of a head, and what stays; also nothing.
pub(in crate::models) fn parts(heads: &Tensor, width: u64) -> (Tensor, Tensor) {
    let all = heads.size(-1);
    let first = if width == all { heads.alias() } else { heads.slice(-1, 0, width) };
    (first, heads.slice(-1, width, all))
}

/// Cosines and sines, with a dimension for the heads.
pub(in crate::models) struct Turn {
    cosines: Tensor,
    sines: Tensor,
}

impl Turn {
    pub(in crate::models) fn new((cosines, sines): &(Tensor, Tensor)) -> Self {
        Turn { cosines: cosines.unsqueeze(1), sines: sines.unsqueeze(1) }
    }

    /// How many of a head's numbers turn.
    pub(in crate::models) fn width(&self) -> u64 {
        self.cosines.size(-1)
    }

    pub(in crate::models) fn halves(&self, heads: &Tensor) -> Tensor {
        self.by(heads, rotate_half)
    }

    /// Both halves, joined again.
    fn chunks(&self, heads: &Tensor) -> Tensor {
        let [first, second] = heads.split_into::<2>(-1);
        let turned = {
            let (straight, across) = (first.mul(&self.cosines), second.mul(&self.sines));
            straight.sub(&across)
        };
        let other = {
            let (straight, across) = (second.mul(&self.cosines), first.mul(&self.sines));
            straight.add(&across)
        };
        Tensor::cat(heads.tape(), &[&turned, &other], -1)
    }

    fn neighbours(&self, heads: &Tensor) -> Tensor {
        self.by(heads, rotate_neighbours)
    }

    fn by(&self, heads: &Tensor, rotate: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
        let straight = heads.mul(&self.cosines);
        let turned = {
            let rotated = rotate(heads);
            rotated.mul(&self.sines)
        };
        straight.add(&turned)
    }
}

fn rotate_half(heads: &Tensor) -> Tensor {
    let width = heads.size(-1);
    let first = heads.slice(-1, 0, width / 2);
    let second = heads.slice(-1, width / 2, width);
    let negated = second.neg();
    Tensor::cat(heads.tape(), &[&negated, &first], -1)
}

fn rotate_neighbours(heads: &Tensor) -> Tensor {
    let even = heads.every_second(0);
    let odd = heads.every_second(1);
    let pairs = {
        let negated = odd.neg();
        Tensor::stack_last(&[&negated, &even])
    };
    pairs.view(heads.shape())
}
