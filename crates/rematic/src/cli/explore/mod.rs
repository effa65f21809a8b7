//! The verb `explore`: a page on this machine alone, and the planner behind it.

mod answers;
mod browser;
mod question;
mod recent;
mod server;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use clap::Args;
use tiny_http::Server;

use super::{Failure, Warnings, known_devices};
use crate::{Error, Source, options};
use answers::Answers;
use question::Catalog;
use server::{Door, serve};

/// So many random bytes are in the address: nobody guesses it.
const TOKEN_BYTES: usize = 16;

/// What the verb takes.
#[derive(Args)]
pub(crate) struct ExploreArguments {
    /// What to begin with: a built-in model's name, a Hugging Face config.json, or a saved trace.
    #[arg(value_name = "SOURCE", default_value = options::MODEL)]
    pub(crate) source: String,
    /// The port on 127.0.0.1 [default: any that is free]
    #[arg(long, value_name = "PORT", allow_negative_numbers = true)]
    pub(crate) port: Option<u16>,
    /// Print the address, and open no browser.
    #[arg(long)]
    pub(crate) no_open: bool,
    /// A file with more devices, in the format of the built-in list.
    #[arg(long, value_name = "FILE")]
    pub(crate) device_file: Option<PathBuf>,
}

/// Serves the page until the terminal or the program that started it is gone.
pub(crate) fn explore(arguments: &ExploreArguments, warnings: Warnings) -> Result<String, Failure> {
    let devices = known_devices(arguments.device_file.as_deref())?;
    let source = Source::open(&arguments.source)?;
    let catalog = Catalog::new(&arguments.source, &source, &devices)?;
    let wanted = arguments.port.unwrap_or(0);
    let refused = |source| Error::Port { port: wanted, source };
    let server = Arc::new(Server::http(("127.0.0.1", wanted)).map_err(refused)?);
    let port = server.server_addr().to_ip().map_or(wanted, |address| address.port());
    let token = token().map_err(|source| refused(source.into()))?;
    let door = Door::new(port, token);
    let address = door.address();
    let mut stdout = std::io::stdout();
    let told = writeln!(stdout, "{address}\nOpen it in a browser on this machine. Ctrl-C ends it.");
    told.and_then(|()| stdout.flush()).map_err(Failure::Output)?;
    if !arguments.no_open {
        browser::open(&address);
    }
    let page = catalog.page().html();
    end_with_input(Arc::clone(&server));
    serve(&server, door, page, Arc::new(Answers::new(catalog, arguments.device_file.clone(), warnings)));
    Ok(String::new())
}

fn token() -> Result<String, getrandom::Error> {
    let mut bytes = [0; TOKEN_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A program that started the command through a pipe ends it by closing that. A terminal does so by its signals; to read from it
/// would stop a command in the background. Nothing is ever read from `/dev/null`, which is no end of anything.
fn end_with_input(server: Arc<Server>) {
    if is_pipe() {
        thread::spawn(move || {
            // Whether it ended or cannot be read, nobody is there any more.
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            server.unblock();
        });
    }
}

#[cfg(unix)]
fn is_pipe() -> bool {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileTypeExt;

    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    let kind = stdin.and_then(|stdin| File::from(stdin).metadata()).map(|metadata| metadata.file_type());
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket())
}

#[cfg(not(unix))]
fn is_pipe() -> bool {
    false
}
