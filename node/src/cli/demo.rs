//! `forebay demo`: placeholder until written below.
/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Arguments {}
/// Runs.
pub fn run(_: &Arguments) -> anyhow::Result<()> {
    anyhow::bail!("not yet")
}
