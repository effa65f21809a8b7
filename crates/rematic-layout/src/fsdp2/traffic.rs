use rematic_trace::{
    Category, Collective, CollectiveKind, Dtype, Event, Layout, OpRecord, Phase, StepTrace, StorageId, StreamId, Tensor,
};

use super::weights::Weight;
use super::{Fsdp2, REPLICATE, SHARD};

/// The streams beside the compute stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    copy_in: StreamId,
    gathers: StreamId,
    scatters: StreamId,
    /// Only with replicas.
    reduces: Option<StreamId>,
}

impl Streams {
    pub(crate) fn new(made: &mut StepTrace, how: &Fsdp2) -> Self {
        Streams {
            copy_in: made.add_stream("all_gather_copy_in"),
            gathers: made.add_stream("all_gather"),
            scatters: made.add_stream("reduce_scatter"),
            reduces: (how.replicas > 1).then(|| made.add_stream("all_reduce")),
        }
    }
}

/// What is sent between ranks, and the buffers for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    ranks: u32,
    replicas: u32,
    /// Whether shards are of another type than what is gathered.
    casts: bool,
    streams: Streams,
    /// The buffer of the last gather in forward.
    pub(crate) gathered: Option<StorageId>,
    /// The buffer that the last reduction reads.
    packed: Option<StorageId>,
}

impl Traffic {
    pub(crate) fn new(how: &Fsdp2, streams: Streams) -> Self {
        let (ranks, replicas, casts) = (how.ranks, how.replicas, how.shards.is_some());
        Traffic { ranks, replicas, casts, streams, gathered: None, packed: None }
    }

    /// All ranks' shards of a unit in one flat buffer.
    pub(crate) fn gather(&self, made: &mut StepTrace, weights: &[&Weight], phase: Phase) -> StorageId {
        let Streams { copy_in, gathers, .. } = self.streams;
        let (dtype, elements) = packed(weights);
        let shards: Vec<Tensor> = weights.iter().map(|weight| weight.shard).collect();
        let cast = self.casts.then(|| {
            let cast = flat(made, dtype, elements);
            let births = [(bytes(dtype, elements), Category::Temp)];
            let op = made.run(OpRecord {
                inputs: &shards,
                outputs: &[cast],
                births: &births,
                ..OpRecord::new("_foreach_copy_.default", phase)
            });
            made.set_stream(op, copy_in);
            cast
        });
        let whole = elements.saturating_mul(u64::from(self.ranks));
        let buffer = flat(made, dtype, whole);
        let births = [(bytes(dtype, whole), Category::Other)];
        let read: Vec<Tensor> = cast.map_or(shards, |cast| vec![cast]);
        let name = "all_gather_copy_in.default";
        let op =
            made.run(OpRecord { inputs: &read, outputs: &[buffer], births: &births, ..OpRecord::new(name, phase) });
        made.set_stream(op, copy_in);
        made.push(Event::Wait { stream: gathers, on: copy_in });
        let changed = [buffer.storage];
        let name = "_allgather_base_.default";
        let op = made.run(OpRecord { inputs: &[buffer], mutates: &changed, ..OpRecord::new(name, phase) });
        made.set_stream(op, gathers);
        let axis = SHARD.to_owned();
        let message = bytes(dtype, whole);
        made.set_collective(
            op,
            Collective { kind: CollectiveKind::AllGather, group: self.ranks, axis, bytes: message },
        );
        if let Some(cast) = cast {
            made.push(Event::Drop(cast.storage));
        }
        buffer.storage
    }

    /// The weights come back, filled from the buffer.
    pub(crate) fn copy_out(&self, made: &mut StepTrace, weights: &[&Weight], buffer: StorageId, phase: Phase) {
        made.push(Event::Wait { stream: StreamId::COMPUTE, on: self.streams.gathers });
        let mut changed = Vec::with_capacity(weights.len());
        for weight in weights {
            made.push(Event::Restore(weight.whole));
            changed.push(weight.whole);
        }
        let (dtype, elements) = packed(weights);
        let whole = Layout::contiguous(dtype, &[elements.saturating_mul(u64::from(self.ranks))]);
        let read = [Tensor { storage: buffer, layout: made.layout(&whole) }];
        let name = "split_with_sizes_copy.out";
        made.run(OpRecord { inputs: &read, mutates: &changed, ..OpRecord::new(name, phase) });
        made.push(Event::Wait { stream: self.streams.copy_in, on: StreamId::COMPUTE });
    }

    pub(crate) fn drop_gathered(&mut self, made: &mut StepTrace) {
        if let Some(buffer) = self.gathered.take() {
            made.push(Event::Drop(buffer));
        }
    }

    pub(crate) fn drop_packed(&mut self, made: &mut StepTrace) {
        if let Some(buffer) = self.packed.take() {
            made.push(Event::Wait { stream: StreamId::COMPUTE, on: self.streams.scatters });
            made.push(Event::Drop(buffer));
        }
    }

    /// The stream on which a reduction ends.
    pub(crate) fn last_stream(&self) -> StreamId {
        self.streams.reduces.unwrap_or(self.streams.scatters)
    }

    /// The optimizer begins after the last reduction.
    pub(crate) fn wait_for_reductions(&self, made: &mut StepTrace) {
        if let Some(on) = self.streams.reduces {
            made.push(Event::Wait { stream: StreamId::COMPUTE, on });
        }
    }

    /// The rank's rows of the sum of a unit's gradients, which go.
    pub(crate) fn reduce(
        &mut self,
        made: &mut StepTrace,
        gradients: &[(StorageId, &Weight)],
        dtype: Dtype,
    ) -> StorageId {
        let Streams { scatters, reduces, .. } = self.streams;
        let elements: u64 = gradients.iter().map(|(_, weight)| weight.padded).sum();
        let whole = elements.saturating_mul(u64::from(self.ranks));
        let read: Vec<Tensor> = gradients
            .iter()
            .map(|(storage, weight)| Tensor { storage: *storage, layout: made.layout(&dense(&weight.layout)) })
            .collect();
        let packed = flat(made, dtype, whole);
        let births = [(bytes(dtype, whole), Category::Temp)];
        let name = "_chunk_cat.out";
        made.run(OpRecord {
            inputs: &read,
            outputs: &[packed],
            births: &births,
            ..OpRecord::new(name, Phase::Backward)
        });
        for (storage, _) in gradients {
            made.push(Event::Drop(*storage));
        }
        made.push(Event::Wait { stream: scatters, on: StreamId::COMPUTE });
        let own = flat(made, dtype, elements);
        let births = [(bytes(dtype, elements), Category::Temp)];
        let name = "_reduce_scatter_base_.default";
        let op = made.run(OpRecord {
            inputs: &[packed],
            outputs: &[own],
            births: &births,
            ..OpRecord::new(name, Phase::Backward)
        });
        made.set_stream(op, scatters);
        let axis = SHARD.to_owned();
        let (kind, message) = (CollectiveKind::ReduceScatter, bytes(dtype, whole));
        made.set_collective(op, Collective { kind, group: self.ranks, axis, bytes: message });
        if let Some(stream) = reduces {
            made.push(Event::Wait { stream, on: scatters });
            let changed = [own.storage];
            let name = "allreduce_.default";
            let op = made.run(OpRecord { inputs: &[own], mutates: &changed, ..OpRecord::new(name, Phase::Backward) });
            made.set_stream(op, stream);
            let (kind, axis) = (CollectiveKind::AllReduce, REPLICATE.to_owned());
            made.set_collective(op, Collective { kind, group: self.replicas, axis, bytes: bytes(dtype, elements) });
        }
        self.packed = Some(packed.storage);
        own.storage
    }

    /// All ranks have the largest of their numbers, as DTensor makes it of a part.
    pub(crate) fn agree(&self, made: &mut StepTrace, number: Tensor) {
        let size = Dtype::F32.size();
        let largest = Tensor { storage: made.next_storage(), layout: number.layout };
        let births = [(size, Category::Activation)];
        let name = "_c10d_functional.all_reduce.default";
        let record = OpRecord::new(name, Phase::Forward);
        let op = made.run(OpRecord { inputs: &[number], outputs: &[largest], births: &births, ..record });
        let (kind, axis) = (CollectiveKind::AllReduce, SHARD.to_owned());
        made.set_collective(op, Collective { kind, group: self.ranks, axis, bytes: size });
        let changed = [number.storage];
        let copies = OpRecord::new("copy_.default", Phase::Forward);
        made.run(OpRecord { inputs: &[number, largest], outputs: &[number], mutates: &changed, ..copies });
        made.push(Event::Drop(largest.storage));
    }
}

/// The type and number of the elements in which shards are gathered: bytes, if they are of several types.
fn packed(weights: &[&Weight]) -> (Dtype, u64) {
    let dtype = weights[0].layout.dtype;
    if weights.iter().all(|weight| weight.layout.dtype == dtype) {
        return (dtype, weights.iter().map(|weight| weight.padded).sum());
    }
    (Dtype::U8, weights.iter().map(|weight| bytes(weight.layout.dtype, weight.padded)).sum())
}

/// A flat tensor in the storage that the next operator makes.
fn flat(made: &mut StepTrace, dtype: Dtype, elements: u64) -> Tensor {
    Tensor { storage: made.next_storage(), layout: made.layout(&Layout::contiguous(dtype, &[elements])) }
}

fn bytes(dtype: Dtype, elements: u64) -> u64 {
    elements.saturating_mul(dtype.size())
}

fn dense(layout: &Layout) -> Layout {
    Layout::contiguous(layout.dtype, &layout.shape)
}
