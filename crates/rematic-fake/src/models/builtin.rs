/// A model that comes with Rematic.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// The name that commands take.
    pub name: &'static str,
    /// What it is.
    pub description: &'static str,
    /// Its `config.json`; `None` for seed-transformer, which is no Hugging Face model.
    pub config: Option<&'static str>,
}

/// All built-in models. The configs hold what their publishers' hold, as far as memory and time depend on it.
pub const BUILTIN: &[Builtin] = &[
    Builtin {
        name: "seed-transformer",
        description: "the Transformer of PyTorch's own tests: 4 layers, width 768, vocabulary 8192",
        config: None,
    },
    Builtin { name: "gpt2", description: "GPT-2, 124 M parameters", config: Some(include_str!("builtin/gpt2.json")) },
    Builtin {
        name: "gpt2-medium",
        description: "GPT-2 medium, 355 M parameters",
        config: Some(include_str!("builtin/gpt2-medium.json")),
    },
    Builtin {
        name: "gpt2-large",
        description: "GPT-2 large, 774 M parameters",
        config: Some(include_str!("builtin/gpt2-large.json")),
    },
    Builtin {
        name: "gpt2-xl",
        description: "GPT-2 XL, 1.6 B parameters",
        config: Some(include_str!("builtin/gpt2-xl.json")),
    },
    Builtin { name: "llama-3-8b", description: "Llama 3 8B", config: Some(include_str!("builtin/llama-3-8b.json")) },
    Builtin { name: "llama-3-70b", description: "Llama 3 70B", config: Some(include_str!("builtin/llama-3-70b.json")) },
    Builtin {
        name: "llama-3-405b",
        description: "Llama 3.1 405B",
        config: Some(include_str!("builtin/llama-3-405b.json")),
    },
    Builtin {
        name: "mistral-7b",
        description: "Mistral 7B v0.3, without sliding window",
        config: Some(include_str!("builtin/mistral-7b.json")),
    },
    Builtin { name: "qwen2.5-7b", description: "Qwen2.5 7B", config: Some(include_str!("builtin/qwen2.5-7b.json")) },
    Builtin { name: "qwen3-8b", description: "Qwen3 8B", config: Some(include_str!("builtin/qwen3-8b.json")) },
    Builtin { name: "gemma-2-2b", description: "Gemma 2 2B", config: Some(include_str!("builtin/gemma-2-2b.json")) },
    Builtin { name: "gemma-2-9b", description: "Gemma 2 9B", config: Some(include_str!("builtin/gemma-2-9b.json")) },
    Builtin { name: "gemma-2-27b", description: "Gemma 2 27B", config: Some(include_str!("builtin/gemma-2-27b.json")) },
    Builtin {
        name: "gemma-3-1b",
        description: "Gemma 3 1B, text",
        config: Some(include_str!("builtin/gemma-3-1b.json")),
    },
    Builtin {
        name: "phi-4",
        description: "Phi-4, 14.7 B parameters",
        config: Some(include_str!("builtin/phi-4.json")),
    },
    Builtin { name: "olmo-2-7b", description: "OLMo 2 7B", config: Some(include_str!("builtin/olmo-2-7b.json")) },
    Builtin {
        name: "command-r",
        description: "Command R, 35 B parameters",
        config: Some(include_str!("builtin/command-r.json")),
    },
    Builtin {
        name: "mixtral-8x7b",
        description: "Mixtral 8x7B, 46.7 B parameters",
        config: Some(include_str!("builtin/mixtral-8x7b.json")),
    },
    Builtin {
        name: "qwen3-30b-a3b",
        description: "Qwen3 30B-A3B",
        config: Some(include_str!("builtin/qwen3-30b-a3b.json")),
    },
    Builtin {
        name: "bert-base",
        description: "BERT base, 110 M parameters, masked tokens",
        config: Some(include_str!("builtin/bert-base.json")),
    },
    Builtin {
        name: "bert-large",
        description: "BERT large, 335 M parameters, masked tokens",
        config: Some(include_str!("builtin/bert-large.json")),
    },
    Builtin {
        name: "roberta-base",
        description: "RoBERTa base, 125 M parameters, masked tokens",
        config: Some(include_str!("builtin/roberta-base.json")),
    },
    Builtin {
        name: "t5-base",
        description: "T5 base, 223 M parameters",
        config: Some(include_str!("builtin/t5-base.json")),
    },
    Builtin {
        name: "t5-large",
        description: "T5 large, 738 M parameters",
        config: Some(include_str!("builtin/t5-large.json")),
    },
    Builtin { name: "t5-3b", description: "T5 3B, 2.9 B parameters", config: Some(include_str!("builtin/t5-3b.json")) },
    Builtin {
        name: "vit-base",
        description: "ViT base, patches of 16, 87 M parameters, 1000 classes",
        config: Some(include_str!("builtin/vit-base.json")),
    },
    Builtin {
        name: "vit-large",
        description: "ViT large, patches of 16, 304 M parameters, 1000 classes",
        config: Some(include_str!("builtin/vit-large.json")),
    },
    Builtin {
        name: "clip-vit-base-patch32",
        description: "CLIP with ViT base, patches of 32, 151 M parameters",
        config: Some(include_str!("builtin/clip-vit-base-patch32.json")),
    },
    Builtin {
        name: "clip-vit-large-patch14",
        description: "CLIP with ViT large, patches of 14, 428 M parameters",
        config: Some(include_str!("builtin/clip-vit-large-patch14.json")),
    },
    Builtin {
        name: "gpt-oss-20b",
        description: "GPT-OSS 20B, weights in bf16",
        config: Some(include_str!("builtin/gpt-oss-20b.json")),
    },
    Builtin {
        name: "gpt-oss-120b",
        description: "GPT-OSS 120B, weights in bf16",
        config: Some(include_str!("builtin/gpt-oss-120b.json")),
    },
    Builtin {
        name: "deepseek-v2-lite",
        description: "DeepSeek-V2-Lite, 15.7 B parameters",
        config: Some(include_str!("builtin/deepseek-v2-lite.json")),
    },
    Builtin {
        name: "deepseek-v3",
        description: "DeepSeek-V3, 671 B parameters, weights in bf16",
        config: Some(include_str!("builtin/deepseek-v3.json")),
    },
];

/// A question that names the nearest built-in model, if one is near; capitals do not count.
pub(super) fn suggestion(name: &str) -> String {
    let name = name.to_lowercase();
    BUILTIN
        .iter()
        .map(|entry| (strsim::damerau_levenshtein(&name, entry.name), entry.name))
        .min()
        .filter(|(distance, nearest)| *distance <= nearest.len() / 2)
        .map_or_else(String::new, |(_, nearest)| format!("did you mean `{nearest}`? "))
}
