//! One HTML file that shows a memory snapshot: memory over time, the segments as a map, who asked, what would have helped.
//!
//! As for the page of a step, what it shows is a JSON document in it, and the scripts only ever set text.

use std::path::Path;

use rematic_snapshot::{MapSegment, Story};
use serde::Serialize;

use crate::html::Template;
use crate::json::{json, line};
use crate::style::visible;

const PAGE: Template = Template {
    html: include_str!("web/snapshot.html"),
    style: concat!(include_str!("../page/web/page.css"), include_str!("web/snapshot.css")),
    script: SCRIPT,
};
const SCRIPT: &str = concat!(
    "\"use strict\";\n(() => {\n",
    include_str!("../page/web/format.js"),
    include_str!("../page/web/element.js"),
    include_str!("web/time.js"),
    include_str!("web/map.js"),
    include_str!("web/snapshot.js"),
    "})();\n",
);
/// A picture cannot show more than this many blocks; those of the smallest segments are left out.
const MOST_BLOCKS: usize = 100_000;
/// Groups beyond these are only in the JSON of `explain`.
const MOST_GROUPS: usize = 2_000;

/// A page about a memory snapshot.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotPage<'a> {
    /// The file.
    pub file: &'a str,
    /// What it means.
    pub story: &'a Story,
}

/// A block: its offset, size and group.
type BlockRow = (u64, u64, usize);
/// A segment: its bytes, its stream, whether it is expandable, its blocks.
type SegmentRow = (u64, u64, bool, Vec<BlockRow>);

#[derive(Serialize)]
struct Document<'a> {
    file: &'a str,
    version: &'a str,
    story: &'a Story,
    parts: Vec<String>,
    /// For each group, its part's place among those of the story.
    group_parts: Vec<usize>,
    /// Events, allocated and reserved bytes.
    timeline: Vec<(usize, u64, u64)>,
    /// The largest first.
    map: Vec<SegmentRow>,
    segments: usize,
    advice: Vec<String>,
}

impl SnapshotPage<'_> {
    /// The file.
    #[must_use]
    pub fn html(&self) -> String {
        PAGE.filled(&format!("{}: memory snapshot", self.file), &line(&self.document()))
    }

    fn document(&self) -> Document<'_> {
        let story = self.story;
        let place = |part| story.moment.parts.iter().position(|found| found.part == part).unwrap_or(0);
        let mut left = MOST_BLOCKS;
        let shown = |segment: &&MapSegment| {
            left = left.saturating_sub(segment.blocks.len().max(1));
            left > 0
        };
        let map = story.map.iter().take_while(shown).map(|segment| {
            let blocks = segment.blocks.iter().map(|block| (block.offset, block.size, block.group)).collect();
            (segment.bytes.0, segment.stream, segment.expandable, blocks)
        });
        Document {
            file: self.file,
            version: env!("CARGO_PKG_VERSION"),
            story,
            parts: story.moment.parts.iter().map(|part| part.part.to_string()).collect(),
            group_parts: story.moment.groups.iter().take(MOST_GROUPS).map(|group| place(group.part)).collect(),
            timeline: story
                .timeline
                .iter()
                .map(|point| (point.event, point.allocated_bytes.0, point.reserved_bytes.0))
                .collect(),
            map: map.collect(),
            segments: story.map.len(),
            advice: super::SnapshotReport { file: self.file, story, prediction: None }.basis(),
        }
    }

    /// What `rematic report` says about the page that it wrote, as JSON.
    #[must_use]
    pub fn saved_json(&self, output: &Path) -> String {
        #[derive(Serialize)]
        struct Json<'a> {
            file: String,
            snapshot: &'a str,
            device: u32,
            out_of_memory: bool,
        }
        json(&Json {
            file: output.display().to_string(),
            snapshot: self.file,
            device: self.story.device,
            out_of_memory: self.story.failure.is_some(),
        })
    }

    /// The same in a line.
    #[must_use]
    pub fn saved_text(&self, output: &Path) -> String {
        let story = self.story;
        let what = if story.failure.is_some() { "ran out of memory" } else { "memory" };
        format!(
            "{}: {what} with {} allocated and {} reserved, from {}\n",
            output.display(),
            story.moment.allocated_bytes,
            story.moment.reserved_bytes,
            visible(self.file)
        )
    }
}
