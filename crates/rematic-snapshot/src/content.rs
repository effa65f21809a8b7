//! From plain data to a snapshot: what is missing in older versions, and what is wrong.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rematic_allocator::{Settings, SettingsError};

use crate::error::ContentError;
use crate::field::Field;
use crate::pickle::{DictId, Document, ListId, TextId, Value};
use crate::snapshot::{Action, Block, BlockState, DeviceRecord, Event, Recorded, Segment, Snapshot};
use crate::stack::{Frame, StackId};

/// An entry of its own takes more bytes than this in the file.
const BYTES_PER_ENTRY: usize = 8;
/// How many frames of a stack are kept, the innermost ones. Python itself stops at 1,000 calls unless told otherwise.
const DEEPEST_STACK: usize = 4_096;
/// The highest number of a GPU. Torch itself counts them in a byte.
const HIGHEST_DEVICE: u64 = 255;

/// Reads a snapshot out of a document.
pub(crate) fn snapshot(document: &Document) -> Result<Snapshot, ContentError> {
    let limit = document.file.len() / BYTES_PER_ENTRY + 64;
    let mut reader = Reader { snapshot: Snapshot::default(), limit, left: limit, ..Reader::default() };
    reader.snapshot.stacks.stacks.push(Vec::new());
    let root = Field::root(document);
    let mut devices: BTreeMap<u32, DeviceRecord> = BTreeMap::new();
    // `torch.cuda.memory_snapshot` has the segments alone.
    let segments = if matches!(root.value, Value::List(_)) { root } else { root.get("segments")? };
    for segment in segments.items()? {
        let (device, segment) = reader.segment(&segment)?;
        devices.entry(device).or_default().segments.push(segment);
    }
    if matches!(root.value, Value::Dict(_)) {
        if let Some(traces) = root.find("device_traces")? {
            for (device, trace) in (0..=HIGHEST_DEVICE).zip(traces.items()?) {
                let events = reader.events(&trace)?;
                let device = u32::try_from(device).unwrap_or(u32::MAX);
                devices.entry(device).or_default().events = events;
            }
        }
        if let Some(settings) = root.find("allocator_settings")? {
            reader.snapshot.recorded = recorded(&settings)?;
        }
    }
    for (device, mut record) in devices {
        record.device = device;
        record.segments.sort_by_key(|segment| segment.address);
        reader.snapshot.keep(record);
    }
    Ok(reader.snapshot)
}

#[derive(Default)]
struct Reader {
    snapshot: Snapshot,
    /// Stacks and frames that were seen; thousands of events share each.
    stacks: HashMap<ListId, StackId>,
    frames: HashMap<DictId, u32>,
    texts: HashMap<TextId, Arc<str>>,
    limit: usize,
    left: usize,
}

impl Reader {
    /// One more entry.
    fn count(&mut self, field: &Field<'_>) -> Result<(), ContentError> {
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| ContentError::TooMany { path: field.path.to_string(), limit: self.limit })?;
        Ok(())
    }

    fn segment(&mut self, field: &Field<'_>) -> Result<(u32, Segment), ContentError> {
        self.count(field)?;
        let device = field.find("device")?.map_or(Ok(0), |device| device.count())?.min(HIGHEST_DEVICE);
        let address = field.get("address")?.count()?;
        let size = field.get("total_size")?.bytes()?;
        let mut blocks = Vec::new();
        // Before 2.1 blocks had no addresses; they follow each other.
        let mut next = address;
        for block in field.get("blocks")?.items()? {
            let block = self.block(&block, next)?;
            next = block.address.saturating_add(block.size);
            blocks.push(block);
        }
        blocks.sort_by_key(|block| block.address);
        let segment = Segment {
            address,
            size,
            stream: field.find("stream")?.map_or(Ok(0), |stream| stream.bits())?,
            is_small: field.find("segment_type")?.map_or(Ok("large"), |kind| kind.text())? == "small",
            is_expandable: field.find("is_expandable")?.map_or(Ok(false), |flag| flag.flag())?,
            pool: pool(field.find("segment_pool_id")?)?,
            blocks,
        };
        Ok((u32::try_from(device).unwrap_or(0), segment))
    }

    fn block(&mut self, field: &Field<'_>, next: u64) -> Result<Block, ContentError> {
        self.count(field)?;
        let size = field.get("size")?.bytes()?;
        let state = match field.get("state")?.text()? {
            "active_allocated" => BlockState::Allocated,
            "active_pending_free" | "active_awaiting_free" => BlockState::PendingFree,
            _ => BlockState::Free,
        };
        let history = field.find("history")?;
        let oldest = match &history {
            Some(history) => history.items()?.next(),
            None => None,
        };
        let frames = match (field.find("frames")?, &oldest) {
            (Some(frames), _) => Some(frames),
            (None, Some(oldest)) => oldest.find("frames")?,
            (None, None) => None,
        };
        Ok(Block {
            address: field.find("address")?.map_or(Ok(next), |address| address.count())?,
            size,
            requested: field.find("requested_size")?.map_or(Ok(size), |size| size.bytes())?,
            state,
            stack: self.stack(frames)?,
        })
    }

    fn events(&mut self, field: &Field<'_>) -> Result<Vec<Event>, ContentError> {
        let items = field.items()?;
        let mut events = Vec::with_capacity(items.len().min(self.left));
        for item in items {
            events.push(self.event(&item)?);
        }
        Ok(with_both_frees(events))
    }

    fn event(&mut self, field: &Field<'_>) -> Result<Event, ContentError> {
        self.count(field)?;
        let action = match field.get("action")?.text()? {
            "alloc" => Action::Alloc,
            "free_requested" | "free" => Action::FreeRequested,
            "free_completed" => Action::FreeCompleted,
            "segment_alloc" => Action::SegmentAlloc,
            "segment_free" => Action::SegmentFree,
            "segment_map" => Action::SegmentMap,
            "segment_unmap" => Action::SegmentUnmap,
            "snapshot" => Action::Snapshot,
            "oom" => Action::OutOfMemory,
            // Newer versions have more that change no memory.
            _ => Action::Other,
        };
        let place = if action == Action::OutOfMemory { "device_free" } else { "addr" };
        let address = match action {
            Action::Snapshot | Action::Other => 0,
            _ => field.get(place)?.count()?,
        };
        Ok(Event {
            action,
            address,
            size: field.find("size")?.map_or(Ok(0), |size| size.bytes())?,
            stream: field.find("stream")?.map_or(Ok(0), |stream| stream.bits())?,
            pool: pool(field.find("pool_id")?)?,
            time: field.find("time_us")?.map_or(Ok(0), |time| time.bits())?,
            stack: self.stack(field.find("frames")?)?,
        })
    }

    fn stack(&mut self, frames: Option<Field<'_>>) -> Result<StackId, ContentError> {
        let Some(field) = frames else { return Ok(StackId::NONE) };
        let list = field.list()?;
        if field.document.list(list).is_empty() {
            return Ok(StackId::NONE);
        }
        if let Some(known) = self.stacks.get(&list) {
            return Ok(*known);
        }
        let mut stack = Vec::new();
        for frame in field.items()?.take(DEEPEST_STACK) {
            stack.push(self.frame(&frame)?);
        }
        let stacks = &mut self.snapshot.stacks.stacks;
        let id = StackId(u32::try_from(stacks.len()).unwrap_or(0));
        stacks.push(stack);
        self.stacks.insert(list, id);
        Ok(id)
    }

    fn frame(&mut self, field: &Field<'_>) -> Result<u32, ContentError> {
        let dict = field.dict()?;
        if let Some(known) = self.frames.get(&dict) {
            return Ok(*known);
        }
        let frame = Frame {
            file: self.name(field.find("filename")?)?,
            line: field.find("line")?.map_or(Ok(0), |line| line.bits())?,
            function: self.name(field.find("name")?)?,
        };
        let frames = &mut self.snapshot.stacks.frames;
        let number = u32::try_from(frames.len()).unwrap_or(0);
        frames.push(frame);
        self.frames.insert(dict, number);
        Ok(number)
    }

    fn name(&mut self, field: Option<Field<'_>>) -> Result<Arc<str>, ContentError> {
        let Some(field) = field else { return Ok("?".into()) };
        let text = field.text()?;
        let Value::Text(id) = field.value else { return Ok(text.into()) };
        Ok(Arc::clone(self.texts.entry(id).or_insert_with(|| text.into())))
    }
}

/// A block is given back, and then free. Where one of the two was not recorded (`skip_actions`), they come together.
fn with_both_frees(events: Vec<Event>) -> Vec<Event> {
    let has = |action| events.iter().any(|event| event.action == action);
    if has(Action::FreeRequested) == has(Action::FreeCompleted) {
        return events;
    }
    let both = |event: Event| match event.action {
        Action::FreeRequested | Action::FreeCompleted => {
            let completed = Event { action: Action::FreeCompleted, ..event };
            [Some(Event { action: Action::FreeRequested, ..event }), Some(completed)]
        }
        _ => [Some(event), None],
    };
    events.into_iter().flat_map(both).flatten().collect()
}

/// A private pool: two numbers.
fn pool(field: Option<Field<'_>>) -> Result<(u64, u64), ContentError> {
    let Some(field) = field else { return Ok((0, 0)) };
    let mut items = field.items()?;
    let mut next = || items.next().map_or(Ok(0), |item| item.bits());
    Ok((next()?, next()?))
}

/// The settings: the variable's text, and over it what the allocator itself says, which a program may have changed.
fn recorded(field: &Field<'_>) -> Result<Recorded, ContentError> {
    let mut text = String::new();
    for key in ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"] {
        if let Some(found) = field.find(key)? {
            text = found.text()?.trim().to_owned();
        }
        if !text.is_empty() {
            break;
        }
    }
    let read = text.parse::<Settings>();
    let by_driver = matches!(read, Err(SettingsError::DriverBackend));
    let (mut settings, mut unread) = match read {
        Ok(settings) => (settings, None),
        Err(error) => (Settings::default(), Some(error.to_string())),
    };
    if let Some(flag) = field.find("expandable_segments")? {
        settings.expandable_segments = flag.flag()?;
    }
    if let Some(bytes) = field.find("max_split_size")? {
        settings.max_split_size = if bytes.number()? < 0.0 { None } else { Some(bytes.bytes()?) };
    }
    if let Some(threshold) = field.find("garbage_collection_threshold")? {
        settings.garbage_collection_threshold = threshold.number()?.clamp(0.0, 1.0);
    }
    if let Some(divisions) = field.find("roundup_power2_divisions")? {
        match divisions_text(&divisions)?.map(|text| text.parse::<Settings>()) {
            Some(Ok(read)) => settings.divisions = read.divisions,
            Some(Err(error)) => unread = unread.or(Some(error.to_string())),
            None => {}
        }
    }
    Ok(Recorded { text, settings, unread, by_driver })
}

/// The steps for each power of two, as a setting; none where there are no steps at all.
fn divisions_text(field: &Field<'_>) -> Result<Option<String>, ContentError> {
    const BOUNDARIES: [&str; 16] =
        ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384", "32768"];
    let mut steps = Vec::new();
    for boundary in BOUNDARIES {
        steps.push(field.find(boundary)?.map_or(Ok(0), |steps| steps.count())?);
    }
    if steps.iter().all(|steps| *steps < 2) {
        return Ok(None);
    }
    let pairs = BOUNDARIES.iter().zip(&steps).map(|(boundary, steps)| format!("{boundary}:{}", (*steps).max(1)));
    Ok(Some(format!("roundup_power2_divisions:[{}]", pairs.collect::<Vec<_>>().join(","))))
}
