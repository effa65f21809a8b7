//! Links between devices as options name them.

use std::fmt;
use std::str::FromStr;

use rematic_cost::{GbPerSecond, Links};

/// `link`: what connects the devices of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// What a ring of NCCL moves through each device.
    pub bus: GbPerSecond,
    /// Whether devices are connected with each other, and not only with the host.
    pub direct: bool,
}

/// `network`: what each device sends to other nodes, one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network(pub GbPerSecond);

/// `host-bandwidth`: what copies between a device and pinned memory of its host reach, one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostBandwidth(pub GbPerSecond);

/// Generations of NVLink with what each device has of it in one direction, in GB/s.
const NVLINK: [(&str, f64); 4] = [("nvlink2", 150.0), ("nvlink3", 300.0), ("nvlink4", 450.0), ("nvlink5", 900.0)];
const PCIE: [(&str, u8); 3] = [("pcie3", 3), ("pcie4", 4), ("pcie5", 5)];
/// Generations of InfiniBand, with one adapter for each device.
const INFINIBAND: [(&str, f64); 4] = [("edr", 12.5), ("hdr", 25.0), ("ndr", 50.0), ("xdr", 100.0)];

/// A name or a rate that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoConnection {
    found: String,
    names: String,
    example: &'static str,
}

impl fmt::Display for NoConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoConnection { found, names, example } = self;
        write!(f, "`{found}` is none; give {names}, or a number of GB per second such as {example}")
    }
}

impl std::error::Error for NoConnection {}

impl FromStr for Link {
    type Err = NoConnection;

    /// A name; or the bus bandwidth that NCCL's tests print, in GB/s.
    fn from_str(text: &str) -> Result<Self, NoConnection> {
        let name = text.trim().to_lowercase();
        if let Some((_, rate)) = NVLINK.iter().find(|(known, _)| *known == name) {
            return Ok(Link { bus: Links::ring(GbPerSecond(*rate)), direct: true });
        }
        if let Some((_, generation)) = PCIE.iter().find(|(known, _)| *known == name) {
            return Ok(Link { bus: Links::pcie(*generation), direct: false });
        }
        // No PCIe is as fast as the oldest NVLink.
        let bus = rate(&name);
        bus.map(|bus| Link { bus, direct: bus.0 > Links::pcie(5).0 }).ok_or_else(|| NoConnection {
            found: text.to_owned(),
            names: names(NVLINK.iter().map(|known| known.0).chain(PCIE.iter().map(|known| known.0))),
            example: "370",
        })
    }
}

impl FromStr for HostBandwidth {
    type Err = NoConnection;

    /// A generation of PCIe with 16 lanes, or GB/s.
    fn from_str(text: &str) -> Result<Self, NoConnection> {
        let name = text.trim().to_lowercase();
        let named = PCIE.iter().find(|(known, _)| *known == name).map(|(_, generation)| Links::pcie(*generation));
        named.or_else(|| rate(&name)).map(HostBandwidth).ok_or_else(|| NoConnection {
            found: text.to_owned(),
            names: names(PCIE.iter().map(|known| known.0)),
            example: "50",
        })
    }
}

impl FromStr for Network {
    type Err = NoConnection;

    /// A name, or GB/s of each device.
    fn from_str(text: &str) -> Result<Self, NoConnection> {
        let name = text.trim().to_lowercase();
        let named = INFINIBAND.iter().find(|(known, _)| *known == name).map(|(_, rate)| GbPerSecond(*rate));
        named.or_else(|| rate(&name)).map(Network).ok_or_else(|| NoConnection {
            found: text.to_owned(),
            names: names(INFINIBAND.iter().map(|known| known.0)),
            example: "50",
        })
    }
}

/// The most GB/s that anybody means.
const MOST: f64 = 1e6;

fn rate(text: &str) -> Option<GbPerSecond> {
    let number = text.strip_suffix("gb/s").unwrap_or(text).trim();
    number.parse().ok().filter(|rate| (1e-3..=MOST).contains(rate)).map(GbPerSecond)
}

fn names(names: impl Iterator<Item = &'static str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_names_and_rates() {
        let link = |text: &str| text.parse::<Link>().unwrap();
        assert_eq!(link("nvlink3"), Link { bus: GbPerSecond(240.0), direct: true });
        assert_eq!(link("NVLink3"), link("240"));
        assert_eq!(link("240 GB/s"), link("240"));
        assert!(!link("pcie4").direct && (link("pcie4").bus.0 - 23.94).abs() < 1e-9 && !link("12").direct);
        assert_eq!("ndr".parse(), Ok(Network(GbPerSecond(50.0))));
        assert_eq!("12.5GB/s".parse(), Ok(Network(GbPerSecond(12.5))));
    }

    #[test]
    fn what_is_none_is_said_with_what_there_is() {
        for text in ["", "nvlink", "-1", "0", "nan", "inf", "1e300", "3 kg"] {
            let said = text.parse::<Link>().unwrap_err().to_string();
            let rest =
                "nvlink2, nvlink3, nvlink4, nvlink5, pcie3, pcie4, pcie5, or a number of GB per second such as 370";
            assert_eq!(said, format!("`{text}` is none; give {rest}"));
            let said = text.parse::<Network>().unwrap_err().to_string();
            assert_eq!(
                said,
                format!("`{text}` is none; give edr, hdr, ndr, xdr, or a number of GB per second such as 50")
            );
        }
    }
}
