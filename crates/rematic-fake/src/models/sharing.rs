//! What a model and its step must have so that ranks can share it.

use rematic_trace::Opt;

use super::decoder::DecoderConfig;
use super::out_of_range;
use crate::error::FakeError;
use crate::optimizer::Optimizer;
use crate::parallel::TensorParallel;

/// Whether it is known what an optimizer does with parameters that are dealt out: those of PyTorch that look at each element alone.
pub(super) fn check_optimizer(optimizer: Optimizer) -> Result<(), FakeError> {
    match optimizer {
        Optimizer::AdamW8bit | Optimizer::Lion | Optimizer::Muon | Optimizer::Adafactor => {
            let rule =
                format!("what it does with parts of parameters ({}) is not known; take adamw, adam or sgd", Opt("tp"));
            Err(out_of_range("optimizer", optimizer, &rule))
        }
        _ => Ok(()),
    }
}

/// Whether PyTorch runs the step when `parallelize_module` deals the model out to these ranks.
pub(super) fn check(name: &str, config: &DecoderConfig, group: TensorParallel, seq: u64) -> Result<(), FakeError> {
    let ranks = u64::from(group.ranks);
    let cut = [
        ("attention heads", config.heads),
        ("key and value heads", config.key_heads),
        ("width of the feed-forward network", config.intermediate),
    ];
    for (what, extent) in cut {
        if !extent.is_multiple_of(ranks) {
            return Err(out_of_range("tp", ranks, &format!("it must divide the {what} of {name}, {extent}")));
        }
    }
    if !seq.is_multiple_of(ranks) {
        let rule = format!("it must be a multiple of {}, {ranks}, among whose ranks the sequence is cut", Opt("tp"));
        return Err(out_of_range("seq", seq, &rule));
    }
    // The last chunk of an extent that does not divide may be empty.
    let last = TensorParallel { rank: group.ranks - 1, ..group };
    if last.share(config.vocab) == 0 {
        let rule = format!("the vocabulary of {name}, {}, has no rows for the last rank", config.vocab);
        return Err(out_of_range("tp", ranks, &rule));
    }
    let unsupported = |what: &str, instead: &str| {
        let what = format!("{what} with {}", Opt("tp"));
        Err(FakeError::UnsupportedFeature { file: name.to_owned(), what, instead: instead.to_owned() })
    };
    if config.output_bias || config.mlp_bias {
        let what = if config.output_bias { "attention_bias" } else { "mlp_bias" };
        return unsupported(what, "capture the parallel model in Python");
    }
    if config.window.as_ref().is_some_and(|window| seq >= window.size) {
        return unsupported(
            "a sliding window that the sequence fills",
            "take a shorter sequence, or remove sliding_window",
        );
    }
    Ok(())
}
