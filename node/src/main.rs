//! The `forebay` command.

use std::process::ExitCode;

use clap::Parser;

/// Small allocations from many threads dominate; the system's allocator keeps what threads freed to itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    forebay_node::cli::main(forebay_node::cli::Command::parse())
}
