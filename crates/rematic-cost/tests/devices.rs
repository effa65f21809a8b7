//! The built-in devices, and the wording of what can be wrong with a user's.

use std::path::Path;

use rematic_cost::{CostError, DEFAULT_MATMUL_EFFICIENCY, Device, Devices, GbPerSecond, HostLink, TflopPerSecond};
use rematic_trace::{Bytes, Millis};

const GOOD: &str = r#"
[[device]]
name = "mine"
product = "My device"
tflops = { f32 = 10, bf16 = 100.5 }
memory_gb = 24
dram_gb_per_s = 1000
pcie = 4
"#;

fn extended(text: &str) -> Result<Devices, CostError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("my.toml");
    std::fs::write(&path, text).unwrap();
    let mut devices = Devices::builtin();
    devices.extend_from(&path).map(|()| devices)
}

/// The error for a file, from the file's name on.
#[track_caller]
fn error(text: &str) -> String {
    let error = extended(text).unwrap_err().to_string();
    error[error.find("my.toml").expect("the file is named")..].to_owned()
}

#[test]
fn every_device_is_there() {
    let devices = Devices::builtin();
    let names: Vec<&str> = devices.all().iter().map(|device| device.name.as_str()).collect();
    let expected = "v100 a100-40 a100-80 h100 h100-pcie h200 h20 gh200 b200 b300 gb200 l4 l40s rtx-6000-ada a6000 a10g t4 \
                    rtx-3090 rtx-4090 rtx-5090 mi250x mi300x mi325x mi350x mi355x";
    assert_eq!(names.join(" "), expected);
}

#[test]
fn the_sheet_is_read_wholly() {
    let gb200 = Device::find("gb200").unwrap();
    assert_eq!(gb200.host_link, HostLink::C2c(GbPerSecond(450.0)));
    assert_eq!(gb200.peaks.tf32, Some(TflopPerSecond(1250.0)));
    assert_eq!((gb200.memory, gb200.dram), (Bytes(186_000_000_000), GbPerSecond(8000.0)));
    assert!(gb200.efficiency_is_measured && gb200.matmul_efficiency == 0.73);
    assert_eq!(gb200.launch, Millis(0.0009));
    let a10g = Device::find("a10g").unwrap();
    assert_eq!(a10g.unverified, ["tflops.f32", "tflops.bf16", "tflops.f16", "launch_us"]);
    assert_eq!((a10g.link, a10g.peaks.tf32, a10g.host_link), (None, None, HostLink::Pcie(4)));
    assert!(!a10g.efficiency_is_measured && a10g.matmul_efficiency == DEFAULT_MATMUL_EFFICIENCY);
    let v100 = Device::find("v100").unwrap();
    assert_eq!((v100.peaks.bf16, v100.peaks.f16), (None, Some(TflopPerSecond(125.0))));
}

/// So that the named default stays what its documentation says.
#[test]
fn the_default_efficiency_is_the_median_of_the_measured_ones() {
    let mut shares: Vec<f64> = ["a100-80", "h100", "b200", "gb200", "mi300x", "mi325x", "mi355x"]
        .map(|name| Device::find(name).unwrap().matmul_efficiency)
        .to_vec();
    shares.sort_by(f64::total_cmp);
    assert_eq!(shares[3], DEFAULT_MATMUL_EFFICIENCY);
}

#[test]
fn names_are_found_in_every_usual_spelling() {
    for name in ["rtx-4090", "RTX 4090", " rtx_4090 "] {
        assert_eq!(Device::find(name).unwrap().name, "rtx-4090");
    }
}

#[test]
fn a_wrong_name_gets_the_nearest_ones() {
    let message = |name| Device::find(name).unwrap_err().to_string();
    assert_eq!(
        message("a100"),
        "there is no device `a100` among the 25 known ones; did you mean a100-40 or a100-80? `rematic devices` lists \
         them all"
    );
    for (name, expected) in [
        ("4090", "did you mean rtx-4090?"),
        ("h10", "did you mean h100 or h100-pcie?"),
        ("h100-80gb", "did you mean h100?"),
        ("mi300", "did you mean mi300x?"),
        ("rtx-4909", "did you mean rtx-4090?"),
        ("rtx", "did you mean rtx-6000-ada, rtx-3090, rtx-4090 or rtx-5090?"),
        ("tpu-v5", "no name comes near it;"),
        ("", "no name comes near it;"),
    ] {
        assert!(message(name).contains(expected), "{}", message(name));
    }
}

#[test]
fn a_users_device_is_added_or_replaces_a_known_one() {
    let devices = extended(GOOD).unwrap();
    assert_eq!(devices.all().len(), 26);
    assert_eq!(devices.find("mine").unwrap().peaks.bf16, Some(TflopPerSecond(100.5)));

    let devices = extended(&GOOD.replace("mine", "h100")).unwrap();
    assert_eq!(devices.all().len(), 25);
    let replaced = devices.find("h100").unwrap();
    assert_eq!((replaced.memory, replaced.torch_datasheet.is_none()), (Bytes(24_000_000_000), true));
}

#[test]
fn wrong_values_are_named_with_file_device_and_field() {
    let positive = "write a finite number above 0";
    for (right, wrong, field, found, needed) in [
        ("= 1000", "= -3", "dram_gb_per_s", "-3", positive),
        ("= 1000", "= 0", "dram_gb_per_s", "0", positive),
        ("= 1000", "= inf", "dram_gb_per_s", "inf", positive),
        ("= 1000", "= nan", "dram_gb_per_s", "NaN", positive),
        ("= 24", "= 1e300", "memory_gb", "too large", "write a number of GB above 0 and at most 1000000"),
        ("pcie = 4", "pcie = 40", "pcie", "40", "write a PCIe generation from 1 to 9"),
        ("\"mine\"", "\"My GPU\"", "name", "\"My GPU\"", "write a name of lower-case letters, digits, `-` and `.`"),
        ("\"My device\"", "\"\"", "product", "empty", "write a text that is not empty"),
    ] {
        let message = error(&GOOD.replace(right, wrong));
        let name = if field == "name" { "My GPU" } else { "mine" };
        assert!(message.starts_with(&format!("my.toml: device `{name}`: `{field}` is {found}")), "{message}");
        assert!(message.ends_with(needed), "{message}");
    }
    for (right, wrong, field, found) in [
        ("= 1000", "= \"fast\"", "dram_gb_per_s", "string \"fast\", expected f64"),
        ("100.5", "true", "tflops.bf16", "boolean `true`, expected f64"),
        (
            "= { f32 = 10, bf16 = 100.5 }",
            "= 5",
            "tflops",
            "integer `5`, expected a table such as { f32 = 19.5, bf16 = 312 }",
        ),
    ] {
        let message = error(&GOOD.replace(right, wrong));
        assert_eq!(message, format!("my.toml: device `mine`: `{field}`: invalid type: {found}"));
    }
    let with = |line: &str| error(&format!("{GOOD}{line}\n"));
    let expected = "my.toml: device `mine`: `matmul_efficiency` is too large; write a share above 0 and at most 1";
    assert_eq!(with("matmul_efficiency = 87"), expected);
    assert!(with("c2c_gb_per_s = 450").contains("not both"));
    assert!(with("unverified = [\"speed\"]").contains("`unverified[0]` is \"speed\", no figure; write a list"));
    assert_eq!(
        with("torch_datasheet = { name = \"X\", f32 = 1 }"),
        "my.toml: device `mine`: `torch_datasheet`: missing field `dram_gb_per_s`"
    );
}

#[test]
fn missing_and_unknown_fields_are_named() {
    let without = |line: &str| error(&GOOD.replace(line, ""));
    assert_eq!(without("dram_gb_per_s = 1000"), "my.toml: device `mine`: missing field `dram_gb_per_s`");
    assert_eq!(without("f32 = 10, "), "my.toml: device `mine`: `tflops`: missing field `f32`");
    assert_eq!(without("name = \"mine\""), "my.toml: device number 1: missing field `name`");
    assert!(without("pcie = 4").contains("`pcie` is missing; write it (`pcie = 4`, a generation), or"));
    let message = error(&GOOD.replace("dram_gb_per_s", "dram"));
    assert!(
        message.starts_with("my.toml: device `mine`: `dram`: unknown field `dram`, expected one of `name`, `product`"),
        "{message}"
    );
    let message = error(&GOOD.replace("bf16 =", "bfloat16 ="));
    assert!(message.contains("`tflops.bfloat16`: unknown field `bfloat16`, expected one of `f64`"), "{message}");
}

#[test]
fn files_without_devices_are_refused() {
    assert_eq!(error(""), "my.toml has no device; begin one with [[device]] and its `name`");
    assert_eq!(error("device = 3"), "my.toml has no device; begin one with [[device]] and its `name`");
    assert_eq!(error("device = [3]"), "my.toml has no device; begin one with [[device]] and its `name`");
    assert_eq!(error("[defaults]"), "my.toml: unknown table `defaults`; a device file holds only [[device]] tables");
    assert_eq!(error(&GOOD.repeat(2)), "my.toml: device `mine` is there twice; remove or rename one");
    assert!(error("[[device]").starts_with("my.toml is not valid TOML; correct it here:\nTOML parse error at line 1"));
    let missing = Devices::builtin().extend_from(Path::new("no/such.toml")).unwrap_err().to_string();
    assert!(missing.starts_with("cannot read the device file no/such.toml: "), "{missing}");
    assert!(missing.ends_with("check the path after --device-file"), "{missing}");
}
