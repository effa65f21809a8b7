//! What collectives cost, against figures that others measured or worked out.

use rematic_cost::{Device, GbPerSecond, Links};
use rematic_trace::{Axis, Collective, CollectiveKind, Place};

const MB: u64 = 1 << 20;

fn place(axes: &[(&str, u32)]) -> Place {
    let axis = |(name, size): &(&str, u32)| Axis { name: (*name).to_owned(), size: *size, coordinate: 0 };
    Place { axes: axes.iter().map(axis).collect() }
}

/// In milliseconds.
fn time(links: &Links, kind: CollectiveKind, axes: &[(&str, u32)], axis: &str, bytes: u64) -> f64 {
    let place = place(axes);
    let group = u32::try_from(place.group(axis).unwrap()).unwrap();
    links.time(&Collective { kind, group, axis: axis.to_owned(), bytes }, &place).0
}

fn links(device: &str) -> Links {
    Device::find(device).unwrap().links
}

fn near(found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() <= tolerance, "{found} for {expected}");
}

/// The table that AutoParallel's overlap simulator carries for eight H100 (`colls8_8.table`).
#[test]
fn all_reduces_of_a_node_take_what_was_measured() {
    for (megabytes, milliseconds) in [(1, 0.028), (64, 0.3822), (1024, 5.2756)] {
        let found = time(&links("h100"), CollectiveKind::AllReduce, &[("dp", 8)], "dp", megabytes * MB);
        near(found, milliseconds, 0.04);
    }
}

#[test]
fn a_gather_is_latency_and_bytes_over_the_bus() {
    // Simple: 8.4 µs, 7 steps of 3.4 µs, and 7/8 of a GiB at 370 GB/s.
    let found = time(&links("h100"), CollectiveKind::AllGather, &[("dp", 8)], "dp", 1 << 30);
    near(found, (8.4 + 7.0 * 3.4) / 1e3 + 0.875 * f64::from(1 << 30) / 370e6, 1e-9);
    let scattered = time(&links("h100"), CollectiveKind::ReduceScatter, &[("dp", 8)], "dp", 1 << 30);
    assert_eq!(found, scattered);
    // The smallest messages take the protocol with the least latency: 6.6 µs and 7 steps of 0.6 µs.
    near(time(&links("h100"), CollectiveKind::AllGather, &[("dp", 8)], "dp", 8), (6.6 + 7.0 * 0.6) / 1e3, 1e-4);
}

#[test]
fn cards_without_nvlink_send_over_pcie() {
    let gather = |device: &str| time(&links(device), CollectiveKind::AllGather, &[("dp", 8)], "dp", 1 << 30);
    near(gather("l40s"), 0.875 * f64::from(1 << 30) / 23.94e6, 0.01);
    assert!(gather("t4") > 1.9 * gather("l40s") && gather("h100-pcie") > 9.0 * gather("h100"));
    assert!(!links("h100-pcie").direct && !links("l40s").direct && links("h100").direct);
}

/// Rings between nodes go through the adapters of all members that a node has.
#[test]
fn groups_that_span_nodes_are_held_by_their_adapters() {
    let a100 = links("a100-80");
    let gather = |axes: &[(&str, u32)], axis: &str| time(&a100, CollectiveKind::AllGather, axes, axis, 1 << 30);
    // Eight adapters of 25 GB/s, of which eight nodes reach all.
    near(gather(&[("dp", 64)], "dp"), 63.0 / 64.0 * f64::from(1 << 30) / 200e6, 0.06);
    // With eight ranks of another axis inside a node, each group has one adapter.
    near(gather(&[("dp", 8), ("tp", 8)], "dp"), 7.0 / 8.0 * f64::from(1 << 30) / 25e6, 0.01);
    assert_eq!(gather(&[("dp", 8), ("tp", 8)], "tp"), gather(&[("dp", 8)], "dp"));
    // Two nodes reach 0.77 + 0.23 / 7 of it.
    near(gather(&[("dp", 16)], "dp"), 15.0 / 16.0 * f64::from(1 << 30) / (200e6 * (0.77 + 0.23 / 7.0)), 0.03);
    // Two axes in one group stand as one.
    assert_eq!(gather(&[("replicate", 8), ("shard", 8)], "replicate+shard"), gather(&[("dp", 64)], "dp"));
}

#[test]
fn a_network_is_never_faster_than_the_links_of_a_node() {
    let fast = Links { network: GbPerSecond(1e6), ..links("h100") };
    let apart = time(&fast, CollectiveKind::AllGather, &[("dp", 16)], "dp", 1 << 30);
    assert!(apart > 15.0 / 16.0 * f64::from(1 << 30) / 370e6);
}

#[test]
fn alone_or_unknown_takes_no_time_and_more_bytes_never_less() {
    let h100 = links("h100");
    assert_eq!(time(&h100, CollectiveKind::AllReduce, &[("dp", 1)], "dp", 1 << 30), 0.0);
    assert_eq!(h100.time(&Collective::unknown(), &Place::default()).0, 0.0);
    let kinds = [
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllReduce,
        CollectiveKind::AllToAll,
        CollectiveKind::Broadcast,
        CollectiveKind::Send,
        CollectiveKind::Receive,
    ];
    for kind in kinds {
        for ranks in [2, 3, 8, 9, 64, 1000] {
            let mut before = 0.0;
            for bytes in [0, 1, 1 << 10, 1 << 20, 1 << 26, 1 << 32, u64::MAX] {
                let found = time(&h100, kind, &[("dp", ranks)], "dp", bytes);
                assert!(found.is_finite() && found >= before, "{kind} of {bytes} over {ranks}: {found} after {before}");
                before = found;
            }
        }
    }
}

#[test]
fn every_device_has_links() {
    for device in rematic_cost::Devices::builtin().all() {
        let Links { bus, network, per_node, .. } = device.links;
        assert!(bus.0 >= network.0 / 8.0 && bus.0 >= 10.0 && per_node >= 8, "{}", device.name);
    }
    assert_eq!(links("gb200").per_node, 72);
    assert_eq!(links("a100-80").bus, GbPerSecond(240.0));
}
