//! Pickles by hand, each as Python's own would have it.

use super::document::{Document, Value};
use super::machine::PickleError;
use super::{is_pickle, read};

/// A value as Python would print it.
fn shown(document: &Document, value: Value) -> String {
    let list = |values: &[Value]| values.iter().map(|value| shown(document, *value)).collect::<Vec<_>>().join(", ");
    match value {
        Value::None => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Unsigned(number) => number.to_string(),
        Value::Huge => "huge".to_owned(),
        Value::Float(number) => format!("{number:?}"),
        Value::Text(text) => format!("{:?}", document.text(text)),
        Value::Bytes => "bytes".to_owned(),
        Value::List(id) => format!("[{}]", list(document.list(id))),
        Value::Tuple(id) => format!("({})", list(document.list(id))),
        Value::Dict(id) => {
            let pair =
                |(key, value): &(Value, Value)| format!("{}: {}", shown(document, *key), shown(document, *value));
            format!("{{{}}}", document.dict(id).iter().map(pair).collect::<Vec<_>>().join(", "))
        }
    }
}

fn reads(bytes: &[u8]) -> String {
    let document = read(bytes.to_vec()).unwrap();
    shown(&document, document.root)
}

fn fails(bytes: &[u8]) -> PickleError {
    read(bytes.to_vec()).unwrap_err()
}

/// What `pickle.dumps([None, True, -1, 300, 2**40, 2**63, -2**70, 1.5, "é", (1, 2), {"a": []}], protocol)` gives.
const EXPECTED: &str =
    r#"[None, True, -1, 300, 1099511627776, 9223372036854775808, huge, 1.5, "é", (1, 2), {"a": []}]"#;

#[test]
fn protocol_0_is_read() {
    let pickle = b"(lp0\nNaI01\naI-1\naI300\naI1099511627776\naL9223372036854775808L\naL-1180591620717411303424L\naF1.5\naV\xe9\np1\na(I1\nI2\ntp2\na(dp3\nVa\np4\n(lp5\nsa.";
    assert_eq!(reads(pickle), EXPECTED);
}

#[test]
fn protocol_2_is_read() {
    let pickle = b"\x80\x02]q\x00(N\x88J\xff\xff\xff\xffM,\x01\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xc0G?\xf8\x00\x00\x00\x00\x00\x00X\x02\x00\x00\x00\xc3\xa9q\x01K\x01K\x02\x86q\x02}q\x03X\x01\x00\x00\x00aq\x04]q\x05se.";
    assert_eq!(reads(pickle), EXPECTED);
}

#[test]
fn protocol_5_is_read() {
    let pickle = b"\x80\x05\x95\x48\x00\x00\x00\x00\x00\x00\x00]\x94(N\x88J\xff\xff\xff\xffM,\x01\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xc0G?\xf8\x00\x00\x00\x00\x00\x00\x8c\x02\xc3\xa9\x94K\x01K\x02\x86\x94}\x94\x8c\x01a\x94]\x94se.";
    assert_eq!(reads(pickle), EXPECTED);
}

#[test]
fn what_is_kept_is_shared() {
    assert_eq!(reads(b"\x80\x04\x8c\x01a\x94h\x00h\x00\x87."), r#"("a", "a", "a")"#);
    assert_eq!(reads(b"(lp7\ng7\n0."), "[]");
    assert_eq!(reads(b"\x80\x02K\x01r\xff\xff\xff\x7f0j\xff\xff\xff\x7f."), "1");
}

#[test]
fn escapes_and_old_texts_are_read() {
    assert_eq!(reads(b"V\\u00e9\\U0001f600\\x41\n."), "\"é😀A\"");
    assert_eq!(reads(b"S'it\\'s'\n."), "\"it's\"");
    assert_eq!(reads(b"U\x03abc."), "\"abc\"");
    assert_eq!(reads(b"\x80\x04\x8c\x02\xff\xfe."), "\"\u{fffd}\u{fffd}\"");
}

#[test]
fn marks_are_those_of_python() {
    assert_eq!(reads(b"(K\x01K\x021N."), "None");
    assert_eq!(reads(b"K\x01(0K\x02\x86."), "(1, 2)");
    assert_eq!(reads(b"K\x012\x86."), "(1, 1)");
}

#[test]
fn a_list_that_holds_itself_is_no_danger() {
    let document = read(b"\x80\x04]\x94h\x00a.".to_vec()).unwrap();
    let Value::List(list) = document.root else { panic!("{:?}", document.root) };
    assert_eq!(document.list(list), [document.root]);
}

#[test]
fn objects_are_refused_by_class() {
    let words = |pickle: &[u8]| fails(pickle).to_string();
    assert_eq!(
        words(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."),
        "it holds an object of class os.system (byte 2); a snapshot is plain data, and nothing else is loaded"
    );
    assert_eq!(
        words(b"\x80\x04\x8c\x05posix\x8c\x06system\x93."),
        "it holds an object of class posix.system (byte 17); a snapshot is plain data, and nothing else is loaded"
    );
    assert!(matches!(fails(b"(ios\nsystem\n."), PickleError::Class { class, .. } if class == "os.system"));
    assert!(words(b"c\x1b[31mos\nsys\ttem\n.").contains("\u{fffd}[31mos.sys\u{fffd}tem"));
}

#[test]
fn everything_else_that_is_not_plain_is_refused_by_name() {
    let cases: [(&[u8], &str); 12] = [
        (b"N)R.", "REDUCE"),
        (b"NNb.", "BUILD"),
        (b"(No.", "OBJ"),
        (b"N)\x81.", "NEWOBJ"),
        (b"N)}\x92.", "NEWOBJ_EX"),
        (b"P1\n.", "PERSID"),
        (b"NQ.", "BINPERSID"),
        (b"\x82\x01.", "EXT"),
        (b"\x8f.", "SET"),
        (b"(\x91.", "SET"),
        (b"\x97.", "BUFFER"),
        (b"NN\x93.", "STACK_GLOBAL"),
    ];
    for (pickle, name) in cases {
        assert!(matches!(fails(pickle), PickleError::Foreign { opcode, .. } if opcode == name), "{name}");
    }
}

#[test]
fn damage_is_named() {
    let words = |pickle: &[u8]| fails(pickle).to_string();
    assert_eq!(words(b"\x80\x06."), "it is a pickle of protocol 6, and the newest that is known is 5");
    assert_eq!(
        words(b"\x80\x04\x8c\x09abc"),
        "it ends too early: at byte 4 of 7, 9 more are needed; it was not written to its end, or cut"
    );
    assert_eq!(words(b"\x80\x04\xff"), "byte 2 is 0xff, which means nothing in a pickle; the file is damaged");
    assert_eq!(words(b"\x80\x04."), "byte 2 works on a value that is not there; the file is damaged");
    assert_eq!(words(b"\x80\x04h\x07."), "byte 2 asks for a value that was not kept; the file is damaged");
    assert_eq!(words(b"I12x\n."), "at byte 1 stands `12x` in place of a number; the file is damaged");
    for pickle in [&b"a."[..], b"NNs.", b"(NNNd.", b"Na.", b"t.", b"\x87.", b"2.", b"0.", b"1.", b"g-1\n."] {
        assert!(
            matches!(fails(pickle), PickleError::Stack { .. } | PickleError::Memo { .. }),
            "{pickle:?}: {:?}",
            fails(pickle)
        );
    }
}

#[test]
fn a_length_that_no_file_has_takes_no_memory() {
    for pickle in [
        &b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff"[..],
        b"X\xff\xff\xff\xff",
        b"\x8b\xff\xff\xff\x7f",
        b"\x96\0\0\0\0\0\0\0\x80",
    ] {
        assert!(matches!(fails(pickle), PickleError::Ended { .. }), "{pickle:?}");
    }
}

#[test]
fn pickles_are_known_by_their_start() {
    for start in [&b"\x80\x05\x95"[..], b"\x80\x02}q\x00", b"(dp0\n", b"}q\x00"] {
        assert!(is_pickle(start), "{start:?}");
    }
    for start in [&b""[..], b"{\"a\"", b"\x80\x06", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"(lp0"] {
        assert!(!is_pickle(start), "{start:?}");
    }
}
