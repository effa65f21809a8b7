use std::net::TcpListener;

use crate::run::{refused, run};

#[test]
fn a_port_that_is_taken_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let parts = [&format!("cannot listen on 127.0.0.1:{port}: "), "in use", "give another --port, or none"];
    refused(&["explore", "--no-open", "--port", &port], &parts);
}

#[test]
fn a_port_is_a_number() {
    for port in ["-1", "65536", "http", "80.5", ""] {
        refused(&["explore", "--no-open", "--port", port], &["--port <PORT>"]);
    }
}

#[test]
fn a_source_that_is_none_is_said_before_anything_is_served() {
    refused(&["explore", "--no-open", "llama-3-9b"], &["llama-3-9b", "llama-3-8b"]);
    refused(&["explore", "--no-open", "no/config.json"], &["cannot read no/config.json"]);
    refused(&["explore", "--no-open", "--device-file", "no.toml"], &["no.toml"]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let damaged = path("step.rmt");
    std::fs::write(&damaged, "{\"format\": \"rematic-trace\"").unwrap();
    refused(&["explore", "--no-open", &damaged], &["step.rmt"]);
    let config = path("config.json");
    std::fs::write(&config, "{}").unwrap();
    refused(&["explore", "--no-open", &config], &["config.json"]);
}

#[test]
fn it_has_no_options_of_a_plan() {
    let ran = run(&["explore", "--no-open", "--budget", "1GiB"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("unexpected argument '--budget'"), "{ran:?}");
}
