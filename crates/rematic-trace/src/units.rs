use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes. Reads `80GiB` (binary), `80GB` (decimal) or plain bytes; shows binary units.
///
/// ```
/// use rematic_trace::Bytes;
/// assert_eq!("1.5GiB".parse::<Bytes>().unwrap(), Bytes(1_610_612_736));
/// assert_eq!("2 GB".parse::<Bytes>().unwrap(), Bytes(2_000_000_000));
/// assert_eq!(Bytes(1_610_612_736).to_string(), "1.50 GiB");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Rounded up to a multiple of `unit`.
    #[must_use]
    pub fn round_up_to(self, unit: Bytes) -> Bytes {
        Bytes(self.0.div_ceil(unit.0.max(1)).saturating_mul(unit.0.max(1)))
    }

    /// As options take it, rounded up to two places: `2.11GiB`.
    #[must_use]
    pub fn spelled(self) -> String {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let Some((unit, shift)) = UNITS.into_iter().find(|(_, shift)| self.0 >> shift > 0) else {
            return self.0.to_string();
        };
        let hundredths = (u128::from(self.0) * 100).div_ceil(1 << shift);
        let (whole, part) = (hundredths / 100, hundredths % 100);
        match part {
            0 => format!("{whole}{unit}"),
            part => format!("{whole}.{part:02}{unit}"),
        }
    }

    /// The difference, or zero where it would be negative.
    #[must_use]
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = "B";
        for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = larger;
        }
        let text = if unit == "B" { format!("{} B", self.0) } else { format!("{value:.2} {unit}") };
        f.pad(&text)
    }
}

/// A text that is not a size in bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseBytesError {
    /// It is no size.
    #[error("`{text}` is not a size; write it like 38GiB, 40GB or 1073741824")]
    NoSize {
        /// The text.
        text: String,
    },
    /// It is a size that nobody means.
    #[error("`{text}` is {text} bytes; did you mean {text}GiB?")]
    NoUnit {
        /// The text.
        text: String,
    },
}

/// Fewer bytes without a unit are a unit that was forgotten.
const LEAST_WITHOUT_UNIT: u64 = 4096;

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let no_size = |_| ParseBytesError::NoSize { text: text.to_owned() };
        let bytes = parse_size::parse_size(text).map_err(no_size)?;
        if (1..LEAST_WITHOUT_UNIT).contains(&bytes) && text.trim().parse::<f64>().is_ok() {
            return Err(ParseBytesError::NoUnit { text: text.trim().to_owned() });
        }
        Ok(Bytes(bytes))
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 += other.0;
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0 - other.0)
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(bytes: I) -> Bytes {
        bytes.fold(Bytes(0), Add::add)
    }
}

/// A duration in milliseconds.
///
/// ```
/// use rematic_trace::Millis;
/// assert_eq!(Millis(73.79308).to_string(), "73.8 ms");
/// assert_eq!(Millis(0.01234).to_string(), "12.3 µs");
/// assert_eq!(Millis(12_340.0).to_string(), "12.3 s");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub f64);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            ms if ms >= 1000.0 => (ms / 1000.0, "s"),
            ms if ms >= 1.0 || ms == 0.0 => (ms, "ms"),
            ms => (ms * 1000.0, "µs"),
        };
        let digits = if value >= 100.0 {
            0
        } else if value >= 10.0 {
            1
        } else {
            2
        };
        f.pad(&format!("{value:.digits$} {unit}"))
    }
}

impl Add for Millis {
    type Output = Millis;
    fn add(self, other: Millis) -> Millis {
        Millis(self.0 + other.0)
    }
}

impl AddAssign for Millis {
    fn add_assign(&mut self, other: Millis) {
        self.0 += other.0;
    }
}

impl Sub for Millis {
    type Output = Millis;
    fn sub(self, other: Millis) -> Millis {
        Millis(self.0 - other.0)
    }
}

impl Sum for Millis {
    fn sum<I: Iterator<Item = Millis>>(times: I) -> Millis {
        times.fold(Millis(0.0), Add::add)
    }
}

/// A number of floating-point operations; a multiply-add counts as two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flops(pub u128);

impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = "";
        for larger in ["k", "M", "G", "T", "P", "E"] {
            if value < 1000.0 {
                break;
            }
            value /= 1000.0;
            unit = larger;
        }
        f.pad(&format!("{value:.1} {unit}FLOP"))
    }
}

impl Add for Flops {
    type Output = Flops;
    fn add(self, other: Flops) -> Flops {
        Flops(self.0 + other.0)
    }
}

impl Sum for Flops {
    fn sum<I: Iterator<Item = Flops>>(flops: I) -> Flops {
        flops.fold(Flops(0), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_every_usual_spelling() {
        for (text, bytes) in [
            ("4096", 4096),
            ("1KiB", 1024),
            ("1kB", 1000),
            ("1.6GiB", 1_717_986_918),
            ("80 GB", 80_000_000_000),
            ("2T", 2_000_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn texts_that_are_not_sizes_are_refused_with_a_hint() {
        for text in ["", "-1GiB", "lots", "1 parsec", "99999999999GiB", "NaN", "1e400"] {
            let error = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("38GiB"), "{error}");
        }
    }

    #[test]
    fn rounding_goes_up_and_keeps_multiples() {
        assert_eq!(Bytes(0).round_up_to(Bytes(512)), Bytes(0));
        assert_eq!(Bytes(1).round_up_to(Bytes(512)), Bytes(512));
        assert_eq!(Bytes(1024).round_up_to(Bytes(512)), Bytes(1024));
        assert_eq!(Bytes(7).round_up_to(Bytes(1)), Bytes(7));
    }
}
