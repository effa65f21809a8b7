use rematic_trace::{Flops, Millis};
use serde::Serialize;

use crate::shorten::unbroken;
use crate::style::{Sentence, Style, Tone};

/// How fast a step goes: what the clocks of its streams say, and what that is per token and of the device's peak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Time of the step.
    pub step: Millis,
    /// The part of it in which nothing is computed, because data are on their way between devices.
    pub exposed: Millis,
    /// What forward, backward and optimizer take of it.
    pub phases: [Millis; 3],
    /// Whether anything is sent between devices.
    pub communicates: bool,
    /// Tokens of a step, of all devices together; `None` if that is not known.
    pub tokens: Option<u64>,
    /// Samples of a step, of all devices together, where they have no tokens: images; `None` if they have, or it is not known.
    pub samples: Option<u64>,
    /// How many devices there are.
    pub devices: u64,
    /// What the model computes in a step on one device, without what is recomputed.
    pub flops: Flops,
    /// The share of the device's peak that is; `None` if the peak is not known, or times are not physical.
    pub mfu: Option<f64>,
    /// The share of this pace that published runs on the device reached; `None` if there are none, or times are not physical.
    pub reached: Option<f64>,
}

/// The same for programs, beside the time of the step.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct PaceJson {
    exposed_ms: Millis,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_second_per_gpu: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples_per_second: Option<f64>,
    /// A number of 64 bits, for those who read no larger ones.
    flops: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    mfu: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pace_share: Option<f64>,
}

impl Pace {
    /// Tokens per second of all devices together.
    #[must_use]
    pub fn tokens_per_second(&self) -> Option<f64> {
        self.per_second(self.tokens)
    }

    fn per_second(&self, count: Option<u64>) -> Option<f64> {
        count.filter(|_| self.step.0 > 0.0).map(|count| count as f64 / self.step.0 * 1e3)
    }

    /// The part of that which each device has.
    #[must_use]
    pub fn tokens_per_second_per_device(&self) -> Option<f64> {
        self.tokens_per_second().map(|tokens| tokens / self.devices.max(1) as f64)
    }

    pub(crate) fn json(&self) -> PaceJson {
        PaceJson {
            exposed_ms: self.exposed,
            tokens_per_second: self.tokens_per_second(),
            tokens_per_second_per_gpu: self.tokens_per_second_per_device(),
            samples_per_second: self.per_second(self.samples),
            flops: self.flops.0 as f64,
            mfu: self.mfu,
            pace_share: self.reached,
        }
    }

    /// What is said of it beside the time of the step; nothing where nothing is known.
    #[must_use]
    pub fn words(&self) -> String {
        self.parts().join("; ")
    }

    fn parts(&self) -> Vec<String> {
        let mut words = Vec::new();
        let tokens = self.tokens_per_second().map(|all| (all, "tokens"));
        if let Some((all, what)) = tokens.or_else(|| Some((self.per_second(self.samples)?, "samples"))) {
            let each = all / self.devices.max(1) as f64;
            words.push(match self.devices {
                1 => unbroken(&format!("{} {what} per second", count(all))),
                devices => format!(
                    "{}, {}",
                    unbroken(&format!("{} {what} per second", count(all))),
                    unbroken(&format!("{} on each of {devices} GPUs", count(each)))
                ),
            });
        }
        if let Some(mfu) = self.mfu {
            words.push(unbroken(&format!("MFU {:.1} %", mfu * 100.0)));
        }
        if self.communicates {
            let share = self.exposed.0 / self.step.0.max(f64::MIN_POSITIVE) * 100.0;
            words.push(format!("exposed communication {}", unbroken(&format!("{} ({share:.1} %)", self.exposed))));
        }
        if let (Some(reached), false) = (self.reached, words.is_empty()) {
            words.push(format!("published runs reach {}", unbroken(&format!("{:.0} % of that pace", reached * 100.0))));
        }
        words
    }

    /// The same as a line.
    pub(crate) fn text(&self, style: Style) -> String {
        let parts = self.parts();
        let Some((first, rest)) = parts.split_first() else { return String::new() };
        let rest = rest.join("; ");
        style.sentence(&Sentence { lead: (first, Tone::Plain), head: "", gap: "; ", tail: (&rest, Tone::Plain) })
    }
}

/// 12,345; below 100 with digits behind the point.
pub(crate) fn count(number: f64) -> String {
    if number < 100.0 {
        return format!("{number:.3}").trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace() -> Pace {
        Pace {
            step: Millis(800.0),
            exposed: Millis(40.0),
            phases: [Millis(200.0), Millis(500.0), Millis(100.0)],
            communicates: true,
            tokens: Some(65536),
            samples: None,
            devices: 8,
            flops: Flops(400_000_000_000_000),
            mfu: Some(0.5056),
            reached: None,
        }
    }

    fn spoken(pace: &Pace) -> String {
        pace.words().replace('\u{a0}', " ")
    }

    #[test]
    fn all_is_said_that_is_known() {
        let all =
            "81,920 tokens per second, 10,240 on each of 8 GPUs; MFU 50.6 %; exposed communication 40.0 ms (5.0 %)";
        assert_eq!(spoken(&pace()), all);
        let alone = Pace { communicates: false, devices: 1, tokens: Some(8192), ..pace() };
        assert_eq!(spoken(&alone), "10,240 tokens per second; MFU 50.6 %");
        let known = Pace { reached: Some(0.659), ..alone };
        assert_eq!(spoken(&known), "10,240 tokens per second; MFU 50.6 %; published runs reach 66 % of that pace");
        assert_eq!(spoken(&Pace { tokens: None, mfu: None, ..known }), "");
        let images = Pace { tokens: None, samples: Some(64), ..alone };
        assert_eq!(spoken(&images), "80 samples per second; MFU 50.6 %");
    }

    #[test]
    fn no_time_gives_no_rate() {
        let none = Pace { step: Millis(0.0), exposed: Millis(0.0), mfu: None, ..pace() };
        assert_eq!((none.tokens_per_second(), none.tokens_per_second_per_device()), (None, None));
        assert_eq!(spoken(&none), "exposed communication 0.00 ms (0.0 %)");
    }

    #[test]
    fn counts_read_well() {
        assert_eq!([0.0, 0.25, 99.0, 100.2, 999.6, 1e6].map(count), ["0", "0.25", "99", "100", "1,000", "1,000,000"]);
    }
}
