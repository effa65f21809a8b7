use rematic_cost::Device;
use rematic_trace::Bytes;
use serde::Serialize;

use crate::shorten::Shorten;
use crate::style::{Sentence, Style, Tone};
use crate::table::{Column, Table};

/// What a step takes of a device: what counts is what PyTorch's allocator reserves, not what tensors add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// The highest bytes that the allocator has handed out.
    #[serde(rename = "allocated_bytes")]
    pub allocated: Bytes,
    /// The highest bytes that it has taken from the device.
    #[serde(rename = "reserved_bytes")]
    pub reserved: Bytes,
    /// What the CUDA context and libraries take beside it, NCCL among them where there are several devices.
    #[serde(rename = "context_bytes")]
    pub context: Bytes,
    /// What PyTorch sees of the device.
    #[serde(rename = "usable_bytes")]
    pub usable: Bytes,
    /// What PyTorch's allocator may take: what the context leaves, or what it is allowed of the device.
    #[serde(skip)]
    pub room: Bytes,
    /// Among how many devices the step is spread.
    #[serde(skip)]
    pub ranks: u64,
    /// Whether the step has what sharding gathers weights into and reduces gradients from.
    #[serde(skip)]
    pub has_buffers: bool,
    /// How often it had to empty its cache to stay below that; `None` if it does not fit.
    pub retries: Option<u64>,
}

/// What a step takes of a device, beside what is said of its peak.
#[derive(Clone, Copy, Debug)]
pub struct OnDevice<'a> {
    /// The device.
    pub device: &'a Device,
    /// What is taken of it.
    pub memory: &'a Memory,
    /// Whether that is what the step has to fit, and not a budget.
    pub decides: bool,
}

/// What PyTorch's allocator would reserve with another setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TriedSetting {
    /// As `PYTORCH_CUDA_ALLOC_CONF` takes it.
    pub setting: &'static str,
    /// The highest bytes that it would take from the device.
    pub reserved_bytes: Bytes,
    /// Whether the step would fit.
    pub fits: bool,
}

/// The width below which a shortened setting says little.
const SETTING: usize = 24;

/// A setting that spares a smaller part than one of so many is left out, unless it decides.
const LITTLE: u64 = 100;

/// The settings that help, as a table.
pub(crate) fn settings_table(tried: &[TriedSetting], memory: &Memory, style: Style) -> String {
    let (reserved, fits) = (memory.reserved, memory.fits());
    let helps = |tried: &&TriedSetting| {
        tried.fits != fits || reserved.0.saturating_sub(tried.reserved_bytes.0) >= reserved.0 / LITTLE
    };
    let mut table = Table::new([
        Column::text("with PyTorch's allocator set to").shorten(Shorten::End, SETTING),
        Column::number("reserved").tone(Tone::Good),
        Column::number("less").leave_out(1),
        Column::text("").leave_out(0),
    ]);
    for TriedSetting { setting, reserved_bytes, fits } in tried.iter().filter(helps) {
        let less = reserved.saturating_sub(*reserved_bytes);
        let fits = if *fits { "fits" } else { "does not fit" };
        table.row([(*setting).to_owned(), reserved_bytes.to_string(), less.to_string(), fits.to_owned()]);
    }
    if tried.iter().any(|tried| helps(&tried)) { format!("\n{}", table.render(style)) } else { String::new() }
}

impl OnDevice<'_> {
    /// Whether the step fits, and what it takes.
    pub(crate) fn text(&self, style: Style) -> String {
        self.memory.text(self.device, style) + &self.memory.not_counted(style)
    }
}

impl Memory {
    /// What an evenly divided step leaves out.
    pub(crate) fn not_counted(&self, style: Style) -> String {
        let Some((lead, tail)) = self.left_out() else { return String::new() };
        style.sentence(&Sentence { lead: (lead, Tone::Quiet), head: "", gap: " ", tail: (&tail, Tone::Quiet) })
    }

    /// The same in one line; `None` if nothing is left out.
    pub(crate) fn leaves_out(&self) -> Option<String> {
        self.left_out().map(|(lead, tail)| format!("{lead} {tail}"))
    }

    fn left_out(&self) -> Option<(&'static str, String)> {
        let lead = "Not counted: the buffers into which FSDP gathers weights and reduces gradients;";
        let counts = self.ranks < 2 || self.has_buffers;
        (!counts).then(|| (lead, format!("sharding with fsdp {} counts them.", self.ranks)))
    }

    /// Whether the step fits the device.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.retries.is_some()
    }

    pub(crate) fn text(&self, device: &Device, style: Style) -> String {
        let is_limited = Bytes(self.room.0.saturating_add(self.context.0)) < self.usable;
        let (lead, tail) = match self.retries {
            Some(0) => (("Fits", Tone::Good), format!("with {} to spare", self.room.saturating_sub(self.reserved))),
            Some(retries) => {
                let times = if retries == 1 { "once".to_owned() } else { format!("{retries} times") };
                (("Just fits", Tone::Good), format!("if PyTorch empties its cache {times}, which takes time"))
            }
            None => {
                let more = self.reserved.saturating_sub(self.room);
                let what = if is_limited {
                    format!("the {} that per_process_memory_fraction allows", self.room)
                } else {
                    format!("its {}", self.usable)
                };
                (("Does not fit", Tone::Bad), format!("{more} more than {what}"))
            }
        };
        let head = match self.retries {
            Some(_) => format!(" {} ({})", device.product, self.usable),
            None => format!(" {}:", device.product),
        };
        let verdict = style.sentence(&Sentence { lead, head: &head, gap: " ", tail: (&tail, Tone::Plain) });
        let (context, collectives) = if device.is_amd() { ("HIP", "RCCL") } else { ("CUDA", "NCCL") };
        let parts = format!(
            "{} allocated, {} reserved by PyTorch's allocator, {} for the {context} context{}",
            self.allocated,
            self.reserved,
            self.context,
            if self.ranks > 1 { format!(" and {collectives}") } else { String::new() }
        );
        let parts = Sentence { lead: ("", Tone::Plain), head: &parts, gap: "", tail: ("", Tone::Plain) };
        verdict + &style.sentence(&parts)
    }
}
