//! Whose permissions count: the calling thread's file system user, group and groups.
//!
//! Owns: `setfsuid`, `setfsgid` and `setgroups` of threads, and the umask of threads that create files.
//! Never does: change another thread (raw system calls; glibc's wrappers would change all).
//! Invariants: a thread has at most one identity at a time (a second would end the first one's early, so it is
//! refused); after the guard is dropped the thread is root again, or the process ends. If the kernel did not take the
//! identity over, the operation fails with `EPERM`. With a file system user other than 0 the kernel takes
//! `CAP_CHOWN`, `CAP_DAC_*`, `CAP_FOWNER`, `CAP_FSETID`, `CAP_MKNOD` and `CAP_LINUX_IMMUTABLE` away by itself.
//!
//! Supplementary groups stay set after the guard is dropped and are compared by the next one: with user 0 they decide
//! nothing, and most callers in a row are the same.

use std::{
    cell::{Cell, RefCell},
    marker::PhantomData,
    sync::Arc,
};

use rustix::{
    io::Errno,
    thread::{CapabilitiesSecureBits, CapabilitySet},
};

use crate::source::{Credentials, SourceError};

/// Not a user or group: `setfsuid` of it changes nothing and tells the present one.
const NOBODY_CHANGES: u32 = u32::MAX;

thread_local! {
    /// An [`Identity`] exists on this thread.
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    /// The groups this thread has; `None` until they were set once.
    static GROUPS: RefCell<Option<Arc<[u32]>>> = const { RefCell::new(None) };
    /// Whether this thread's umask is its own: `None` until tried.
    static OWN_UMASK: Cell<Option<bool>> = const { Cell::new(None) };
}

/// While this lives, the thread acts on files as the caller. Not `Send`: it is about this thread.
#[must_use = "the identity ends when this is dropped"]
#[derive(Debug)]
pub struct Identity {
    switched: bool,
    of_this_thread: PhantomData<*const ()>,
}

impl Identity {
    /// Becomes `cred`. `EPERM` if the thread already acts as somebody or the kernel refuses.
    pub fn assume(cred: &Credentials) -> Result<Self, SourceError> {
        if ACTIVE.get() {
            return Err(Errno::PERM.into());
        }
        assume_groups(&cred.groups)?;
        if cred.uid == 0 && cred.gid == 0 {
            return Ok(Self { switched: false, of_this_thread: PhantomData });
        }
        // From here on the guard exists, so that each way out makes the thread root again.
        ACTIVE.set(true);
        let guard = Self { switched: true, of_this_thread: PhantomData };
        set_fsgid(cred.gid);
        set_fsuid(cred.uid);
        if set_fsuid(NOBODY_CHANGES) != cred.uid || set_fsgid(NOBODY_CHANGES) != cred.gid {
            return Err(Errno::PERM.into());
        }
        Ok(guard)
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        if !self.switched {
            return;
        }
        set_fsuid(0);
        set_fsgid(0);
        if set_fsuid(NOBODY_CHANGES) != 0 || set_fsgid(NOBODY_CHANGES) != 0 {
            // The kernel cannot refuse this to a thread whose real user is 0. If it does, nothing this thread would
            // do next can be trusted to be done by the right user.
            std::process::abort();
        }
        ACTIVE.set(false);
    }
}

/// Makes the thread's supplementary groups `groups`, if they are not already.
fn assume_groups(groups: &Arc<[u32]>) -> Result<(), SourceError> {
    GROUPS.with_borrow_mut(|current| {
        match current {
            Some(current) if current[..] == groups[..] => return Ok(()),
            None if groups.is_empty() && !has_groups() => {}
            _ => {
                *current = None;
                // SAFETY: `groups` is a valid array of its own length that outlives the call.
                if unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } != 0 {
                    return Err(Errno::PERM.into());
                }
            }
        }
        *current = Some(Arc::clone(groups));
        Ok(())
    })
}

/// The thread has supplementary groups.
fn has_groups() -> bool {
    // SAFETY: with size 0 the call only counts.
    unsafe { libc::syscall(libc::SYS_getgroups, 0, std::ptr::null_mut::<u32>()) != 0 }
}

/// Sets the thread's file system user; returns the one before.
fn set_fsuid(uid: u32) -> u32 {
    // SAFETY: takes and returns a number.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) as u32 }
}

/// Sets the thread's file system group; returns the one before.
fn set_fsgid(gid: u32) -> u32 {
    // SAFETY: takes and returns a number.
    unsafe { libc::syscall(libc::SYS_setfsgid, gid) as u32 }
}

/// While this lives, files this thread creates get exactly the mode asked for.
#[derive(Debug)]
pub(super) struct NoUmask {
    before: Option<u32>,
    of_this_thread: PhantomData<*const ()>,
}

impl NoUmask {
    /// The umask is shared by all threads of a process; a thread that creates files first gets its own.
    pub(super) fn new() -> Self {
        let own = OWN_UMASK.get().unwrap_or_else(|| {
            // SAFETY: CLONE_FS only unshares umask, working and root directory of this thread; nothing here relies
            // on these being shared, and the daemon never changes them.
            let own = unsafe { libc::unshare(libc::CLONE_FS) } == 0;
            OWN_UMASK.set(Some(own));
            own
        });
        // SAFETY: takes and returns a number, of this thread alone as seen above.
        let before = own.then(|| unsafe { libc::umask(0) });
        Self { before, of_this_thread: PhantomData }
    }

    /// False where a sandbox forbids `unshare`: the mode must then be set after creation.
    pub(super) fn is_exact(&self) -> bool {
        self.before.is_some()
    }
}

impl Drop for NoUmask {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: takes and returns a number.
            unsafe { libc::umask(before) };
        }
    }
}

/// Drops `CAP_SYS_RESOURCE` from the calling thread and what it spawns later: with it, quota and the blocks reserved
/// for root would not count. Call before threads are spawned. Fine to call when it is not there.
pub fn drop_resource_capability() -> Result<(), SourceError> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective.remove(CapabilitySet::SYS_RESOURCE);
    sets.permitted.remove(CapabilitySet::SYS_RESOURCE);
    sets.inheritable.remove(CapabilitySet::SYS_RESOURCE);
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Why this process could not act as its callers, as a sentence; `None` if it can.
pub(super) fn missing_privilege() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("the source acts on files as each caller, which only root may; run as root");
    }
    let needed = CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::SETUID
        | CapabilitySet::SETGID
        | CapabilitySet::FOWNER
        | CapabilitySet::CHOWN;
    match rustix::thread::capabilities(None) {
        Ok(sets) if sets.effective.contains(needed) => {}
        _ => {
            return Some(
                "a capability is missing: CAP_DAC_READ_SEARCH (to open by handle), CAP_DAC_OVERRIDE, CAP_FOWNER, \
                 CAP_CHOWN, CAP_SETUID and CAP_SETGID are needed; run as root, in a container add them",
            );
        }
    }
    let fixed = CapabilitiesSecureBits::NO_SETUID_FIXUP;
    if rustix::thread::capabilities_secure_bits().is_ok_and(|bits| bits.intersects(fixed)) {
        return Some(
            "the securebit NO_SETUID_FIXUP is set, so callers would keep root's capabilities; start without it",
        );
    }
    None
}
