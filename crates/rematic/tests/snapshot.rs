//! `rematic explain` and `rematic report` with memory snapshots, as people call them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A directory with one of the recorded snapshots of `rematic-snapshot`.
fn with_snapshot(name: &str) -> (TempDir, PathBuf) {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rematic-snapshot/tests/snapshots");
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("snapshot.pickle");
    let packed = File::open(kept.join(format!("{name}.pickle.zst"))).unwrap();
    io::copy(&mut zstd::Decoder::new(packed).unwrap(), &mut File::create(&path).unwrap()).unwrap();
    (place, path)
}

fn rematic(place: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rematic"));
    command.current_dir(place.path()).env("COLUMNS", "100").env_remove("CLICOLOR_FORCE").args(arguments);
    command.output().unwrap()
}

fn said(place: &TempDir, arguments: &[&str]) -> String {
    let output = rematic(place, arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(place: &TempDir, arguments: &[&str]) -> String {
    let output = rematic(place, arguments);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn why_it_ran_out_is_told_word_for_word() {
    let (place, _) = with_snapshot("fragments");
    let expected = "\
snapshot.pickle, GPU 0
Out of memory: 200.00 MiB were asked for by train.py:68 empty, and the device had 132.00 MiB left.
72.00 MiB requested, 72.00 MiB allocated, 768.00 MiB reserved of 900.00 MiB that the process could
have
 in memory             blocks
 other      72.00 MiB       6

 largest tensors      part   asked for by       in the calls
       72.00 MiB  6×  other  train.py:68 empty

Fragmentation:
  696.00 MiB of 768.00 MiB reserved were not in use (90.6 %), in 6 pieces, the largest of 116.00
  MiB; rounding took 0 B.
";
    let text = said(&place, &["explain", "snapshot.pickle"]);
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains(" 116.00 MiB       128.00 MiB  1 block  12.00 MiB train.py:68 empty\n"), "{text}");
    assert!(text.contains(" expandable_segments:True"), "{text}");
    assert!(text.contains("would have met the request that failed"), "{text}");
    assert!(
        text.ends_with(
            "The record has 49 events and begins with the first request of the process.\n\
             Made again with the recorded settings, the requests lead to the same 7 calls of the driver.\n\
             Of settings that run out, what they reserve is what they would reserve on a device without that\n\
             limit.\n"
        ),
        "{text}"
    );
}

#[test]
fn json_has_the_whole_story() {
    let (place, _) = with_snapshot("runs-out");
    let story: serde_json::Value =
        serde_json::from_str(&said(&place, &["explain", "snapshot.pickle", "--json"])).unwrap();
    assert_eq!(story["moment"]["kind"], "out_of_memory");
    assert_eq!(story["failure"]["capacity_bytes"], 500_000_000);
    assert_eq!(story["rerun"]["reproduced"], true);
    assert!(story["moment"]["groups"][0]["stack"].as_array().unwrap().len() > 2);
    assert!(story["trials"].as_array().unwrap().iter().any(|trial| trial["outcome"] == "saved"));
}

/// Without line breaks, which depend on the width.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn settings_are_shown_with_the_most_that_they_reserve() {
    let (place, _) = with_snapshot("expandable");
    let text = said(&place, &["explain", "snapshot.pickle"]);
    let (_, table) = text.split_once(" with other settings").unwrap();
    let rows: Vec<String> = table.lines().take_while(|line| !line.is_empty()).map(flat).collect();
    assert_eq!(rows[0], "reserves at most", "{text}");
    assert!(rows[1].starts_with("as it was: expandable_segments:True ") && rows[1].ends_with(" as recorded"), "{text}");
    assert!(rows.iter().any(|row| row.starts_with("expandable_segments:False ")), "{text}");
    assert_eq!(table.matches("expandable_segments:True,expandable_segments:False").count(), 0, "{text}");
}

#[test]
fn settings_that_are_not_modelled_are_not_tried() {
    let (place, path) = with_snapshot("expandable");
    let (old, new) = (b"expandable_segments:True", b"backend:cudaMallocAsync,");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(old.len()).position(|found| found == old).unwrap();
    bytes[at..at + old.len()].copy_from_slice(new);
    fs::write(&path, bytes).unwrap();
    let text = said(&place, &["explain", "snapshot.pickle"]);
    assert!(!text.contains("with other settings") && !text.contains("Made again"), "{text}");
    assert!(
        flat(&text).contains(
            "The recorded settings could not all be read: backend:cudaMallocAsync is not modelled: the driver decides \
             there what is reserved."
        ),
        "{text}"
    );
    assert!(flat(&text).ends_with("So no other settings can be tried."), "{text}");
}

#[test]
fn what_runs_out_is_said_once_and_whole() {
    let (place, _) = with_snapshot("runs-out");
    let text = said(&place, &["explain", "snapshot.pickle"]);
    let rows: Vec<&str> = text.lines().filter(|line| line.contains(" runs out")).collect();
    assert!(!rows.is_empty() && rows.iter().all(|row| row.ends_with("  runs out at the same request")), "{text}");
    assert!(
        flat(&text).contains(
            "Of settings that run out, what they reserve is what they would reserve on a device without that limit."
        ),
        "{text}"
    );
}

#[test]
fn other_gpus_are_named_with_their_option() {
    let (place, _) = with_snapshot("two-gpus");
    let text = said(&place, &["explain", "snapshot.pickle"]);
    assert!(text.contains("The snapshot also has GPU 0; see it with --gpu 0.\n"), "{text}");
    let text = said(&place, &["explain", "snapshot.pickle", "--gpu", "0"]);
    assert!(text.contains("The snapshot also has GPU 1; see it with --gpu 1.\n"), "{text}");
    assert!(text.contains("the same call of the driver") && !text.contains(" 1 calls"), "{text}");
}

/// A snapshot is known by what is in it.
#[test]
fn a_snapshot_of_any_name_is_known() {
    let (place, path) = with_snapshot("step");
    fs::rename(&path, place.path().join("memory.dump")).unwrap();
    let text = said(&place, &["explain", "memory.dump"]);
    assert!(text.starts_with("memory.dump, GPU 0\nThe peak is 166.17 MiB allocated, after event "), "{text}");
}

#[test]
fn a_record_that_begins_later_says_so() {
    let (place, _) = with_snapshot("late");
    let text = said(&place, &["explain", "snapshot.pickle"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("begins later: 38 blocks (17.04 MiB) were")
            && text.contains("were there before, of which it knows no more."),
        "{text}"
    );
    assert!(text.contains("placed anew, one behind the other."), "{text}");
}

#[test]
fn options_without_a_meaning_are_refused() {
    let (place, path) = with_snapshot("streams");
    assert_eq!(
        refused(&place, &["explain", "snapshot.pickle", "--batch", "4"]),
        "error: snapshot.pickle is a memory snapshot of a run, for which --batch means nothing; drop it\n"
    );
    assert!(refused(&place, &["explain", "snapshot.pickle", "--device", "h100"]).contains("for which --device means"));
    assert!(refused(&place, &["report", "snapshot.pickle", "--budget", "1GiB"]).contains("for which --budget means"));
    assert_eq!(
        refused(&place, &["explain", "gpt2", "--gpu", "1"]),
        "error: `gpt2` is not a memory snapshot, and --gpu is for those; drop it, or give a file that \
         torch.cuda.memory._dump_snapshot wrote\n"
    );
    assert!(refused(&place, &["explain", "gpt2", "--against", "gpt2"]).contains("and --against is for those"));
    let error = refused(&place, &["explain", "snapshot.pickle", "--gpu", "2"]);
    assert_eq!(error, "error: snapshot.pickle has nothing of GPU 2; it has GPU 0\n");
    fs::write(&path, b"\x80\x04cos\nsystem\n(S'true'\ntR.").unwrap();
    assert_eq!(
        refused(&place, &["explain", "snapshot.pickle"]),
        "error: snapshot.pickle is not a memory snapshot: it holds an object of class os.system (byte 2); a snapshot is \
         plain data, and nothing else is loaded; record it again with torch.cuda.memory._dump_snapshot\n"
    );
    fs::remove_file(&path).unwrap();
    assert!(refused(&place, &["explain", "snapshot.pickle"]).contains("cannot read snapshot.pickle: "));
}

#[test]
fn other_verbs_send_a_snapshot_to_explain() {
    let (place, _) = with_snapshot("streams");
    assert_eq!(
        refused(&place, &["stats", "snapshot.pickle"]),
        "error: snapshot.pickle is a pickle, as memory snapshots are, and not a model; of a snapshot, `rematic explain \
         snapshot.pickle` says what was in memory, and `rematic report snapshot.pickle` shows it\n"
    );
}

#[test]
fn a_prediction_stands_beside_the_run() {
    let (place, _) = with_snapshot("step");
    let arguments = ["explain", "snapshot.pickle", "--against", "seed-transformer", "--batch", "1"];
    let text = said(&place, &arguments);
    assert!(text.contains("against the prediction") && text.contains("allocated at its peak"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&said(&place, &[&arguments[..], &["--json"]].concat())).unwrap();
    assert_eq!(json["prediction"]["model"], "seed-transformer");
}

#[test]
fn the_page_shows_it_and_holds_names_as_text() {
    let (place, _) = with_snapshot("fragments");
    let told = said(&place, &["report", "snapshot.pickle", "-o", "page.html"]);
    assert_eq!(
        told,
        "page.html: ran out of memory with 72.00 MiB allocated and 768.00 MiB reserved, from snapshot.pickle\n"
    );
    let page = fs::read_to_string(place.path().join("page.html")).unwrap();
    assert!(page.contains("Content-Security-Policy") && !page.contains("{{"), "the page");
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    let (data, _) = rest.split_once("</script>").unwrap();
    assert!(!data.contains('<'));
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["map"].as_array().unwrap().len(), 6);
    assert_eq!(data["map"][0][3].as_array().unwrap().len(), 1);
    assert_eq!(data["timeline"].as_array().unwrap().last().unwrap()[0], 49);
    assert_eq!(data["story"]["moment"]["reserved_bytes"], 768 << 20);
}
