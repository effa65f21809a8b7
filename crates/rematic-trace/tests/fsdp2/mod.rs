//! One rank's step of two layers under FSDP2, written by hand; shared with the tests of the command line.
//!
//! Four ranks; each layer is a unit that is gathered before its forward, released after it, gathered again for its
//! backward (the first layer while the second is still in backward) and released after that. All is fp32.

use rematic_trace::{
    Axis, CallId, Category, Collective, CollectiveKind, DeviceKind, Dtype, Event, Flags, Layout, Module, ModuleId,
    OpId, OpRecord, Parameter, Phase, StepTrace, StorageId, StreamId, Tensor,
};

/// Bytes of a weight of 16 x 16, of a rank's share of it, and of 8 samples with 16 features.
pub(crate) const WEIGHT: u64 = 1024;
pub(crate) const SHARD: u64 = WEIGHT / RANKS as u64;
pub(crate) const HIDDEN: u64 = 512;
pub(crate) const RANKS: u32 = 4;
const SCALAR: u64 = 4;
const AXIS: &str = "dp_shard";

/// The step under construction.
pub(crate) struct Step {
    pub(crate) trace: StepTrace,
    gathers: StreamId,
    scatters: StreamId,
}

/// What a layer owns.
#[derive(Clone, Copy)]
struct Layer {
    module: ModuleId,
    linear: ModuleId,
    shard: Tensor,
    /// Exponential averages of Adam.
    state: [Tensor; 2],
    /// The gathered weight; its bytes come and go.
    weight: Tensor,
}

/// What a layer's forward leaves for its backward.
struct Ran {
    call: CallId,
    mm: OpId,
    silu: OpId,
    inner: Tensor,
}

impl Step {
    fn tensor(&mut self, storage: StorageId, shape: &[u64]) -> Tensor {
        Tensor { storage, layout: self.trace.layout(&Layout::contiguous(Dtype::F32, shape)) }
    }

    fn before(&mut self, bytes: u64, category: Category, shape: &[u64]) -> Tensor {
        let storage = self.trace.storage_before_step(bytes, category);
        self.tensor(storage, shape)
    }

    fn layer(&mut self, root: ModuleId, name: &str) -> Layer {
        let module = |name: &str, class: &str, parent| Module {
            name: name.to_owned(),
            class: class.to_owned(),
            parent: Some(parent),
            parameters: Vec::new(),
            buffers: Vec::new(),
        };
        let layer = self.trace.add_module(module(name, "Layer", root));
        let linear = self.trace.add_module(module("linear", "Linear", layer));
        let shard = self.before(SHARD, Category::Parameter, &[4, 16]);
        let state = [(); 2].map(|()| self.before(SHARD, Category::Optimizer, &[4, 16]));
        let weight = self.before(WEIGHT, Category::Parameter, &[16, 16]);
        self.trace.set_released(weight.storage);
        let parameter = Parameter { name: "weight".to_owned(), storage: shard.storage, layout: shard.layout };
        self.trace.module_mut(linear).parameters.push(parameter);
        Layer { module: layer, linear, shard, state, weight }
    }

    fn record<'a>(name: &'a str, phase: Phase, inputs: &'a [Tensor], outputs: &'a [Tensor]) -> OpRecord<'a> {
        OpRecord { inputs, outputs, ..OpRecord::new(name, phase) }
    }

    fn drop(&mut self, tensor: Tensor) {
        self.trace.push(Event::Drop(tensor.storage));
    }

    fn wait(&mut self, stream: StreamId, on: StreamId) {
        self.trace.push(Event::Wait { stream, on });
    }

    /// All ranks' shares in one buffer, on a stream of its own.
    fn gather(&mut self, phase: Phase, layer: Layer) -> Tensor {
        let next = self.trace.next_storage();
        let flat = self.tensor(next, &[256]);
        let read = [layer.shard];
        let record = Self::record("_allgather_base_.default", phase, &read, &[]);
        let op = self.trace.run(OpRecord { outputs: &[flat], births: &[(WEIGHT, Category::Other)], ..record });
        self.trace.set_stream(op, self.gathers);
        let (kind, axis) = (CollectiveKind::AllGather, AXIS.to_owned());
        self.trace.set_collective(op, Collective { kind, group: RANKS, axis, bytes: WEIGHT });
        flat
    }

    /// The weight's bytes come back, and are filled from the buffer.
    fn copy_out(&mut self, phase: Phase, layer: Layer, flat: Tensor) {
        self.trace.push(Event::Restore(layer.weight.storage));
        let record = Self::record("split_with_sizes_copy.out", phase, &[], &[]);
        self.trace.run(OpRecord { inputs: &[flat], mutates: &[layer.weight.storage], ..record });
    }

    fn forward(&mut self, layer: Layer, input: Tensor) -> (Ran, Tensor) {
        let call = self.trace.enter(layer.module, vec![input.storage]);
        let inside = self.trace.enter(layer.linear, vec![input.storage]);
        let births = [(HIDDEN, Category::Activation)];
        let next = self.trace.next_storage();
        let inner = self.tensor(next, &[8, 16]);
        let (read, saves) = ([input, layer.weight], [input, layer.weight]);
        let record = Self::record("mm.default", Phase::Forward, &read, &[]);
        let mm = self.trace.run(OpRecord {
            call: Some(inside),
            outputs: &[inner],
            saves: &saves,
            births: &births,
            ..record
        });
        self.trace.exit(inside, vec![inner.storage]);
        let next = self.trace.next_storage();
        let output = self.tensor(next, &[8, 16]);
        let record = Self::record("silu.default", Phase::Forward, &[], &[]);
        let silu = self.trace.run(OpRecord {
            call: Some(call),
            inputs: &[inner],
            outputs: &[output],
            saves: &[inner],
            births: &births,
            ..record
        });
        self.trace.exit(call, vec![output.storage]);
        self.drop(inner);
        self.trace.push(Event::Release(layer.weight.storage));
        (Ran { call, mm, silu, inner }, output)
    }

    fn make(&mut self, record: OpRecord<'_>, bytes: u64, category: Category, shape: &[u64]) -> Tensor {
        let next = self.trace.next_storage();
        let made = self.tensor(next, shape);
        self.trace.run(OpRecord { outputs: &[made], births: &[(bytes, category)], ..record });
        made
    }

    /// From the gradient of the layer's output to that of its weight, and of its input if that is wanted.
    fn backward(
        &mut self,
        layer: Layer,
        ran: &Ran,
        input: Tensor,
        gradient: Tensor,
        wanted: bool,
    ) -> (Tensor, Option<Tensor>) {
        let of = |op: OpId| OpRecord {
            call: Some(ran.call),
            differentiates: Some(op),
            ..Self::record("mm.default", Phase::Backward, &[], &[])
        };
        let read = [gradient, ran.inner];
        let record = OpRecord { name: "silu_backward.default", inputs: &read, ..of(ran.silu) };
        let inner = self.make(record, HIDDEN, Category::Temp, &[8, 16]);
        self.trace.push(Event::Unsave(ran.silu));
        self.drop_unless_last(gradient, wanted);
        let read = [input, inner];
        let weight = self.make(OpRecord { inputs: &read, ..of(ran.mm) }, WEIGHT, Category::Temp, &[16, 16]);
        let read = [inner, layer.weight];
        let record = OpRecord { inputs: &read, ..of(ran.mm) };
        let input = wanted.then(|| self.make(record, HIDDEN, Category::Temp, &[8, 16]));
        self.trace.push(Event::Unsave(ran.mm));
        self.drop(inner);
        self.trace.push(Event::ExitBackward(ran.call));
        self.trace.push(Event::Release(layer.weight.storage));
        (weight, input)
    }

    /// The seed of the last layer is the loop's own; what one layer hands to the one before goes with it.
    fn drop_unless_last(&mut self, gradient: Tensor, last: bool) {
        if !last {
            self.drop(gradient);
        }
    }

    /// The gradient's own part, on a stream of its own; and the buffer that it comes from.
    fn scatter(&mut self, gradient: Tensor) -> (Tensor, Tensor) {
        let read = [gradient];
        let record = Self::record("_chunk_cat.out", Phase::Backward, &read, &[]);
        let buffer = self.make(record, WEIGHT, Category::Temp, &[256]);
        self.drop(gradient);
        self.wait(self.scatters, StreamId::COMPUTE);
        let read = [buffer];
        let record = Self::record("_reduce_scatter_base_.default", Phase::Backward, &read, &[]);
        let shard = self.make(record, SHARD, Category::Temp, &[4, 16]);
        let op = OpId::new(self.trace.ops().len() - 1);
        self.trace.set_stream(op, self.scatters);
        let (kind, axis) = (CollectiveKind::ReduceScatter, AXIS.to_owned());
        self.trace.set_collective(op, Collective { kind, group: RANKS, axis, bytes: WEIGHT });
        self.trace.push(Event::Recategorize(shard.storage, Category::Gradient));
        (shard, buffer)
    }
}

/// The whole step.
pub(crate) fn step() -> StepTrace {
    let mut trace = StepTrace::new("two layers under FSDP2");
    trace.origin.device = Some(DeviceKind::Cuda);
    trace.origin.batch = Some(8);
    trace.origin.precision = Some(Dtype::F32);
    trace.origin.optimizer = Some("adam".to_owned());
    trace.place.axes.push(Axis { name: AXIS.to_owned(), size: RANKS, coordinate: 1 });
    let (gathers, scatters) = (trace.add_stream("all_gather"), trace.add_stream("reduce_scatter"));
    let mut step = Step { trace, gathers, scatters };
    let (name, class) = ("Model".to_owned(), "Model".to_owned());
    let root = step.trace.add_module(Module { name, class, parent: None, parameters: vec![], buffers: vec![] });
    let layers = ["0", "1"].map(|name| step.layer(root, name));
    let batch = step.before(HIDDEN, Category::Other, &[8, 16]);
    step.run(root, layers, batch);
    step.trace
}

impl Step {
    fn run(&mut self, root: ModuleId, [first, second]: [Layer; 2], batch: Tensor) {
        let compute = StreamId::COMPUTE;
        self.trace.push(Event::MicroBatch(0));
        let call = self.trace.enter(root, vec![batch.storage]);
        let flat_0 = self.gather(Phase::Forward, first);
        self.wait(compute, self.gathers);
        self.copy_out(Phase::Forward, first, flat_0);
        let (ran_0, middle) = self.forward(first, batch);
        let flat_1 = self.gather(Phase::Forward, second);
        self.wait(compute, self.gathers);
        // In forward a unit's buffer stays until the next unit has been gathered.
        self.drop(flat_0);
        self.copy_out(Phase::Forward, second, flat_1);
        let (ran_1, output) = self.forward(second, middle);
        self.drop(middle);
        self.trace.exit(call, vec![output.storage]);
        self.drop(flat_1);

        let record = Self::record("sum.default", Phase::Forward, &[], &[]);
        let loss = self.make(OpRecord { inputs: &[output], ..record }, SCALAR, Category::Activation, &[]);
        let sum = OpId::new(self.trace.ops().len() - 1);
        let record = Self::record("ones_like.default", Phase::Forward, &[], &[]);
        let seed = self.make(OpRecord { inputs: &[loss], ..record }, SCALAR, Category::Activation, &[]);
        self.drop(output);

        self.trace.push(Event::EnterBackward(call));
        self.trace.push(Event::EnterBackward(ran_1.call));
        let flat_1 = self.gather(Phase::Backward, second);
        self.wait(compute, self.gathers);
        self.copy_out(Phase::Backward, second, flat_1);
        self.drop(flat_1);
        let flat_0 = self.gather(Phase::Backward, first);
        let layout = Layout { dtype: Dtype::F32, shape: vec![8, 16], strides: vec![0, 0] };
        let expanded = Tensor { layout: self.trace.layout(&layout), ..seed };
        let (inputs, outputs) = ([seed], [expanded]);
        self.trace.run(OpRecord {
            differentiates: Some(sum),
            flags: Flags { view: true, ..Flags::default() },
            ..Self::record("expand.default", Phase::Backward, &inputs, &outputs)
        });
        let (gradient_1, of_middle) = self.backward(second, &ran_1, middle, expanded, true);
        let (share_1, buffer_1) = self.scatter(gradient_1);

        self.trace.push(Event::EnterBackward(ran_0.call));
        self.wait(compute, self.gathers);
        self.copy_out(Phase::Backward, first, flat_0);
        self.drop(flat_0);
        let of_middle = of_middle.expect("the second layer has a layer before it");
        let (gradient_0, _) = self.backward(first, &ran_0, batch, of_middle, false);
        // The buffer of one reduce-scatter stays until the next begins.
        self.wait(compute, self.scatters);
        self.drop(buffer_1);
        let (share_0, buffer_0) = self.scatter(gradient_0);
        self.trace.push(Event::ExitBackward(call));
        self.wait(compute, self.scatters);
        self.drop(buffer_0);
        self.drop(seed);
        self.drop(loss);
        self.adam([first, second], [share_0, share_1]);
    }

    fn adam(&mut self, layers: [Layer; 2], gradients: [Tensor; 2]) {
        let state = layers.map(|layer| layer.state);
        let shards = layers.map(|layer| layer.shard);
        let changed: Vec<StorageId> = shards.iter().chain(state.as_flattened()).map(|tensor| tensor.storage).collect();
        let read: Vec<Tensor> = shards.iter().chain(&gradients).chain(state.as_flattened()).copied().collect();
        let record = Self::record("_fused_adam_.default", Phase::Optimizer, &read, &[]);
        self.trace.run(OpRecord { mutates: &changed, ..record });
        for gradient in gradients {
            self.drop(gradient);
        }
    }
}
