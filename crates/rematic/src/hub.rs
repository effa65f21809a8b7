//! Models in the local cache of the Hugging Face hub. Nothing is downloaded.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The revision that a model id without one stands for.
const REVISION: &str = "main";
/// A reference holds the name of a commit, 40 characters.
const LONGEST_REFERENCE: usize = 200;

/// Whether a name can be a model's on the hub: `org/model`, or `model` alone as the oldest have it.
pub(crate) fn is_id(name: &str) -> bool {
    let is_part = |part: &str| {
        let known = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(known)
    };
    name.split('/').count() <= 2 && name.split('/').all(is_part)
}

/// Where the hub's library keeps models: `$HF_HUB_CACHE`, `$HF_HOME/hub`, `$XDG_CACHE_HOME/huggingface/hub` or
/// `~/.cache/huggingface/hub`.
pub(crate) fn cache() -> PathBuf {
    let place = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    place("HF_HUB_CACHE").unwrap_or_else(|| {
        let home = place("HF_HOME").unwrap_or_else(|| {
            let caches = place("XDG_CACHE_HOME");
            caches.unwrap_or_else(|| place("HOME").unwrap_or_default().join(".cache")).join("huggingface")
        });
        home.join("hub")
    })
}

/// The `config.json` of a model, if the cache has it.
pub(crate) fn config(cache: &Path, id: &str) -> Option<PathBuf> {
    let model = cache.join(format!("models--{}", id.replace('/', "--")));
    let snapshots = model.join("snapshots");
    let snapshot = match fs::read_to_string(model.join("refs").join(REVISION)) {
        // It names a folder, and must not lead elsewhere.
        Ok(commit) => {
            let commit = commit.trim();
            let is_name =
                commit.len() <= LONGEST_REFERENCE && commit.chars().all(|letter| letter.is_ascii_alphanumeric());
            is_name.then(|| snapshots.join(commit))?
        }
        Err(_) => only_folder(&snapshots)?,
    };
    Some(snapshot.join("config.json")).filter(|config| config.is_file())
}

/// What was fetched by its commit has no reference; a single snapshot is the one that is meant.
fn only_folder(place: &Path) -> Option<PathBuf> {
    let mut folders = fs::read_dir(place).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let first = folders.next()?;
    folders.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_names_and_no_paths() {
        for id in ["gpt2", "org/model", "meta-llama/Llama-3.1-8B", "a_b/c.d"] {
            assert!(is_id(id), "{id}");
        }
        for path in ["", "/", "a/", "/a", "a/b/c", "../a", "a/..", "./a", "a b/c", "a\\b", "a/.hidden", "ä/b"] {
            assert!(!is_id(path), "{path}");
        }
    }

    #[test]
    fn a_reference_names_the_snapshot_and_leads_nowhere_else() {
        let cache = tempfile::tempdir().unwrap();
        let model = cache.path().join("models--org--model");
        let snapshot = |commit: &str| {
            let place = model.join("snapshots").join(commit);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("config.json"), "{}").unwrap();
            place.join("config.json")
        };
        assert_eq!(config(cache.path(), "org/model"), None);
        let first = snapshot("abc");
        assert_eq!(config(cache.path(), "org/model"), Some(first.clone()));
        let second = snapshot("def");
        assert_eq!(config(cache.path(), "org/model"), None);
        fs::create_dir_all(model.join("refs")).unwrap();
        for (reference, found) in
            [("def\n", Some(second)), ("abc", Some(first)), ("gone", None), ("../snapshots/abc", None)]
        {
            fs::write(model.join("refs/main"), reference).unwrap();
            assert_eq!(config(cache.path(), "org/model"), found, "{reference}");
        }
    }
}
