//! What `fit` answers fits, and the value next to it does not, by studies of their own.

use rematic::{
    CostRule, CostSource, Devices, Fit, FitFound, FitRequest, FitSetup, FitValue, Fixed, Fsdp2, Limits, Options,
    Planner, Source, SourceSteps, Study, Target, Verdict,
};

fn target(device: &str) -> Target {
    Target::find(device, None, CostSource::Rule(CostRule::Physical)).unwrap()
}

fn fit(options: &Options, device: &str, fixed: Fixed) -> Fit {
    let name = "llama-3-8b";
    let steps = SourceSteps { name: name.to_owned(), source: Source::open(name).unwrap(), options: options.clone() };
    let devices = Devices::builtin().all().to_vec();
    let request = FitRequest {
        steps: &steps,
        sharding: Fsdp2::over(0),
        target: target(device),
        devices,
        fixed,
        limits: Limits::default(),
    };
    request.answer().unwrap()
}

fn fits(options: &Options, setup: &FitSetup, planned: bool) -> bool {
    let options = Options { batch: Some(setup.batch), seq: setup.seq, ..options.clone() };
    let whole = Source::open("llama-3-8b").unwrap().trace(&options).unwrap();
    let ranks = u32::try_from(setup.gpus).unwrap();
    let step = match ranks {
        1 => whole,
        ranks => rematic::fsdp2(&whole, &Fsdp2::over(ranks), &rematic::fsdp2_layers(&whole)).unwrap(),
    };
    let study = Study::new(step, target(&setup.device), Limits::default()).unwrap();
    if planned {
        return study.plan(Planner::Exact, None).unwrap().verdict != Verdict::Infeasible;
    }
    study.memory().unwrap().fits()
}

fn count(value: Option<&FitValue>) -> u64 {
    match value {
        Some(FitValue::Count(count)) => *count,
        other => panic!("{other:?} is no number"),
    }
}

#[track_caller]
fn check(options: &Options, found: &FitFound, planned: bool, next: impl Fn(&FitSetup, &FitValue) -> FitSetup) {
    let setup = found.setup.as_ref().unwrap();
    assert!(fits(options, setup, planned), "{found:?}");
    let neighbour = found.neighbour.as_ref().unwrap();
    assert!(!fits(options, &next(setup, neighbour), planned), "{found:?}");
}

#[test]
fn the_answers_fit_and_their_neighbours_do_not() {
    let options = Options { layers: Some(2), ..Options::default() };
    let found = fit(&options, "a100-40", Fixed { gpus: Some(1), device: true, ..Fixed::default() });
    assert_eq!(found.answers.len(), 2);
    let [batch, seq] = &found.answers[..] else { panic!("{found:?}") };
    for (planned, batch, seq) in [(false, &batch.as_it_is, &seq.as_it_is), (true, &batch.with_a_plan, &seq.with_a_plan)]
    {
        check(&options, batch, planned, |setup, next| FitSetup { batch: count(Some(next)), ..setup.clone() });
        check(&options, seq, planned, |setup, next| FitSetup { seq: Some(count(Some(next))), ..setup.clone() });
    }
    assert!(count(batch.with_a_plan.value.as_ref()) >= count(batch.as_it_is.value.as_ref()));
    let rates: Vec<f64> = found.setups.iter().filter_map(|setup| setup.tokens_per_second).collect();
    assert!(rates.len() >= 2 && rates.windows(2).all(|pair| pair[0] >= pair[1]), "{rates:?}");
}

#[test]
fn gpus_and_devices_are_as_few_and_small_as_can_be() {
    let options = Options { layers: Some(4), ..Options::default() };
    let fixed = Fixed { batch: Some(1), seq: Some(2048), ..Fixed::default() };
    let found = fit(&options, "rtx-4090", fixed);
    let [gpus, device] = &found.answers[..] else { panic!("{found:?}") };
    for (planned, gpus, device) in
        [(false, &gpus.as_it_is, &device.as_it_is), (true, &gpus.with_a_plan, &device.with_a_plan)]
    {
        if gpus.neighbour.is_some() {
            check(&options, gpus, planned, |setup, next| FitSetup { gpus: count(Some(next)), ..setup.clone() });
        } else {
            assert_eq!(gpus.value, Some(FitValue::Count(1)));
        }
        check(&options, device, planned, |setup, next| match next {
            FitValue::Device(name) => FitSetup { device: name.clone(), ..setup.clone() },
            other => panic!("{other:?}"),
        });
    }
}

#[test]
fn a_saved_trace_is_asked_for_gpus_and_devices_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.rmt");
    let small = Options { layers: Some(1), seq: Some(256), ..Options::default() };
    Source::open("gpt2").unwrap().trace(&small).unwrap().write(&path).unwrap();
    let name = path.to_str().unwrap().to_owned();
    let steps = SourceSteps { source: Source::open(&name).unwrap(), name, options: Options::default() };
    let request = FitRequest {
        steps: &steps,
        sharding: Fsdp2::over(0),
        target: target("t4"),
        devices: Devices::builtin().all().to_vec(),
        fixed: Fixed::default(),
        limits: Limits::default(),
    };
    let found = request.answer().unwrap();
    assert_eq!(found.answers.len(), 2);
    assert_eq!(found.answers[0].as_it_is.value, Some(FitValue::Count(1)));
    assert!(found.fits());
}
