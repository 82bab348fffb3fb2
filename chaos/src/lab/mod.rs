//! One machine as a laboratory: namespaces ([`net`]), kernel clients ([`kernel_client`]) and servers ([`server`]).
//!
//! Invariants: every name is made from this process's id and a counter, so test processes and threads do not meet; everything made is
//! taken away on drop; a tool that is not there is an error that names its Debian package, never a skipped test.

pub mod kernel_client;
pub mod net;
pub mod server;

use anyhow::{Context, Result, bail};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A number that no other caller in this process gets.
fn ordinal() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Runs a command to its end; its error output becomes the error.
///
/// # Errors
/// When it cannot be started or does not exit with 0.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Fails unless this process is root and each program is installed. `needs` pairs a program with the Debian package that has it.
fn require(needs: &[(&str, &str)]) -> Result<()> {
    // SAFETY: geteuid reads a number and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        bail!("the lab makes network namespaces and boots kernels: run it as root");
    }
    for (program, package) in needs {
        let found = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|dir| Path::new(dir).join(program).exists());
        if !found {
            bail!("{program} is not here: apt-get install {package}");
        }
    }
    Ok(())
}

/// A command in a namespace, in a process group of its own, killed by the kernel should the thread that starts it end first.
fn in_namespace(netns: &str, program: &Path) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns]).arg(program).process_group(0);
    // SAFETY: prctl is async-signal-safe and touches only the new process.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command
}

/// Sends a signal to the process group that `leader` leads; gone already is fine.
fn signal_group(leader: u32, signal: libc::c_int) {
    // SAFETY: kill takes numbers; the group is one that `in_namespace` made, whose leader has not been reaped yet.
    unsafe { libc::kill(-(leader as libc::pid_t), signal) };
}
