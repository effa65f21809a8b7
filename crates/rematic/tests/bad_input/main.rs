//! What the command line says about input that it cannot use: exit code 2, one `error:` with what happened and what to
//! do on stderr, nothing on stdout, and all of it soon.

mod config;
mod devices;
mod explore;
mod fit;
mod gates;
mod options;
mod output;
mod planning;
mod plans;
mod recipes;
mod report;
mod run;
mod sharding;
mod tables;
mod traces;
