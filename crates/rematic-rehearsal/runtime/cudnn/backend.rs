//! cuDNN's backend: descriptors with attributes, heuristics that name one engine, plans, and running them.
//!
//! An attribute is what it was set to. Descriptors that are set into others are kept as they are at that moment, as cuDNN wants
//! them finalized by then; descriptors that are asked for are filled into those that the caller has made.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::super::put;
use super::super::status::{OK, Status};
use super::{BAD_PARAM, NOT_SUPPORTED, Use, used};

/// `cudnnBackendDescriptorType_t`, as far as it matters.
mod kind {
    pub const ENGINE: i32 = 2;
    pub const ENGINE_CONFIG: i32 = 3;
    pub const HEURISTICS: i32 = 4;
    pub const PLAN: i32 = 5;
    pub const GRAPH: i32 = 15;
    /// Convolutions: forward, backward of the filter, backward of the data.
    pub const CONVOLUTIONS: std::ops::RangeInclusive<i32> = 10..=12;
    /// Parts of attention where it is put together from them, and attention as one operation.
    pub const MATMUL: i32 = 19;
}

/// `cudnnBackendAttributeName_t`, as far as it matters.
mod name {
    pub const HEURISTICS_GRAPH: i32 = 201;
    pub const HEURISTICS_RESULTS: i32 = 202;
    pub const CONFIG_ENGINE: i32 = 300;
    pub const CONFIG_INTERMEDIATES: i32 = 301;
    pub const CONFIG_KNOBS: i32 = 302;
    pub const CONFIG_WORKSPACE: i32 = 303;
    pub const CONFIG_SHARED_MEMORY: i32 = 304;
    pub const PLAN_CONFIG: i32 = 401;
    pub const PLAN_WORKSPACE: i32 = 402;
    pub const PLAN_INTERMEDIATES: i32 = 403;
    pub const GRAPH_OPERATIONS: i32 = 801;
    pub const GRAPH_ENGINES: i32 = 802;
    pub const ENGINE_GRAPH: i32 = 1300;
    pub const ENGINE_INDEX: i32 = 1301;
    pub const ENGINE_KNOBS: i32 = 1302;
    pub const ENGINE_NUMERICS: i32 = 1303;
    pub const ENGINE_LAYOUTS: i32 = 1304;
    pub const ENGINE_BEHAVIOUR: i32 = 1305;
}

const DESCRIPTOR: c_int = 15;

/// Bytes of an element of `cudnnBackendAttributeType_t`.
fn size(kind: c_int) -> usize {
    const BOOLEAN: c_int = 2;
    const CHAR: c_int = 24;
    const FRACTION: c_int = 26;
    match kind {
        // A handle, INT64, DOUBLE, a pointer.
        0 | 3 | 5 | 6 | DESCRIPTOR => 8,
        BOOLEAN | CHAR => 1,
        FRACTION => 16,
        _ => 4,
    }
}

/// What an attribute was set to.
#[derive(Clone)]
enum Value {
    Plain { size: usize, bytes: Vec<u8> },
    Descriptors(Vec<Arc<Descriptor>>),
}

impl Value {
    fn number(value: i64) -> Value {
        Value::Plain { size: 8, bytes: value.to_ne_bytes().to_vec() }
    }

    fn none() -> Value {
        Value::Descriptors(Vec::new())
    }

    fn count(&self) -> usize {
        match self {
            Value::Plain { size, bytes } => bytes.len() / size,
            Value::Descriptors(all) => all.len(),
        }
    }
}

/// What `cudnnBackendDescriptor_t` points to.
#[derive(Clone)]
pub struct Descriptor {
    kind: i32,
    attributes: BTreeMap<i32, Value>,
}

impl Descriptor {
    fn new(kind: i32) -> Descriptor {
        Descriptor { kind, attributes: BTreeMap::new() }
    }

    fn with(kind: i32, attribute: i32, value: Value) -> Descriptor {
        Descriptor { kind, attributes: BTreeMap::from([(attribute, value)]) }
    }

    fn descriptors(&self, attribute: i32) -> &[Arc<Descriptor>] {
        match self.attributes.get(&attribute) {
            Some(Value::Descriptors(all)) => all,
            _ => &[],
        }
    }

    /// The only descriptor under an attribute.
    fn inner(&self, attribute: i32) -> Option<&Descriptor> {
        self.descriptors(attribute).first().map(|inner| &**inner)
    }

    /// What is asked for: what was set, or what the library finds out.
    fn answer(&self, attribute: i32) -> Option<Value> {
        match (self.kind, attribute) {
            // One engine runs whatever the graph says.
            (kind::HEURISTICS, name::HEURISTICS_RESULTS) => {
                let graph = self.attributes.get(&name::HEURISTICS_GRAPH)?.clone();
                let engine = Descriptor::with(kind::ENGINE, name::ENGINE_GRAPH, graph);
                let engine = Value::Descriptors(vec![Arc::new(engine)]);
                let config = Descriptor::with(kind::ENGINE_CONFIG, name::CONFIG_ENGINE, engine);
                Some(Value::Descriptors(vec![Arc::new(config)]))
            }
            (kind::GRAPH, name::GRAPH_ENGINES) => Some(Value::number(1)),
            _ => self.attributes.get(&attribute).cloned().or_else(|| missing(attribute)),
        }
    }

    /// The operations that a plan runs.
    fn operations(&self) -> &[Arc<Descriptor>] {
        let engine = self.inner(name::PLAN_CONFIG).and_then(|config| config.inner(name::CONFIG_ENGINE));
        engine
            .and_then(|engine| engine.inner(name::ENGINE_GRAPH))
            .map_or(&[], |graph| graph.descriptors(name::GRAPH_OPERATIONS))
    }

    /// What a plan is for.
    fn purpose(&self) -> Use {
        let operations = self.operations();
        if operations.iter().any(|operation| kind::CONVOLUTIONS.contains(&operation.kind)) {
            Use::Convolution
        } else if operations.iter().any(|operation| operation.kind >= kind::MATMUL) {
            Use::Attention
        } else {
            Use::Other
        }
    }
}

/// What is not set: an engine has no knobs and no notes, and asks for no memory.
fn missing(attribute: i32) -> Option<Value> {
    match attribute {
        name::PLAN_WORKSPACE | name::CONFIG_WORKSPACE | name::ENGINE_INDEX => Some(Value::number(0)),
        name::CONFIG_SHARED_MEMORY => Some(Value::Plain { size: 4, bytes: vec![0; 4] }),
        name::CONFIG_INTERMEDIATES
        | name::CONFIG_KNOBS
        | name::PLAN_INTERMEDIATES
        | name::ENGINE_KNOBS
        | name::ENGINE_NUMERICS
        | name::ENGINE_LAYOUTS
        | name::ENGINE_BEHAVIOUR => Some(Value::none()),
        _ => None,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendCreateDescriptor(kind: c_int, place: *mut *mut Descriptor) -> Status {
    // SAFETY: the caller's variable; `cudnnBackendDestroyDescriptor` takes the descriptor back.
    unsafe { put(place, Box::into_raw(Box::new(Descriptor::new(kind)))) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendDestroyDescriptor(descriptor: *mut Descriptor) -> Status {
    if !descriptor.is_null() {
        // SAFETY: the caller has it from `cudnnBackendCreateDescriptor`, and does not use it again.
        drop(unsafe { Box::from_raw(descriptor) });
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendSetAttribute(
    descriptor: *mut Descriptor,
    attribute: c_int,
    kind: c_int,
    count: i64,
    elements: *const c_void,
) -> Status {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: null, or a descriptor that the caller has made and nobody else uses now.
    let Some(descriptor) = (unsafe { descriptor.as_mut() }) else { return BAD_PARAM };
    if elements.is_null() && count > 0 {
        return BAD_PARAM;
    }
    let value = if kind == DESCRIPTOR {
        let inner = (0..count).filter_map(|index| {
            // SAFETY: an array of so many descriptors, each of the caller's making.
            unsafe { elements.cast::<*const Descriptor>().add(index).read_unaligned().as_ref() }
        });
        Value::Descriptors(inner.map(|inner| Arc::new(inner.clone())).collect())
    } else {
        let size = size(kind);
        let bytes = match count {
            0 => Vec::new(),
            // SAFETY: the caller's elements, so many of that size.
            _ => unsafe { std::slice::from_raw_parts(elements.cast::<u8>(), count * size) }.to_vec(),
        };
        Value::Plain { size, bytes }
    };
    descriptor.attributes.insert(attribute, value);
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendGetAttribute(
    descriptor: *const Descriptor,
    attribute: c_int,
    _kind: c_int,
    room: i64,
    count: *mut i64,
    elements: *mut c_void,
) -> Status {
    // SAFETY: null, or a descriptor of the caller's making.
    let Some(descriptor) = (unsafe { descriptor.as_ref() }) else { return BAD_PARAM };
    let Some(value) = descriptor.answer(attribute) else { return NOT_SUPPORTED };
    // SAFETY: the caller's variable, or null.
    unsafe { put(count, value.count() as i64) };
    let filled = value.count().min(usize::try_from(room).unwrap_or(0));
    if elements.is_null() || filled == 0 {
        return OK;
    }
    match value {
        Value::Plain { size, bytes } => {
            // SAFETY: the caller has room for so many elements of that size.
            unsafe { elements.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), filled * size) };
        }
        Value::Descriptors(all) => {
            for (index, inner) in all.iter().take(filled).enumerate() {
                // SAFETY: an array of descriptors that the caller has made to be filled.
                let place = unsafe { elements.cast::<*mut Descriptor>().add(index).read_unaligned().as_mut() };
                if let Some(place) = place {
                    place.clone_from(inner);
                }
            }
        }
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendFinalize(descriptor: *mut Descriptor) -> Status {
    if descriptor.is_null() { BAD_PARAM } else { OK }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendExecute(
    _handle: *mut c_void,
    plan: *const Descriptor,
    _pack: *mut c_void,
) -> Status {
    // SAFETY: null, or a plan of the caller's making.
    match unsafe { plan.as_ref() } {
        Some(plan) if plan.kind == kind::PLAN => used(plan.purpose()),
        _ => return BAD_PARAM,
    }
    OK
}
