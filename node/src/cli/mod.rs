//! The command line: arguments in, exit status out.
//!
//! Owns: reading arguments, the runtime, signals, what is printed. Never does: anything a library user could want.

mod ask;
mod check;
mod demo;
mod doctor;
mod evict;
mod pin;
mod serve;
mod status;
mod warm;

use std::{io::IsTerminal, process::ExitCode};

use clap::Parser;
use tracing_subscriber::EnvFilter;

/// A distributed NFS cache: this node's server and its tools.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, about, arg_required_else_help = true, max_term_width = 100)]
pub enum Command {
    /// Serve exports over NFSv4.1 and NFSv4.2.
    Serve(Box<serve::Arguments>),
    /// Show what a running node does.
    Status(status::Arguments),
    /// Say what bounds a running node now, and what would help.
    Doctor(doctor::Arguments),
    /// Fetch files into a node's cache before anybody reads them.
    Warm(warm::Arguments),
    /// Show how much of files and trees a node has cached.
    Check(check::Arguments),
    /// Let go of what a node has cached of files.
    Evict(evict::Arguments),
    /// Keep files on a node's NVMe whatever else is wanted.
    Pin(pin::PinArguments),
    /// Treat pinned files as all others again.
    Unpin(pin::UnpinArguments),
    /// Serve a sample tree on loopback, read and write it over NFSv4.1, print rates, leave nothing running.
    Demo(demo::Arguments),
}

/// Runs a command.
pub fn main(command: Command) -> ExitCode {
    let result = match command {
        Command::Serve(arguments) => serve::run(*arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Warm(arguments) => warm::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Evict(arguments) => evict::run(&arguments),
        Command::Pin(arguments) => pin::pin(&arguments),
        Command::Unpin(arguments) => pin::unpin(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Logs to standard error; `FOREBAY_LOG` chooses what (as `debug` or `forebay_node::front=trace`). Of openraft's steps only what goes wrong is
/// told, unless it is asked for by name.
fn log(default: &str) {
    let chosen = std::env::var("FOREBAY_LOG").unwrap_or_else(|_| default.to_owned());
    let quiet = if chosen.contains("openraft") { chosen.clone() } else { format!("{chosen},openraft=error") };
    let filter = EnvFilter::try_new(quiet).unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}

/// Worker threads: a call on a local directory may wait for its disk, and others must go on meanwhile.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let workers = (2 * cores).clamp(4, 64);
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_name("forebay")
        .thread_stack_size(1 << 20)
        .enable_all()
        .build()?)
}
