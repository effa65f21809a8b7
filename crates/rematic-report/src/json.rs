use serde::Serialize;

/// A document, indented, with a line break at the end.
pub(crate) fn json(document: &impl Serialize) -> String {
    written(serde_json::to_string_pretty(document)) + "\n"
}

/// A document without any space.
pub(crate) fn line(document: &impl Serialize) -> String {
    written(serde_json::to_string(document))
}

fn written(document: serde_json::Result<String>) -> String {
    // Writing to memory does not fail, numbers that JSON lacks become null, and no document here has a map, whose keys
    // could be other than text. Should one ever break this, an empty document would be worse than none.
    document.expect("the documents of this crate have text keys only")
}
