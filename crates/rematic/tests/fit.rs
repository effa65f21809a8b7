//! What `fit` answers fits, and the value next to it does not, by studies of their own.

use rematic::{
    CostRule, CostSource, Devices, Fit, FitFound, FitRequest, FitSetup, FitValue, Fixed, Fsdp2, Limits, Options,
    Planner, Source, SourceSteps, Study, Target, Verdict,
};

fn target(device: &str) -> Target {
    Target::find(device, None, CostSource::Rule(CostRule::Physical)).unwrap()
}

fn fit(options: &Options, device: &str, fixed: Fixed) -> Fit {
    fit_with(options, device, fixed, false)
}

fn fit_with(options: &Options, device: &str, fixed: Fixed, tries_chunks: bool) -> Fit {
    let (name, options) = ("llama-3-8b".to_owned(), options.clone());
    let steps = SourceSteps { source: Source::open(&name).unwrap(), name, options, tries_chunks };
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
fn a_batch_that_does_not_fit_is_tried_in_micro_batches() {
    let options = Options { layers: Some(2), ..Options::default() };
    let fixed = Fixed { batch: Some(16), seq: Some(4096), gpus: Some(1), device: true, ..Fixed::default() };
    let found = fit(&options, "a100-40", fixed);
    let parts = |count: u64| Options { batch: Some(16 / count), seq: Some(4096), ..options.clone() };
    let fitting: Vec<&FitSetup> =
        found.setups.iter().filter(|setup| setup.means.iter().any(|word| word.ends_with("micro-batches"))).collect();
    let alone = fitting.iter().find(|setup| setup.means.len() == 1).unwrap();
    let count = 16 / alone.batch;
    assert_eq!(alone.means, [format!("{count} micro-batches")]);
    assert!(alone.memory.unwrap().fits() && alone.tokens_per_second.is_some());
    // Half as many do not fit.
    let mut fewer = parts(count / 2);
    fewer.recipe.accumulate = Some(u32::try_from(count / 2).unwrap());
    let study =
        Study::new(Source::open("llama-3-8b").unwrap().trace(&fewer).unwrap(), target("a100-40"), Limits::default());
    assert!(!study.unwrap().memory().unwrap().fits());
}

#[test]
fn the_chunked_loss_is_tried_if_it_is_asked_for() {
    let options = Options { layers: Some(2), ..Options::default() };
    let fixed = Fixed { seq: Some(4096), gpus: Some(1), device: true, ..Fixed::default() };
    let with_chunks =
        |found: &Fit| found.setups.iter().filter(|s| s.means.contains(&"chunked loss".to_owned())).count();
    assert_eq!(with_chunks(&fit(&options, "a100-40", fixed)), 0);
    let found = fit_with(&options, "a100-40", fixed, true);
    assert!(with_chunks(&found) >= 2, "{found:?}");
    let largest = |chunked: bool| {
        let of_kind = found.setups.iter().filter(|s| s.means.contains(&"chunked loss".to_owned()) == chunked);
        of_kind.map(|setup| setup.batch).max().unwrap()
    };
    assert!(largest(true) > largest(false), "{found:?}");
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
    let options = Options::default();
    let steps = SourceSteps { source: Source::open(&name).unwrap(), name, options, tries_chunks: false };
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
