//! What of a model is trained, and which of its layers get adapters.

use rematic_trace::Opt;
use wildmatch::WildMatch;

use crate::error::FakeError;
use crate::nn::Lora;
use crate::tape::Tape;

/// Which parameters are trained, said before the model is made.
#[derive(Default)]
pub(crate) struct Training {
    pub(crate) lora: Option<Lora>,
    /// Whether the loss is computed over parts of the positions.
    pub(crate) chunks_loss: bool,
    /// Patterns for the names of parameters that need no gradient.
    freeze: Vec<String>,
    /// Linear layers that there are, by the last part of their names.
    layers: Vec<String>,
    /// Which targets and patterns have been met.
    met: Vec<String>,
}

/// The output layer, which `all-linear` leaves out.
const OUTPUT_LAYER: &str = "lm_head";

impl Training {
    /// The rank of the adapter of a linear layer with this full name, if it gets one.
    pub(crate) fn adapter_rank(&mut self, path: &str, in_adapter: bool) -> Option<u64> {
        let lora = self.lora.as_ref().filter(|_| !in_adapter)?;
        let name = path.rsplit('.').next().unwrap_or(path);
        if !self.layers.iter().any(|known| known == name) {
            self.layers.push(name.to_owned());
        }
        let is_target = |target: &&String| match target.as_str() {
            Lora::ALL_LINEAR => name != OUTPUT_LAYER,
            target => path.strip_suffix(target).is_some_and(|before| before.is_empty() || before.ends_with('.')),
        };
        let target = lora.targets.iter().find(is_target)?;
        if !self.met.contains(target) {
            self.met.push(target.clone());
        }
        Some(lora.rank)
    }

    /// Whether a parameter with this full name is trained.
    pub(crate) fn trains(&mut self, path: &str, in_adapter: bool) -> bool {
        // As `named_parameters` has it, without the class of the root.
        let name = path.split_once('.').map_or(path, |(_, inner)| inner);
        let mut is_frozen = self.lora.is_some() && !in_adapter;
        for pattern in &self.freeze {
            if WildMatch::new(pattern).matches(name) {
                is_frozen = true;
                if !self.met.contains(pattern) {
                    self.met.push(pattern.clone());
                }
            }
        }
        !is_frozen
    }
}

impl Tape {
    /// Only these parameters are trained of the model that is made next.
    pub(crate) fn train(&self, lora: Option<Lora>, freeze: Vec<String>, chunks_loss: bool) {
        self.with(|state| state.training = Training { lora, freeze, chunks_loss, ..Training::default() });
    }

    pub(crate) fn training<R>(&self, look: impl FnOnce(&Training) -> R) -> R {
        look(&self.state().training)
    }

    /// Once the model is made: whether all that was named is there.
    ///
    /// # Errors
    /// If a target or a pattern stands for nothing.
    pub(crate) fn check_training(&self) -> Result<(), FakeError> {
        let state = self.state();
        let Training { lora, freeze, layers, met, .. } = &state.training;
        let is_missing = |name: &&String| !met.contains(name);
        let targets = lora.iter().flat_map(|lora| &lora.targets);
        if let Some(target) = targets.clone().find(is_missing) {
            let rule = format!("no linear layer is called so; this model has {}", layers.join(", "));
            return Err(option("lora-targets", target, rule));
        }
        if let Some(pattern) = freeze.iter().find(is_missing) {
            let modules = state.trace.modules();
            let named = modules.ids().find_map(|module| Some((module, state.trace.module(module).parameters.first()?)));
            let example = named.map_or_else(String::new, |(module, parameter)| {
                let path = state.trace.path(module);
                let inner = path.split_once('.').map_or("", |(_, inner)| inner);
                format!("; the first is {inner}.{}", parameter.name)
            });
            return Err(option("freeze", pattern, format!("no parameter is called so{example}")));
        }
        if state.parameters.is_empty() && !freeze.is_empty() {
            let rule = format!("nothing is left to train; leave some parameters out of {}", Opt("freeze"));
            return Err(option("freeze", &freeze.join(" "), rule));
        }
        Ok(())
    }
}

fn option(name: &'static str, value: &str, rule: String) -> FakeError {
    FakeError::Option { name: Opt(name), value: format!("`{value}`"), rule }
}
