//! What a step of one rank has: bytes that go and come back, streams, micro-batches, a place, collectives.

use rematic_trace::{Axis, Collective, CollectiveKind, StreamId};

use crate::*;

/// A view refers to a storage whose bytes are not there; all others need them.
#[test]
fn released() {
    let gone = || Step::forward().then(&[Event::Release(storage(0))]);
    let batch = Step::forward().batch;
    let expected = Fault::Released { storage: storage(0) };
    for record in [
        op(&[batch], &[]),
        op(&[], &[batch]),
        OpRecord { saves: &[batch], ..op(&[], &[]) },
        OpRecord { mutates: &[batch.storage], ..op(&[], &[]) },
    ] {
        let mut trace = gone();
        trace.run(record);
        assert_eq!(fault(&trace), expected);
        let mut back = gone();
        back.push(Event::Restore(storage(0)));
        back.run(record);
        assert_eq!(back.validate(), Ok(()));
        let mut view = gone();
        view.run(OpRecord { flags: Flags { view: true, ..Flags::default() }, ..record });
        assert_eq!(view.validate(), Ok(()));
    }
    let mut twice = gone();
    twice.push(Event::Release(storage(0)));
    assert_eq!(fault(&twice), expected);
    assert!(message(&twice).contains("events[4] ({\"release\":0}): storage 0 is released here"), "{}", message(&twice));

    let mut begins = Step::forward();
    begins.trace.set_released(storage(0));
    assert_eq!(fault(&begins.trace), expected);
    assert!(message(&begins.trace).contains("op 0 (relu.default)"));
}

#[test]
fn released_before_birth() {
    let mut step = Step::forward();
    step.trace.set_released(storage(1));
    assert_eq!(fault(&step.trace), Fault::ReleasedBeforeBirth { op: OpId::new(0) });
}

/// What is released and loses its last reference just dies; what is dead is neither released nor restored.
#[test]
fn release_of_what_is_not_there() {
    let dies = [Event::Release(storage(1)), Event::Drop(storage(1)), Event::Unsave(OpId::new(0))];
    assert_eq!(Step::forward().then(&dies).validate(), Ok(()));
    for event in
        [Event::Restore(storage(1)), Event::Release(storage(1)), Event::Recategorize(storage(1), Category::Temp)]
    {
        let mut trace = Step::forward().then(&dies);
        trace.push(event);
        assert_eq!(fault(&trace), Fault::NotAlive { storage: storage(1) });
    }
    let unknown = Fault::UnknownId { kind: "storage", id: 7, len: 2 };
    assert_eq!(fault(&Step::forward().then(&[Event::Release(storage(7))])), unknown);
    assert_eq!(fault(&Step::forward().then(&[Event::Restore(storage(7))])), unknown);
    let mut early = StepTrace::new("before its birth");
    early.push(Event::Release(storage(0)));
    let layout = early.layout(&Layout::contiguous(Dtype::F32, &[]));
    let made = Tensor { storage: storage(0), layout };
    early.run(OpRecord { births: &[(4, Category::Temp)], ..op(&[], &[made]) });
    assert_eq!(fault(&early), Fault::NotAlive { storage: storage(0) });
}

#[test]
fn not_released() {
    let trace = Step::forward().then(&[Event::Restore(storage(0))]);
    assert_eq!(fault(&trace), Fault::NotReleased { storage: storage(0) });
    let twice = [Event::Release(storage(0)), Event::Restore(storage(0)), Event::Restore(storage(0))];
    assert_eq!(fault(&Step::forward().then(&twice)), Fault::NotReleased { storage: storage(0) });
}

#[test]
fn streams() {
    let (compute, other) = (StreamId::COMPUTE, StreamId::new(1));
    let mut step = Step::forward();
    assert_eq!(step.trace.add_stream("copies"), other);
    step.trace.set_stream(OpId::new(0), other);
    assert_eq!(step.then(&[Event::Wait { stream: compute, on: other }]).validate(), Ok(()));
    let unknown = Fault::UnknownId { kind: "stream", id: 1, len: 1 };
    for event in [Event::Wait { stream: compute, on: other }, Event::Wait { stream: other, on: compute }] {
        assert_eq!(fault(&Step::forward().then(&[event])), unknown);
    }
    let mut elsewhere = Step::forward();
    elsewhere.trace.set_stream(OpId::new(0), other);
    assert_eq!(fault(&elsewhere.trace), unknown);
    let itself = Step::forward().then(&[Event::Wait { stream: compute, on: compute }]);
    assert_eq!(fault(&itself), Fault::WaitsForItself { stream: compute });
    assert!(message(&itself).contains("{\"wait\":[0,0]}"), "{}", message(&itself));
    for (name, rule) in [("", "give it one"), ("compute", "another row has it already")] {
        let mut step = Step::forward();
        step.trace.add_stream(name);
        assert_eq!(fault(&step.trace), Fault::Name { name: name.to_owned(), rule });
        assert!(message(&step.trace).contains("streams[1]: its name is"));
    }
}

#[test]
fn micro_batches() {
    let counted = [Event::MicroBatch(0), Event::MicroBatch(1)];
    assert_eq!(Step::forward().then(&counted).validate(), Ok(()));
    for (first, expected) in [(1, 0), (u32::MAX, 0)] {
        let trace = Step::forward().then(&[Event::MicroBatch(first)]);
        assert_eq!(fault(&trace), Fault::MicroBatchOrder { expected, found: first });
    }
    let mut inside = Step::forward();
    let call = inside.trace.enter(ModuleId::new(0), vec![]);
    inside.trace.push(Event::MicroBatch(0));
    assert_eq!(fault(&inside.trace), Fault::MicroBatchInside { call });
}

fn axis(name: &str, size: u32, coordinate: u32) -> Axis {
    Axis { name: name.to_owned(), size, coordinate }
}

#[test]
fn place() {
    let placed = |axes: &[Axis]| {
        let mut step = Step::forward();
        step.trace.place.axes = axes.to_vec();
        step.trace
    };
    let mesh = placed(&[axis("pp", 2, 1), axis("dp", 8, 7)]);
    assert_eq!(mesh.validate(), Ok(()));
    assert_eq!((mesh.place.ranks(), mesh.place.group("pp+dp"), mesh.place.group("tp")), (Some(16), Some(16), None));
    for (size, coordinate) in [(2, 2), (0, 0)] {
        let expected = Fault::Coordinate { axis: "dp".to_owned(), coordinate, size };
        assert_eq!(fault(&placed(&[axis("dp", size, coordinate)])), expected);
    }
    assert!(matches!(fault(&placed(&[axis("dp", 2, 0), axis("dp", 2, 0)])), Fault::Name { .. }));
    assert!(matches!(fault(&placed(&[axis("a+b", 2, 0)])), Fault::Name { .. }));
    let large = [axis("a", u32::MAX, 0), axis("b", u32::MAX, 0), axis("c", 2, 0)];
    assert_eq!(fault(&placed(&large)), Fault::MeshTooLarge);
    let many: Vec<Axis> = (0..17).map(|index| axis(&index.to_string(), 1, 0)).collect();
    assert_eq!(fault(&placed(&many)), Fault::TooManyAxes { axes: 17, limit: 16 });
}

#[test]
fn collectives() {
    let with = |kind, group, along: &str, bytes| {
        let mut step = Step::forward();
        step.trace.place.axes = vec![axis("dp", 4, 0), axis("tp", 2, 0)];
        step.trace.set_collective(OpId::new(0), Collective { kind, group, axis: along.to_owned(), bytes });
        step.trace
    };
    use CollectiveKind::{AllGather, Unknown};
    assert_eq!(with(AllGather, 4, "dp", 512).validate(), Ok(()));
    assert_eq!(with(AllGather, 8, "dp+tp", 512).validate(), Ok(()));
    assert_eq!(with(Unknown, 0, "", 0).validate(), Ok(()));
    let axis = "dp".to_owned();
    assert_eq!(fault(&with(AllGather, 2, "dp", 512)), Fault::GroupSize { axis, group: 2, size: 4 });
    let strange = with(AllGather, 2, "ep", 512);
    assert!(message(&strange).contains("collectives[0]: `ep` is no axis of the rank's place; there are dp, tp"));
    assert!(matches!(fault(&with(AllGather, 16, "dp+dp", 512)), Fault::UnknownAxis { .. }));
    assert!(matches!(fault(&with(AllGather, 0, "dp", 512)), Fault::CollectiveDetail { .. }));
    assert!(matches!(fault(&with(Unknown, 4, "dp", 512)), Fault::CollectiveDetail { .. }));
    assert_eq!(fault(&with(AllGather, 4, "dp", 1 << 62)), Fault::MessageTooLarge { bytes: 1 << 62 });
}

/// Only a file can name a collective that is not there.
#[test]
fn unknown_collective() {
    let mut step = Step::forward();
    step.trace.set_collective(OpId::new(0), Collective::unknown());
    let mut text = Vec::new();
    step.trace.to_writer(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap().replace(r#""collective":0"#, r#""collective":5"#);
    let error = StepTrace::from_json(text.as_bytes(), "step.rmt".as_ref()).unwrap_err().to_string();
    assert!(error.contains("op 0 (relu.default): unknown collective 5; there are 1"), "{error}");
}
