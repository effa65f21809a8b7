//! Settings are read as torch reads them, and refused in words that help.

use rematic_allocator::{Settings, SettingsError};

/// What torch made of a text, in the words of `tests/allocator/settings.py`.
fn said(text: &str) -> Result<String, SettingsError> {
    let settings: Settings = text.parse()?;
    let split = settings.max_split_size.map_or("-1".to_owned(), |bytes| bytes.cast_signed().to_string());
    let divisions: Vec<String> = settings.divisions.by_interval().iter().map(u64::to_string).collect();
    let expandable = if settings.expandable_segments { "True" } else { "False" };
    Ok(format!("{split} {:?} {expandable} {}", settings.garbage_collection_threshold, divisions.join(",")))
}

#[test]
fn texts_mean_what_they_mean_to_torch() {
    let recorded = include_str!("recordings/settings.tsv");
    let mut wrong = Vec::new();
    for line in recorded.lines() {
        let (text, theirs) = line.rsplit_once('\t').expect("a tab");
        let ours = said(text);
        let same = match &ours {
            Ok(ours) => ours == theirs,
            Err(_) => theirs == "error",
        };
        if !same {
            wrong.push(format!("{text}\n  torch: {theirs}\n  here:  {ours:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} texts differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(recorded.lines().count() > 300);
}

fn refused(text: &str) -> String {
    text.parse::<Settings>().expect_err("not settings").to_string()
}

#[test]
fn a_wrong_setting_is_named_with_what_is_allowed() {
    let unknown = refused("max_split_size:128");
    assert!(unknown.starts_with("There is no allocator setting 'max_split_size' in torch 2.15."), "{unknown}");
    assert!(unknown.contains("max_split_size_mb"), "{unknown}");
    assert_eq!(
        refused("expandable_segments:true"),
        "The allocator setting 'expandable_segments' cannot be 'true'. Write expandable_segments:True or False."
    );
    assert_eq!(
        refused("max_split_size_mb:10"),
        "The allocator setting 'max_split_size_mb' is 10 MiB, less than large_segment_size_mb, 20. Take at least 20."
    );
    assert_eq!(
        refused("garbage_collection_threshold:"),
        "The allocator setting 'garbage_collection_threshold' has no value, or one that does not end. Write \
         garbage_collection_threshold:a number above 0 and below 1."
    );
    assert!(refused("backend:cudaMallocAsync").contains("is not modelled"));
}

#[test]
fn what_changes_nothing_is_listed() {
    let settings: Settings = "pinned_num_register_threads:8,expandable_segments_reserve:x".parse().expect("settings");
    let keys: Vec<&str> = settings.ignored.iter().map(|ignored| ignored.key.as_str()).collect();
    assert_eq!(keys, ["pinned_num_register_threads", "expandable_segments_reserve"]);
}
