//! Measured times: what matches, what falls back, and what is refused.

mod step;

use rematic_cost::{CostError, CostRule, CostTable, Costs, Device, Signature, Signatures};
use rematic_trace::{Dtype, Flags, Layout, Millis};
use step::Step;

/// Two equal matmuls, one with a transposed factor, a view and an allocation.
fn step() -> Step {
    let mut step = Step::new();
    let (a, b, c) = (step.f32(&[64, 64]), step.f32(&[64, 64]), step.f32(&[64, 64]));
    let transposed = step.tensor(&Layout { dtype: Dtype::F32, shape: vec![64, 64], strides: vec![1, 64] });
    step.run("mm.default", &[a, b], &[c]);
    step.run("mm.default", &[a, c], &[b]);
    step.run("mm.default", &[a, transposed], &[c]);
    step.run("empty.memory_format", &[], &[c]);
    step.flags = Flags { view: true, ..Flags::default() };
    step.run("t.default", &[a], &[transposed]);
    step
}

fn matmul() -> Signature {
    let matrix = Layout::contiguous(Dtype::F32, &[64, 64]);
    Signature { op: "mm.default".into(), inputs: vec![matrix.clone(); 2], outputs: vec![matrix] }
}

#[test]
fn equal_operators_share_a_signature() {
    let step = step();
    let signatures = Signatures::new(&step.trace);
    let counts: Vec<usize> = signatures.all().iter().map(|(_, count)| *count).collect();
    assert_eq!(counts, [2, 1]);
    assert_eq!(signatures.all()[0].0, matmul());
    assert_eq!(signatures.of_op().items(), [Some(0), Some(0), Some(1), None, None]);
}

#[test]
fn what_was_measured_counts_and_the_rest_is_physical() {
    let step = step();
    let device = Device::find("a100-80").unwrap();
    let table = CostTable::new("bench", vec![(matmul(), Millis(0.5))]).unwrap();
    let costs = Costs::measured(&step.trace, &device, &table).unwrap();
    let physical = Costs::new(&step.trace, &device, CostRule::Physical).unwrap();
    assert_eq!(costs.times().items()[..2], [Millis(0.5); 2]);
    assert_eq!(costs.times().items()[2..], physical.times().items()[2..]);
    assert_eq!((costs.flops(), costs.bytes()), (physical.flops(), physical.bytes()));
    let measured = costs.measurements().unwrap();
    assert_eq!((measured.ops, measured.of_ops, measured.time), (2, 3, Millis(1.0)));
    assert_eq!(measured.of_time, costs.step().time);
    assert!(measured.to_string().starts_with("2 of 3 kernels, 99."), "{measured}");
    assert!(measured.to_string().ends_with("measured on bench"), "{measured}");
    assert_eq!(physical.measurements(), None);
    let shares = physical.shares(&Signatures::new(&step.trace));
    assert!((shares[0] - 2.0 / 3.0).abs() < 1e-12 && (shares[1] - 1.0 / 3.0).abs() < 1e-12, "{shares:?}");
}

#[test]
fn a_type_without_a_rate_is_fine_where_it_was_measured() {
    let mut step = Step::new();
    let (a, b, c) = (step.of(Dtype::F8, &[8, 8]), step.of(Dtype::F8, &[8, 8]), step.of(Dtype::F8, &[8, 8]));
    step.run("mm.default", &[a, b], &[c]);
    let device = Device::find("a100-80").unwrap();
    assert!(Costs::new(&step.trace, &device, CostRule::Physical).is_err());
    let signature = Signatures::new(&step.trace).all()[0].0.clone();
    let table = CostTable::new("bench", vec![(signature, Millis(0.1))]).unwrap();
    assert_eq!(Costs::measured(&step.trace, &device, &table).unwrap().times().items(), [Millis(0.1)]);
}

#[test]
fn a_table_for_another_step_is_refused() {
    let matrix = Layout::contiguous(Dtype::F32, &[8, 8]);
    let other = Signature { inputs: vec![matrix; 2], ..matmul() };
    let table = CostTable::new("bench", vec![(other, Millis(0.5))]).unwrap();
    let error = Costs::measured(&step().trace, &Device::find("a100-80").unwrap(), &table).unwrap_err();
    assert_eq!(
        error.to_string(),
        "none of the step's 2 distinct operators is among the 1 that were measured on bench; measure this step, or use \
         the physical rule"
    );
}

#[test]
fn tables_read_back() {
    let table = CostTable::new("a \"GPU\"", vec![(matmul(), Millis(0.1 + 0.2))]).unwrap();
    assert_eq!(CostTable::from_json(&table.to_json(), "t.json").unwrap(), table);
    let empty = CostTable::new("none", Vec::new()).unwrap();
    assert_eq!(CostTable::from_json(&empty.to_json(), "t.json").unwrap(), empty);
}

#[test]
fn what_is_wrong_is_named() {
    let table = |ops: &str| format!(r#"{{"format":"rematic-costs","version":1,"device":"d","ops":[{ops}]}}"#);
    let row = |input: &str, ms: &str| format!(r#"{{"op":"mm.default","inputs":[{input}],"outputs":[],"ms":{ms}}}"#);
    let good = row(r#"["f32",[2],[1]]"#, "1.5");
    for (text, parts) in [
        (String::new(), ["t.json is not a cost table", "EOF"]),
        ("[]".to_owned(), ["t.json is not a cost table", "rematic.benchmark"]),
        (r#"{"format":"rematic-trace","version":1}"#.to_owned(), ["`rematic-trace` version 1", "`rematic-costs`"]),
        (r#"{"format":"rematic-costs","version":9}"#.to_owned(), ["version 9", "up to version 1"]),
        (r#"{"format":"rematic-costs","version":1,"ops":[]}"#.to_owned(), ["missing field", "`device`"]),
        (table(&row(r#"["float",[2],[1]]"#, "1")), ["row 0 (mm.default) has float", "f32 or bf16"]),
        (table(&row(r#"["f32",[2],[1,2]]"#, "1")), ["strides [1, 2]", "one stride for each extent"]),
        (table(&row("", "-1")), ["row 0 (mm.default) has -1 ms", "not negative"]),
        (table(&row("", r#""fast""#)), ["ops[0].ms", "expected f64"]),
        (table(&format!("{good},{good}")), ["row 1 (mm.default) has the same as row 0", "once"]),
    ] {
        let error = CostTable::from_json(&text, "t.json").unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
    let error = CostTable::read(std::path::Path::new("no/such/table.json")).unwrap_err();
    assert!(matches!(error, CostError::TableFile { .. }), "{error}");
}
