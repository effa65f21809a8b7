//! Built-in models have as many parameters as their publishers say.

use std::collections::BTreeMap;

use rematic_fake::models::{BUILTIN, Model, Options};

/// As transformers counts them in models of the published configs.
const PARAMETERS: &[(&str, u64)] = &[
    ("gemma-2-2b", 2_614_341_888),
    ("gemma-2-9b", 9_241_705_984),
    ("gemma-2-27b", 27_227_128_320),
    ("gemma-3-1b", 999_885_952),
    ("phi-4", 14_659_507_200),
    ("olmo-2-7b", 7_298_617_344),
    ("command-r", 34_980_831_232),
    ("mixtral-8x7b", 46_702_792_704),
    ("qwen3-30b-a3b", 30_532_122_624),
];

#[test]
fn parameters_are_as_published() {
    for (name, expected) in PARAMETERS {
        let options = Options { seq: Some(8), ..Options::default() };
        let trace = Model::builtin(name).unwrap().with(&options).unwrap().trace().unwrap();
        // Tied ones count once.
        let parameters: BTreeMap<_, _> = (trace.modules().iter())
            .flat_map(|module| &module.parameters)
            .map(|parameter| (parameter.storage, trace.layouts()[parameter.layout].elements()))
            .collect();
        assert_eq!(parameters.values().sum::<u64>(), *expected, "{name}");
    }
}

#[test]
fn names_are_their_own() {
    let names: std::collections::BTreeSet<&str> = BUILTIN.iter().map(|model| model.name).collect();
    assert_eq!(names.len(), BUILTIN.len());
    assert!(PARAMETERS.iter().all(|(name, _)| names.contains(name)));
}
