//! Small random models: nested modules, residuals, tensors used twice, outputs that escape, random operators, views, tied
//! weights, casts, parts without gradient; if wanted, operators that change memory in place.

use rematic_fake::{Dtype, Optimizer, Step, Tape, Tensor, nn};
use rematic_trace::StepTrace;

/// Dice that fall the same way for the same seed (splitmix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Dice(seed)
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % sides as u64).unwrap()
    }
}

/// The most modules with children that a model has.
const MOST_UNITS: usize = 6;

enum Move {
    /// An operator, and the dice for its operands.
    Op {
        kind: usize,
        first: usize,
        second: usize,
    },
    Linear(usize, usize),
    Norm(usize),
    Unit(usize, usize),
    /// A local variable goes out of scope.
    Forget(usize),
}

/// A module with children.
struct Unit {
    scope: nn::Scope,
    moves: Vec<Move>,
    linears: Vec<nn::Linear>,
    norm: nn::LayerNorm,
    dropout: nn::Dropout,
    units: Vec<Unit>,
    /// How many tensors it is given, and returns.
    given: usize,
    returned: usize,
    /// Whether it returns a sum that its caller changes in place.
    sums: bool,
}

struct Size {
    rows: u64,
    width: u64,
    /// Whether operators may change memory in place.
    in_place: bool,
}

/// The operators that [`Unit::run`] knows, and those of them that change nothing in place.
const KINDS: usize = 17;
const PLAIN_KINDS: usize = 14;

impl Unit {
    fn new(scope: nn::Scope, size: &Size, dice: &mut Dice, left: &mut usize, depth: usize, tied: &Tensor) -> Unit {
        *left -= 1;
        let norm = nn::LayerNorm::new(&scope, "norm", size.width);
        let dropout = nn::Dropout::new(&scope, "dropout", 0.1);
        let mut unit = Unit {
            moves: Vec::new(),
            linears: Vec::new(),
            norm,
            dropout,
            units: Vec::new(),
            given: 1 + dice.roll(2),
            returned: 1 + usize::from(dice.roll(3) == 0),
            sums: size.in_place && dice.roll(3) == 0,
            scope,
        };
        let moves = 2 + dice.roll(6);
        for at in 0..moves {
            let (first, second) = (dice.roll(1000), dice.roll(1000));
            let next = match dice.roll(12) {
                0..=1 => {
                    let name = format!("linear{at}");
                    unit.linears.push(if dice.roll(4) == 0 {
                        nn::Linear::tied(&unit.scope, &name, tied)
                    } else {
                        nn::Linear::new(&unit.scope, &name, size.width, size.width, dice.roll(2) == 0)
                    });
                    Move::Linear(unit.linears.len() - 1, first)
                }
                2 => Move::Norm(first),
                3..=5 if *left > 0 && depth < 3 => {
                    let scope = unit.scope.child(&format!("unit{at}"), "Unit");
                    unit.units.push(Unit::new(scope, size, dice, left, depth + 1, tied));
                    Move::Unit(unit.units.len() - 1, first)
                }
                6 => Move::Forget(first),
                _ => {
                    let kind = dice.roll(if size.in_place { KINDS } else { PLAIN_KINDS });
                    Move::Op { kind, first, second }
                }
            };
            unit.moves.push(next);
        }
        unit
    }

    fn forward(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        let given: Vec<&Tensor> = inputs.iter().collect();
        self.scope.call(&given, || self.body(inputs.to_vec()))
    }

    fn body(&self, mut locals: Vec<Tensor>) -> Vec<Tensor> {
        for step in &self.moves {
            // Mostly the newest, so that models are deep rather than wide.
            let pick = |dice: usize| {
                let newest = locals.len() - 1;
                locals[if dice.is_multiple_of(3) { dice / 3 % locals.len() } else { newest }].clone()
            };
            let made = match step {
                Move::Op { kind, first, second } => self.run(*kind, &pick(*first), &pick(*second)),
                Move::Linear(linear, first) => self.linears[*linear].forward(&pick(*first)),
                Move::Norm(first) => self.norm.forward(&pick(*first)),
                Move::Unit(unit, first) => {
                    let unit = &self.units[*unit];
                    let inputs: Vec<Tensor> = (0..unit.given).map(|at| pick(first + 3 * at)).collect();
                    let mut made = unit.forward(&inputs);
                    drop(inputs);
                    if unit.sums
                        && let Some(sum) = made.pop()
                    {
                        made.push(sum.relu_in_place());
                    }
                    locals.extend(made);
                    continue;
                }
                Move::Forget(first) => {
                    if locals.len() > 1 {
                        locals.remove(first % locals.len());
                    }
                    continue;
                }
            };
            locals.push(made);
        }
        if self.sums {
            let sum = locals[locals.len() - 1].add(&locals[0]);
            locals.push(sum);
        }
        let last = locals.len().saturating_sub(self.returned);
        locals.split_off(last)
    }

    fn run(&self, kind: usize, first: &Tensor, second: &Tensor) -> Tensor {
        match kind {
            0..=1 => first.add(second),
            2 => first.mul(second),
            3 => first.relu(),
            4 => first.gelu(),
            5 => first.tanh(),
            6 => first.silu(),
            7 => self.dropout.forward(first),
            8 => first.mul_scalar(),
            9 => first.t().clone_contiguous().t(),
            10 => first.softmax_last(),
            11 => first.to(Dtype::Bf16).to(Dtype::F32),
            12 => self.scope.tape().no_grad(|| first.tanh()).mul(second),
            14 => first.add(second).relu_in_place(),
            15 => {
                // Read as it was before it is changed.
                let sum = first.add(second);
                let before = sum.neg();
                before.add(&sum.relu_in_place())
            }
            16 => first.neg().relu_in_place().mul(second),
            _ => {
                let rows = first.size(0);
                let width = first.size(1);
                first.view(&[width, rows]).view(&[rows, width]).neg()
            }
        }
    }
}

/// The step of a small random model, or `None` if nothing in it can be trained.
#[allow(dead_code, reason = "for those who enumerate")]
pub(crate) fn step(seed: u64) -> Option<StepTrace> {
    step_with(seed, MOST_UNITS)
}

/// The step of a random model with at most so many modules with children, or `None` if nothing in it can be trained.
#[allow(dead_code, reason = "for those who do not change in place")]
pub(crate) fn step_with(seed: u64, most_units: usize) -> Option<StepTrace> {
    random_step(seed, most_units, false)
}

/// The same with operators that change memory in place.
#[allow(dead_code, reason = "for those who do")]
pub(crate) fn step_in_place(seed: u64, most_units: usize) -> Option<StepTrace> {
    random_step(seed, most_units, true)
}

fn random_step(seed: u64, most_units: usize, in_place: bool) -> Option<StepTrace> {
    let mut dice = Dice::new(seed);
    let tape = Tape::new("random");
    // Large ones are bound by bandwidth, small ones by launches.
    let scale = [1, 40, 3000][dice.roll(3)];
    let size = Size { rows: (3 + dice.roll(200) as u64) * scale, width: 3 + dice.roll(40) as u64, in_place };
    let root = nn::Scope::root(&tape, "Model", Dtype::F32);
    let tied = root.parameter("tied", &[size.width, size.width]);
    let mut left = 1 + dice.roll(most_units);
    let optimizer = Optimizer::NAMES[dice.roll(4)].1;
    let model = Unit::new(root, &size, &mut dice, &mut left, 0, &tied);
    let batch = tape.input(Dtype::F32, &[size.rows, size.width]);
    let trace = Step::new(&tape, optimizer)
        .run(
            || {
                let first = tape_linear(&batch, &tied);
                model.forward(&vec![first; model.given])
            },
            |outputs| outputs.iter().skip(1).fold(outputs[0].sum(), |loss, output| loss.add(&output.sum())),
        )
        .ok()?;
    Some(trace)
}

/// The batch itself has no gradient: what the model is given does.
fn tape_linear(batch: &Tensor, weight: &Tensor) -> Tensor {
    batch.linear(weight, None)
}

/// The step of small random modules that are called one after the other, each with what those before it returned, or `None` if
/// nothing in it can be trained.
#[allow(dead_code, reason = "for those who cut chains of calls")]
pub(crate) fn chain(seed: u64) -> Option<StepTrace> {
    let mut dice = Dice::new(seed);
    let tape = Tape::new("chain");
    let scale = [1, 40, 3000][dice.roll(3)];
    let size = Size {
        rows: (3 + dice.roll(200) as u64) * scale,
        width: 3 + dice.roll(40) as u64,
        in_place: dice.roll(3) == 0,
    };
    let root = nn::Scope::root(&tape, "Model", Dtype::F32);
    let tied = root.parameter("tied", &[size.width, size.width]);
    let modules: Vec<Unit> = (0..3 + dice.roll(2))
        .map(|at| Unit::new(root.child(&at.to_string(), "Unit"), &size, &mut dice, &mut 1, 3, &tied))
        .collect();
    let batch = tape.input(Dtype::F32, &[size.rows, size.width]);
    let body = |mut locals: Vec<Tensor>| {
        for unit in &modules {
            let inputs: Vec<Tensor> =
                (0..unit.given).map(|at| locals[locals.len() - 1 - at % locals.len()].clone()).collect();
            locals = unit.forward(&inputs);
        }
        locals
    };
    let trace = Step::new(&tape, Optimizer::NAMES[dice.roll(4)].1)
        .run(
            || {
                let first = tape_linear(&batch, &tied);
                root.call(&[&first], || body(vec![first.clone()]))
            },
            |outputs| outputs.iter().skip(1).fold(outputs[0].sum(), |loss, output| loss.add(&output.sum())),
        )
        .ok()?;
    Some(trace)
}
