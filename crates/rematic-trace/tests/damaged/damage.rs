use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

/// One change of a parsed trace.
#[derive(Clone, Debug)]
pub(crate) enum Wound {
    /// Another number in place of some number below a table.
    Number(Option<&'static str>, Index, Value),
    /// Another word in place of some text.
    Text(Index, &'static str),
    /// Two elements of some list change places.
    Swap(Index, Index, Index),
    /// An element of some list goes.
    Delete(Index, Index),
    /// An element of some list is there twice.
    Duplicate(Index, Index),
    /// A field of some object goes.
    Forget(Index, Index),
    /// Something of another kind.
    Replace(Index, Value),
    /// Another layout: extents, and strides that may be 0.
    Layout(Index, &'static str, Vec<(u64, u64)>),
    /// Another operator's name.
    Name(Index, &'static str),
    /// Another event somewhere.
    Event(Index, Value),
    /// More of what a row of a table has in a list.
    Repeat(&'static str, Index, &'static str, usize),
}

/// Words of the format, names of operators that have formulas of their own, and others.
const WORDS: [&str; 32] = [
    "",
    "f64",
    "f8",
    "c128",
    "bool",
    "parameter",
    "gradient",
    "other",
    "backward",
    "optimizer",
    "view",
    "host",
    "collective",
    "pinned",
    "released",
    "unknown",
    "all_to_all",
    "compute",
    "dp_shard",
    "dp_shard+dp_shard",
    "cpu",
    "cuda",
    "mm.default",
    "bmm.default",
    "convolution.default",
    "convolution_backward.default",
    "embedding.default",
    "_scaled_dot_product_flash_attention_backward.default",
    "nll_loss_forward.default",
    "a.b.c",
    "0",
    "\u{1b}[31mé\n",
];

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => (0..64_u64).prop_map(|number| json!(number)),
        1 => select(vec![
            json!(-1), json!(0.5), json!(1e300), json!(u64::MAX), json!(1_u64 << 63), json!((1_u64 << 62) - 1),
            json!(1_u64 << 61), json!(u32::MAX), json!(1_u64 << 32), json!(i64::MIN), json!(1_000_000),
        ]),
    ]
}

impl Wound {
    pub(crate) fn any() -> BoxedStrategy<Wound> {
        let at = any::<Index>;
        prop_oneof![
            3 => (at(), number()).prop_map(|(at, value)| Wound::Number(None, at, value)),
            1 => (at(), select(WORDS.to_vec())).prop_map(|(at, word)| Wound::Text(at, word)),
            1 => (at(), at(), at()).prop_map(|(list, a, b)| Wound::Swap(list, a, b)),
            1 => (at(), at()).prop_map(|(list, a)| Wound::Delete(list, a)),
            1 => (at(), at()).prop_map(|(list, a)| Wound::Duplicate(list, a)),
            1 => (at(), at()).prop_map(|(object, a)| Wound::Forget(object, a)),
            1 => (at(), select(vec![json!(null), json!([]), json!({}), json!(true), json!(3)]))
                .prop_map(|(at, value)| Wound::Replace(at, value)),
        ]
        .boxed()
    }

    /// Changes that often leave a valid trace.
    pub(crate) fn of_contents() -> BoxedStrategy<Wound> {
        let at = any::<Index>;
        let extent = prop_oneof![0..4_u64, select(vec![1 << 20, 1 << 31, 1 << 61, u64::MAX])];
        let stride = prop_oneof![3 => Just(0_u64), 1 => 0..4_u64, 1 => Just(u64::MAX)];
        let dims = prop::collection::vec((extent, stride), 0..5);
        let tables = vec!["storages", "layouts", "calls", "collectives", "place"];
        let lists = vec![
            ("ops", "inputs"),
            ("ops", "saves"),
            ("ops", "mutates"),
            ("ops", "outputs"),
            ("modules", "parameters"),
            ("calls", "inputs"),
            ("calls", "outputs"),
        ];
        prop_oneof![
            2 => (select(tables), at(), number()).prop_map(|(table, at, value)| Wound::Number(Some(table), at, value)),
            2 => (at(), select(vec!["f32", "bf16", "f8", "c128"]), dims)
                .prop_map(|(at, dtype, dims)| Wound::Layout(at, dtype, dims)),
            2 => (at(), select(WORDS.to_vec())).prop_map(|(at, word)| Wound::Name(at, word)),
            2 => (select(lists), at(), 1..40_usize)
                .prop_map(|((table, list), at, times)| Wound::Repeat(table, at, list, times)),
            2 => (at(), event()).prop_map(|(at, event)| Wound::Event(at, event)),
            1 => (at(), select(WORDS.to_vec())).prop_map(|(at, word)| Wound::Text(at, word)),
        ]
        .boxed()
    }
}

/// Of those that version 2 brought.
fn event() -> impl Strategy<Value = Value> {
    (select(vec!["release", "restore", "wait", "micro_batch"]), 0..40_u64, 0..3_u64).prop_map(|(name, id, other)| {
        if name == "wait" {
            json!({ name: [other, id % 3] })
        } else {
            json!({ name: if name == "micro_batch" { other } else { id } })
        }
    })
}

pub(crate) fn wound(trace: &mut Value, wound: &Wound) {
    match wound {
        Wound::Number(table, at, value) => {
            let below = match table {
                // Not every trace has every table.
                Some(table) => match trace.get_mut(*table) {
                    Some(table) => table,
                    None => return,
                },
                None => trace,
            };
            replace(below, Value::is_number, at, value.clone());
        }
        Wound::Text(at, word) => replace(trace, Value::is_string, at, json!(word)),
        Wound::Replace(at, value) => replace(trace, |_| true, at, value.clone()),
        Wound::Swap(list, a, b) => change_list(trace, list, |rows| {
            let (a, b) = (a.index(rows.len()), b.index(rows.len()));
            rows.swap(a, b);
        }),
        Wound::Delete(list, at) => change_list(trace, list, |rows| {
            rows.remove(at.index(rows.len()));
        }),
        Wound::Duplicate(list, at) => change_list(trace, list, |rows| {
            let at = at.index(rows.len());
            rows.insert(at, rows[at].clone());
        }),
        Wound::Forget(object, at) => change_one(trace, Value::is_object, object, |value| {
            let Some(fields) = value.as_object_mut().filter(|fields| !fields.is_empty()) else { return };
            let field = fields.keys().nth(at.index(fields.len())).cloned().unwrap();
            fields.remove(&field);
        }),
        Wound::Layout(at, dtype, dims) => {
            if let Some(rows) = table(trace, "layouts").filter(|rows| !rows.is_empty()) {
                let at = at.index(rows.len());
                let (shape, strides): (Vec<u64>, Vec<u64>) = dims.iter().copied().unzip();
                rows[at] = json!([dtype, shape, strides]);
            }
        }
        Wound::Event(at, event) => {
            if let Some(rows) = table(trace, "events") {
                rows.insert(at.index(rows.len() + 1), event.clone());
            }
        }
        Wound::Name(at, word) => {
            if let Some(names) = trace.get_mut("names") {
                replace(names, Value::is_string, at, json!(word));
            }
        }
        Wound::Repeat(name, at, list, times) => {
            let Some(rows) = table(trace, name) else { return };
            let mut with: Vec<&mut Value> = rows.iter_mut().filter_map(|row| row.get_mut(*list)).collect();
            if with.is_empty() {
                return;
            }
            let at = at.index(with.len());
            if let Some(items) = with[at].as_array_mut() {
                let more: Vec<Value> = items.iter().cycle().take(*times).cloned().collect();
                items.extend(more);
            }
        }
    }
}

/// The rows of a table, unless earlier damage took it away.
fn table<'a>(trace: &'a mut Value, name: &str) -> Option<&'a mut Vec<Value>> {
    trace.get_mut(name)?.as_array_mut()
}

fn replace(trace: &mut Value, fits: fn(&Value) -> bool, at: &Index, value: Value) {
    change_one(trace, fits, at, |place| *place = value);
}

fn change_list(trace: &mut Value, list: &Index, change: impl FnOnce(&mut Vec<Value>)) {
    let filled = |value: &Value| value.as_array().is_some_and(|rows| !rows.is_empty());
    change_one(trace, filled, list, |value| change(value.as_array_mut().unwrap()));
}

/// Changes one of the values, at any depth, that fit.
fn change_one(trace: &mut Value, fits: impl Fn(&Value) -> bool, at: &Index, change: impl FnOnce(&mut Value)) {
    let mut places = Vec::new();
    collect(trace, &fits, &mut String::new(), &mut places);
    if !places.is_empty() {
        change(trace.pointer_mut(&places[at.index(places.len())]).unwrap());
    }
}

fn collect(value: &Value, fits: &impl Fn(&Value) -> bool, path: &mut String, places: &mut Vec<String>) {
    if fits(value) {
        places.push(path.clone());
    }
    let mut inside = |name: &str, value: &Value| {
        let length = path.len();
        path.push('/');
        path.push_str(name);
        collect(value, fits, path, places);
        path.truncate(length);
    };
    match value {
        Value::Array(items) => items.iter().enumerate().for_each(|(at, item)| inside(&at.to_string(), item)),
        Value::Object(fields) => fields.iter().for_each(|(name, field)| inside(name, field)),
        _ => {}
    }
}
