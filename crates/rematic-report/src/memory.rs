use rematic_cost::Device;
use rematic_trace::Bytes;
use serde::Serialize;

use crate::style::{Sentence, Style, Tone};

/// What a step takes of a device: what counts is what PyTorch's allocator reserves, not what tensors add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// The highest bytes that the allocator has handed out.
    #[serde(rename = "allocated_bytes")]
    pub allocated: Bytes,
    /// The highest bytes that it has taken from the device.
    #[serde(rename = "reserved_bytes")]
    pub reserved: Bytes,
    /// What the CUDA context and libraries take beside it.
    #[serde(rename = "context_bytes")]
    pub context: Bytes,
    /// What PyTorch sees of the device.
    #[serde(rename = "usable_bytes")]
    pub usable: Bytes,
    /// How often it had to empty its cache to stay below that; `None` if it does not fit.
    #[serde(skip)]
    pub retries: Option<u64>,
}

impl Memory {
    /// Whether the step fits the device.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.retries.is_some()
    }

    pub(crate) fn text(&self, device: &Device, style: Style) -> String {
        let taken = Bytes(self.reserved.0.saturating_add(self.context.0));
        let (lead, tail) = match self.retries {
            Some(0) => (("Fits", Tone::Good), format!("with {} to spare", self.usable.saturating_sub(taken))),
            Some(retries) => {
                let times = if retries == 1 { "once".to_owned() } else { format!("{retries} times in three steps") };
                (("Just fits", Tone::Good), format!("if PyTorch empties its cache {times}, which takes time"))
            }
            None => {
                let more = taken.saturating_sub(self.usable);
                (("Does not fit", Tone::Bad), format!("{more} more than its {}", self.usable))
            }
        };
        let head = match self.retries {
            Some(_) => format!(" {} ({})", device.product, self.usable),
            None => format!(" {}:", device.product),
        };
        let verdict = style.sentence(&Sentence { lead, head: &head, gap: " ", tail: (&tail, Tone::Plain) });
        let parts = format!(
            "{} allocated, {} reserved by PyTorch's allocator, {} for the CUDA context",
            self.allocated, self.reserved, self.context
        );
        let parts = Sentence { lead: ("", Tone::Plain), head: &parts, gap: "", tail: ("", Tone::Plain) };
        verdict + &style.sentence(&parts)
    }
}
