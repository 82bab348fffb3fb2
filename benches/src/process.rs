//! Processes: what they use, and that those started here end with us, however we end but for SIGKILL.
//!
//! Invariant: only processes that were started here are signalled, by id, and only while they have not been reaped.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    sync::Mutex,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};

/// Children and directories to be done away with should a signal end us.
static LEFT_BEHIND: Mutex<(Vec<u32>, Vec<PathBuf>)> = Mutex::new((Vec::new(), Vec::new()));

/// Processor time of the calling thread, user and system.
pub fn thread_cpu() -> Duration {
    // SAFETY: an rusage is plain numbers, for which zeros are values.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: getrusage fills the struct it is given.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    let time = |value: libc::timeval| Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Processor time of a process, all its threads, user and system.
///
/// # Errors
/// When it does not run.
pub fn process_cpu(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid}"))?;
    // SAFETY: sysconf reads a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let used = stat_ticks(&stat).ok_or_else(|| anyhow!("the kernel's account of process {pid}: {stat}"))?;
    Ok(Duration::from_secs_f64(used as f64 / ticks.max(1) as f64))
}

/// `utime` plus `stime`: the 14th and 15th field; the second, the name, may hold anything.
fn stat_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Resident memory of a process in bytes.
///
/// # Errors
/// When it does not run.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.ok_or_else(|| anyhow!("process {pid} has no VmRSS"))? * 1024)
}

/// A child that is killed when this value goes. Should we be killed outright, the kernel ends it too, unless it has changed identity
/// since: a server that acts as its callers has, and must then be ended by hand.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    log: PathBuf,
}

impl Guard {
    /// Starts a command with its output in the file `log`. To be called on the main thread.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let output = fs::File::create(log)?;
        command.stdin(std::process::Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // SAFETY: these calls are async-signal-safe and touch only the new process.
        unsafe {
            command.pre_exec(|| {
                let mut none: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&mut none);
                libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
                match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
        remember(|(children, _)| children.push(child.id()));
        Ok(Self { child, log: log.to_owned() })
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// When the kernel cannot say.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// The end of what it wrote.
    pub fn log(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let pid = self.child.id();
        remember(|(children, _)| children.retain(|child| *child != pid));
        // Gone already is fine: nothing is signalled then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that goes with this value, or with us should a signal end us.
#[derive(Debug)]
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// Makes one in `parent`.
    ///
    /// # Errors
    /// When that cannot be written to.
    pub fn new(parent: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("forebay-benches-").tempdir_in(parent);
        let directory = directory.with_context(|| format!("a directory in {}", parent.display()))?;
        remember(|(_, directories)| directories.push(directory.path().to_owned()));
        Ok(Self(directory))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP end us only after children and directories are gone. To be called before any thread is started.
pub fn clean_up_on_signals() {
    // SAFETY: a signal set is plain memory; the calls only change this thread's mask, which threads started later inherit.
    let signals = unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&mut signals, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
        signals
    };
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: both outlive the call.
        unsafe { libc::sigwait(&signals, &mut signal) };
        remember(|(children, directories)| {
            for child in children.iter() {
                // SAFETY: kill takes numbers; a child is taken off the list before it is reaped.
                unsafe { libc::kill(*child as libc::pid_t, libc::SIGKILL) };
            }
            for directory in directories.iter() {
                let _ = fs::remove_dir_all(directory);
            }
            std::process::exit(128 + signal);
        });
    });
}

fn remember(change: impl FnOnce(&mut (Vec<u32>, Vec<PathBuf>))) {
    change(&mut LEFT_BEHIND.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_anything_in_it_does_not_move_the_fields() {
        let stat = "42 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 1500 77 20 0 5";
        assert_eq!(stat_ticks(stat), Some(1577));
        assert_eq!(stat_ticks("42 (short) R 1"), None);
        assert_eq!(stat_ticks(""), None);
    }

    #[test]
    fn our_own_figures_can_be_read() {
        let own = std::process::id();
        assert!(resident_bytes(own).unwrap() > 4096);
        process_cpu(own).unwrap();
    }
}
