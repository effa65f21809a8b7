//! The settings that `PYTORCH_CUDA_ALLOC_CONF` holds.

mod parser;
mod tokens;

pub use parser::SettingsError;

use crate::rounding::Divisions;

const MIB: u64 = 1 << 20;
const GIB: f64 = (1u64 << 30) as f64;

/// How many addresses an expandable segment reserves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reserve {
    /// A fraction of the device's memory.
    Fraction(f64),
    /// So many GiB.
    Gib(f64),
}

/// A setting that was read and changes nothing here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// The setting.
    pub key: String,
    /// Why.
    pub reason: &'static str,
}

/// How the allocator behaves. The default is torch's.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `large_segment_size_mb`, in bytes: what is shared by blocks above 1 MiB and below 10 MiB, and the piece in which
    /// large expandable segments are mapped.
    pub large_segment_size: u64,
    /// `max_split_size_mb`, in bytes: blocks of this size and more are not split.
    pub max_split_size: Option<u64>,
    /// `max_non_split_rounding_mb`, in bytes: how much larger a block that is not split may be than its request.
    pub max_non_split_rounding: u64,
    /// `roundup_power2_divisions`.
    pub divisions: Divisions,
    /// `garbage_collection_threshold`; 0 if none is collected.
    pub garbage_collection_threshold: f64,
    /// `per_process_memory_fraction`.
    pub memory_fraction: f64,
    /// `throw_on_cudamalloc_oom`.
    pub throw_on_oom: bool,
    /// `expandable_segments`.
    pub expandable_segments: bool,
    /// `expandable_segments_reserve`.
    pub reserve: Option<Reserve>,
    /// What was read and changes nothing here.
    pub ignored: Vec<Ignored>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            large_segment_size: 20 * MIB,
            max_split_size: None,
            max_non_split_rounding: 20 * MIB,
            divisions: Divisions::default(),
            garbage_collection_threshold: 0.0,
            memory_fraction: 1.0,
            throw_on_oom: false,
            expandable_segments: false,
            reserve: None,
            ignored: Vec::new(),
        }
    }
}

impl Settings {
    /// What the memory fraction allows of a device, if it allows less than all.
    #[must_use]
    pub fn allowed_bytes(&self, total: u64) -> Option<u64> {
        (self.memory_fraction < 1.0).then(|| fraction_of(self.memory_fraction, total))
    }

    /// The addresses of an expandable segment on a device with this memory, before they are rounded up to pieces. Nine
    /// eighths of the memory, so that what is unmapped in the middle can come back at the end.
    pub(crate) fn segment_reserve(&self, total: u64) -> u64 {
        let all = total.saturating_add(total / 8);
        match self.reserve {
            None => all,
            Some(Reserve::Fraction(fraction)) => fraction_of(fraction, total).min(all),
            Some(Reserve::Gib(gib)) => truncate(gib * GIB).min(all),
        }
    }
}

/// A fraction of so many bytes, as torch computes it.
pub(crate) fn fraction_of(fraction: f64, bytes: u64) -> u64 {
    #[expect(clippy::cast_precision_loss, reason = "torch multiplies doubles")]
    let product = fraction * bytes as f64;
    truncate(product)
}

/// Towards zero, and to the largest number where there is no larger one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is what is wanted"
)]
fn truncate(bytes: f64) -> u64 {
    bytes as u64
}
