//! The `forebay` command.

use std::process::ExitCode;

use clap::Parser;

/// Small allocations from many threads dominate; the system's allocator keeps what threads freed to itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Small allocations of many threads, each on a huge page of its own, take 25 MiB of an idle node; large ones are not faster on them. A kernel
    // without huge pages says no, and that is as well.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    forebay_node::cli::main(forebay_node::cli::Command::parse())
}
