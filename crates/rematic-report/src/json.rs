use serde::{Serialize, Serializer};

/// Facts about a step, by name. One that is noted twice counts as it was noted last.
pub(crate) struct Facts<'a>(pub(crate) &'a [(String, String)]);

impl Serialize for Facts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let facts = self.0.iter().enumerate();
        let last = facts.filter(|(at, fact)| self.0[at + 1..].iter().all(|later| later.0 != fact.0));
        serializer.collect_map(last.map(|(_, (name, value))| (name, value)))
    }
}

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
