use crate::run::{refused, run};

const GOOD: &str = r#"
[[device]]
name = "mine"
product = "My accelerator"
tflops = { f32 = 10.0, bf16 = 100.0 }
memory_gb = 24
dram_gb_per_s = 900
pcie = 4
"#;

fn with_file(text: &[u8], check: impl Fn(&str)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("devices.toml");
    std::fs::write(&path, text).unwrap();
    check(path.to_str().unwrap());
}

#[test]
fn a_good_device_file_is_read() {
    with_file(GOOD.as_bytes(), |path| {
        let ran = run(&["devices", "--json", "--device-file", path]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.contains("My accelerator"));
        let ran = run(&["stats", "gpt2", "--layers", "1", "--device", "mine", "--device-file", path]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    });
}

#[test]
fn broken_device_files_are_refused_by_file_and_field() {
    let change = |from: &str, to: &str| {
        assert!(GOOD.contains(from));
        GOOD.replace(from, to)
    };
    let cases: Vec<(String, &[&str])> = vec![
        (String::new(), &["no device", "[[device]]"]),
        ("not toml".to_owned(), &["not valid TOML", "line 1"]),
        ("[[device".to_owned(), &["not valid TOML", "line 1"]),
        ("device = 3".to_owned(), &["no device", "[[device]]"]),
        ("[gpu]\nname = 'x'".to_owned(), &["unknown table `gpu`", "[[device]]"]),
        (change("name = \"mine\"", ""), &["number 1", "missing field `name`"]),
        (change("\"mine\"", "\"My GPU\""), &["`name` is \"My GPU\"", "lower-case"]),
        (change("memory_gb = 24", ""), &["`mine`", "missing field `memory_gb`"]),
        (change("24", "0"), &["`memory_gb` is 0", "above 0"]),
        (change("24", "-24"), &["`memory_gb` is -24"]),
        (change("24", "nan"), &["`memory_gb` is NaN"]),
        (change("24", "1e300"), &["`memory_gb` is too large", "at most 1000000"]),
        (change("900", "inf"), &["`dram_gb_per_s` is inf", "finite"]),
        (change("900", "\"fast\""), &["`dram_gb_per_s`: invalid type: string \"fast\""]),
        (change("f32 = 10.0, ", ""), &["`tflops`: missing field `f32`"]),
        (change("bf16 = 100.0", "bf16 = 0"), &["`tflops.bf16` is 0"]),
        (change("bf16 = 100.0", "fp4 = 1"), &["`tflops.fp4`: unknown field", "bf16"]),
        (change("pcie = 4", ""), &["`pcie` is missing"]),
        (change("pcie = 4", "pcie = 40"), &["`pcie` is 40", "from 1 to 9"]),
        (change("pcie = 4", "pcie = 4\nmatmul_efficiency = 1.5"), &["`matmul_efficiency` is too large", "at most 1"]),
        (change("pcie = 4", "pcie = 4\nmemroy = 4"), &["unknown field `memroy`", "memory_gb"]),
        (format!("{GOOD}{GOOD}"), &["`mine` is there twice"]),
    ];
    for (text, parts) in cases {
        with_file(text.as_bytes(), |path| {
            refused(&["devices", "--device-file", path], parts);
            refused(&["stats", "gpt2", "--device-file", path], &[path]);
        });
    }
    with_file(b"\xff\xfe", |path| refused(&["devices", "--device-file", path], &[path, "--device-file"]));
}

#[test]
fn device_files_that_cannot_be_opened_are_named() {
    refused(&["devices", "--device-file", "/no/such/devices.toml"], &["/no/such/devices.toml", "--device-file"]);
    refused(&["devices", "--device-file", "/"], &["device file /", "--device-file"]);
}

/// A rate that the step needs and the device does not have.
#[test]
fn a_device_without_the_rate_is_refused() {
    with_file(GOOD.as_bytes(), |path| {
        let arguments = ["stats", "gpt2", "--dtype", "fp16", "--device", "mine", "--device-file", path];
        refused(&arguments, &["fp16", "mine", "--device-file"]);
        refused(&["stats", "gpt2", "--device", "mien", "--device-file", path], &["`mien`", "did you mean mine?"]);
    });
}
