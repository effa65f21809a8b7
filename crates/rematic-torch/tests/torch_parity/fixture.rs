//! What torch said, as `make_golden.py` wrote it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rematic_fake::models::{Model, Options};
use rematic_trace::{Category, Dtype};
use serde::Deserialize;

/// The order of the categories in a fixture: [`Category::ALL`], under torch's names.
pub(crate) const CATEGORIES: [Category; 7] = Category::ALL;
/// The order of the states in a fixture.
pub(crate) const STATES: [&str; 6] =
    ["Pre-Forward", "Peak-Forward", "Post-Forward", "Pre-Backward", "Peak-Backward", "Post-Backward"];
/// The order of the phases in a fixture.
const PHASES: [&str; 3] = ["forward", "backward", "optimizer"];

/// Bytes per category.
pub(crate) type ByCategory = [u64; 7];

#[derive(Deserialize)]
pub(crate) struct Fixture {
    setup: Setup,
    pub(crate) peak: ByCategory,
    timeline: Columns,
    pub(crate) modules: BTreeMap<String, ModuleSaid>,
    pub(crate) order: Option<BTreeMap<String, Vec<String>>>,
    pub(crate) runtime_ms: Option<Runtime>,
    pub(crate) mod_stats: Option<Vec<StatsSaid>>,
    pub(crate) baseline: Option<BaselineSaid>,
}

#[derive(Deserialize)]
pub(crate) struct Setup {
    model: String,
    config: Option<serde_json::Value>,
    batch: u64,
    seq: u64,
    dtype: String,
    optimizer: String,
    attention: String,
    layers: Option<u64>,
    dim: Option<u64>,
    heads: Option<u64>,
    vocab: Option<u64>,
    dropout: Option<f64>,
}

impl Setup {
    /// The model that it is about.
    pub(crate) fn model(&self) -> Model {
        let setup = self;
        let model = match &setup.config {
            Some(config) => Model::from_config("config.json", &config.to_string()),
            None => Model::builtin(&setup.model),
        };
        let options = Options {
            batch: Some(setup.batch),
            seq: Some(setup.seq),
            dtype: Some(self.dtype()),
            optimizer: Some(setup.optimizer.parse().unwrap()),
            attention: Some(setup.attention.parse().unwrap()),
            layers: setup.layers,
            dropout: setup.dropout,
            dim: setup.dim,
            heads: setup.heads,
            vocab: setup.vocab,
            ..Options::default()
        };
        model.and_then(|model| model.with(&options)).unwrap_or_else(|error| panic!("{error}"))
    }

    fn dtype(&self) -> Dtype {
        match self.dtype.as_str() {
            "fp32" => Dtype::F32,
            "bf16" => Dtype::Bf16,
            "fp16" => Dtype::F16,
            other => panic!("unknown type {other}"),
        }
    }
}

#[derive(Deserialize)]
struct Columns {
    names: Vec<String>,
    name: Vec<usize>,
    phase: Vec<usize>,
    total: Vec<i64>,
}

#[derive(Deserialize)]
pub(crate) struct ModuleSaid {
    pub(crate) parameter: u64,
    pub(crate) buffer: u64,
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) snapshots: [Option<ByCategory>; 6],
}

#[derive(Deserialize)]
pub(crate) struct Runtime {
    pub(crate) total: f64,
    pub(crate) modules: BTreeMap<String, Passes>,
}

#[derive(Deserialize)]
pub(crate) struct Passes {
    #[serde(default)]
    pub(crate) fw: f64,
    #[serde(default)]
    pub(crate) bw: f64,
}

/// Torch's `ModStats`; what it adds for checkpointing is another stage's.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatsSaid {
    pub(crate) fqn: String,
    pub(crate) param_per_module: u64,
    pub(crate) grad_per_module: u64,
    pub(crate) grad_total: u64,
    pub(crate) act_fw_per_module: u64,
    pub(crate) act_bw_per_module: u64,
    pub(crate) act_grad_per_module: i64,
    pub(crate) act_total: u64,
    pub(crate) input_per_module: u64,
    pub(crate) output_per_module: u64,
    pub(crate) fw_runtime_per_module: f64,
    pub(crate) bw_runtime_per_module: f64,
    pub(crate) is_leaf: bool,
    /// The place in the order of registration. Torch means the order of forward, but sorts a list that it does not use.
    #[serde(rename = "index")]
    _index: usize,
    pub(crate) pos_fw_post_order: usize,
}

#[derive(Deserialize)]
pub(crate) struct BaselineSaid {
    pub(crate) peak_bytes: u64,
    pub(crate) compute_ms: f64,
}

/// One operator of the timeline.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OpSaid {
    pub(crate) name: String,
    pub(crate) phase: String,
    pub(crate) total: u64,
}

/// Where the fixtures of the repository are.
pub(crate) fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

impl Fixture {
    /// The fixtures in a directory.
    pub(crate) fn names_in(directory: &Path) -> BTreeSet<String> {
        fs::read_dir(directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .map(|file| file.strip_suffix(".json.zst").unwrap_or_else(|| panic!("what is {file}?")).to_owned())
            .collect()
    }

    pub(crate) fn read_from(directory: &Path, name: &str) -> Fixture {
        let path = directory.join(format!("{name}.json.zst"));
        let packed = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let text = zstd::decode_all(packed.as_slice()).unwrap();
        let fixture: Fixture = serde_json::from_slice(&text).unwrap();
        assert!(!fixture.timeline.name.is_empty(), "{name} has no operators");
        assert!(!fixture.modules.is_empty(), "{name} has no modules");
        fixture
    }

    /// The model that it is about.
    pub(crate) fn model(&self) -> Model {
        self.setup.model()
    }

    /// Whether RuntimeEstimator takes the step.
    pub(crate) fn is_timed(&self) -> bool {
        self.default_dtype() == Dtype::F32 || self.setup.attention == "math"
    }

    /// Whether every module has a backward, as `aggregate_stats` takes for granted.
    pub(crate) fn all_have_backward(&self) -> bool {
        let beginning = STATES.iter().position(|state| *state == "Pre-Backward").unwrap();
        self.modules.values().all(|module| module.snapshots[beginning].is_some())
    }

    /// The type of the parameters, which the oracle makes torch's default.
    pub(crate) fn default_dtype(&self) -> Dtype {
        self.setup.dtype()
    }

    pub(crate) fn timeline(&self) -> Vec<OpSaid> {
        let columns = &self.timeline;
        assert_eq!(columns.name.len(), columns.phase.len());
        assert_eq!(columns.name.len(), columns.total.len());
        let mut total: u64 = 0;
        let mut ops = Vec::with_capacity(columns.name.len());
        for ((&name, &phase), &change) in columns.name.iter().zip(&columns.phase).zip(&columns.total) {
            total = total.checked_add_signed(change).unwrap();
            ops.push(OpSaid { name: columns.names[name].clone(), phase: PHASES[phase].to_owned(), total });
        }
        ops
    }
}
