//! Writes plain data as Python's pickle does, and what Python would never write.

/// Plain data.
#[derive(Clone, Debug)]
pub(crate) enum Plain {
    Int(i128),
    Float(f64),
    Text(&'static str),
    List(Vec<Plain>),
    Tuple(Vec<Plain>),
    Dict(Vec<(&'static str, Plain)>),
    /// Bytes of a pickle that leave one value.
    Raw(Vec<u8>),
}

use Plain::{Dict, Float, Int, List, Raw, Text, Tuple};

/// A pickle of protocol 4.
pub(crate) fn pickle(plain: &Plain) -> Vec<u8> {
    let mut bytes = vec![0x80, 4];
    write(plain, &mut bytes);
    bytes.push(b'.');
    bytes
}

fn write(plain: &Plain, bytes: &mut Vec<u8>) {
    match plain {
        Int(number) => {
            bytes.extend([0x8a, 16]);
            bytes.extend(number.to_le_bytes());
        }
        Float(number) => {
            bytes.push(b'G');
            bytes.extend(number.to_be_bytes());
        }
        Text(text) => {
            bytes.extend([0x8c, u8::try_from(text.len()).unwrap()]);
            bytes.extend(text.bytes());
        }
        List(items) | Tuple(items) => {
            bytes.push(b'(');
            items.iter().for_each(|item| write(item, bytes));
            bytes.push(if matches!(plain, List(_)) { b'l' } else { b't' });
        }
        Dict(entries) => {
            bytes.push(b'(');
            for (key, value) in entries {
                write(&Text(key), bytes);
                write(value, bytes);
            }
            bytes.push(b'd');
        }
        Raw(raw) => bytes.extend(raw),
    }
}

pub(crate) fn event(action: &'static str, address: i128, size: i128) -> Plain {
    let place = if action == "oom" { "device_free" } else { "addr" };
    Dict(vec![
        ("action", Text(action)),
        (place, Int(address)),
        ("size", Int(size)),
        ("stream", Int(0)),
        ("time_us", Int(1)),
        ("frames", List(vec![frame()])),
    ])
}

pub(crate) fn frame() -> Plain {
    Dict(vec![("filename", Text("/home/user/train.py")), ("line", Int(3)), ("name", Text("step"))])
}

pub(crate) fn block(address: i128, size: i128, state: &'static str) -> Plain {
    Dict(vec![
        ("address", Int(address)),
        ("size", Int(size)),
        ("requested_size", Int(size)),
        ("state", Text(state)),
        ("frames", List(vec![])),
    ])
}

pub(crate) fn segment(address: i128, size: i128, blocks: Vec<Plain>) -> Plain {
    Dict(vec![
        ("device", Int(0)),
        ("address", Int(address)),
        ("total_size", Int(size)),
        ("stream", Int(0)),
        ("segment_type", Text("large")),
        ("segment_pool_id", Tuple(vec![Int(0), Int(0)])),
        ("is_expandable", Raw(vec![0x89])),
        ("blocks", List(blocks)),
    ])
}

pub(crate) fn snapshot(segments: Plain, traces: Plain) -> Plain {
    Dict(vec![
        ("segments", segments),
        ("device_traces", traces),
        ("allocator_settings", Dict(vec![("PYTORCH_CUDA_ALLOC_CONF", Text("")), ("max_split_size", Int(-1))])),
        ("external_annotations", List(vec![])),
    ])
}
