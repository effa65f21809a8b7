use std::collections::BTreeMap;

use rematic_trace::{Bytes, Category, Millis, any_layer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a step takes, in figures that are kept and compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// The highest bytes of tensors.
    pub peak_bytes: Bytes,
    /// The highest bytes that PyTorch's allocator takes from the device; `None` on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<Bytes>,
    /// Time of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_ms: Option<Millis>,
    /// What the peak is made of, by category.
    #[serde(default)]
    pub categories: BTreeMap<String, Bytes>,
    /// Parameters of modules, and activations that their forwards leave behind; equal layers are added up.
    #[serde(default)]
    pub modules: BTreeMap<String, ModuleFigures>,
}

/// What a module, or all modules of one name in equal layers, take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleFigures {
    /// How many there are.
    pub count: u64,
    /// Their parameters.
    pub parameter_bytes: Bytes,
    /// What their forwards leave behind.
    pub activation_bytes: Bytes,
}

/// Something that is no answer of `rematic stats --json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoStatistics;

impl Figures {
    /// From what `rematic stats --json` says.
    ///
    /// # Errors
    /// If it says something else.
    pub fn of_statistics(text: &str) -> Result<Self, NoStatistics> {
        let document: Value = serde_json::from_str(text).map_err(|_| NoStatistics)?;
        let bytes = |value: &Value| value.as_u64().map(Bytes);
        let peak = &document["peak"];
        let peak_bytes = bytes(&peak["total"]).ok_or(NoStatistics)?;
        let mut categories = BTreeMap::new();
        for category in Category::ALL {
            let name = category.to_string();
            let taken = bytes(&peak[name.as_str()]).ok_or(NoStatistics)?;
            categories.insert(name, taken);
        }
        let mut modules: BTreeMap<String, ModuleFigures> = BTreeMap::new();
        for module in document["modules"].as_array().ok_or(NoStatistics)? {
            let of = |field: &str| bytes(&module[field]).ok_or(NoStatistics);
            let name = any_layer(module["fqn"].as_str().ok_or(NoStatistics)?);
            let sum = modules.entry(name).or_default();
            sum.count += 1;
            sum.parameter_bytes.0 = sum.parameter_bytes.0.saturating_add(of("param_per_module")?.0);
            sum.activation_bytes.0 = sum.activation_bytes.0.saturating_add(of("act_fw_per_module")?.0);
        }
        Ok(Figures {
            peak_bytes,
            reserved_bytes: bytes(&document["memory"]["reserved_bytes"]),
            step_ms: document["step_ms"].as_f64().map(Millis),
            categories,
            modules,
        })
    }
}
