//! Built-in models have as many parameters as their publishers say.

use std::collections::BTreeMap;

use rematic_fake::models::{BUILTIN, Model, Options};

/// As transformers counts the parameters of its own models of these configs (`sum(p.numel() for p in model.parameters())`, on the
/// meta device).
const PARAMETERS: &[(&str, u64)] = &[
    ("bert-base", 109_514_298),
    ("bert-large", 335_174_458),
    ("clip-vit-base-patch32", 151_277_313),
    ("clip-vit-large-patch14", 427_616_513),
    ("command-r", 34_980_831_232),
    ("deepseek-v2-lite", 15_706_484_224),
    ("deepseek-v3", 671_026_404_352),
    ("gemma-2-27b", 27_227_128_320),
    ("gemma-2-2b", 2_614_341_888),
    ("gemma-2-9b", 9_241_705_984),
    ("gemma-3-1b", 999_885_952),
    ("gpt-oss-120b", 116_829_156_672),
    ("gpt-oss-20b", 20_914_757_184),
    ("gpt2-large", 774_030_080),
    ("gpt2-medium", 354_823_168),
    ("gpt2-xl", 1_557_611_200),
    ("gpt2", 124_439_808),
    ("llama-3-405b", 405_853_388_800),
    ("llama-3-70b", 70_553_706_496),
    ("llama-3-8b", 8_030_261_248),
    ("mistral-7b", 7_248_023_552),
    ("mixtral-8x7b", 46_702_792_704),
    ("olmo-2-7b", 7_298_617_344),
    ("phi-4", 14_659_507_200),
    ("qwen2.5-7b", 7_615_616_512),
    ("qwen3-30b-a3b", 30_532_122_624),
    ("qwen3-8b", 8_190_735_360),
    ("roberta-base", 124_697_433),
    ("t5-3b", 2_851_598_336),
    ("t5-base", 222_903_552),
    ("t5-large", 737_668_096),
    ("vit-base", 86_567_656),
    ("vit-large", 304_326_632),
];

#[test]
fn parameters_are_as_published() {
    for (name, expected) in PARAMETERS {
        let model = Model::builtin(name).unwrap();
        // Some read no text.
        let short = Options { seq: Some(8), ..Options::default() };
        let trace = model.clone().with(&short).or_else(|_| model.with(&Options::default())).unwrap().trace().unwrap();
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
    let counted: std::collections::BTreeSet<&str> = PARAMETERS.iter().map(|(name, _)| *name).collect();
    let all: Vec<&str> = names.iter().copied().filter(|name| *name != "seed-transformer").collect();
    assert_eq!(counted.into_iter().collect::<Vec<_>>(), all);
}
