//! Debian's NFS-Ganesha with its VFS layer, NFSv4.1 and 4.2 only, as one would run it: its defaults, errors and events logged.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use super::EXPORT;
use crate::process::Guard;

/// Where the program is.
///
/// # Errors
/// When it is not installed; names the packages.
pub fn find() -> Result<PathBuf> {
    let found = ["/usr/bin", "/usr/sbin", "/usr/local/bin"]
        .iter()
        .map(|directory| Path::new(directory).join("ganesha.nfsd"))
        .find(|program| program.is_file());
    match found {
        Some(program) => Ok(program),
        None => bail!("ganesha.nfsd is not here: apt-get install nfs-ganesha nfs-ganesha-vfs, or say --skip-ganesha"),
    }
}

/// Starts it.
pub fn start(tree: &Path, home: &Path, listen: SocketAddr) -> Result<Guard> {
    let recovery = home.join("recovery");
    fs::create_dir(&recovery)?;
    let configuration = home.join("ganesha.conf");
    fs::write(&configuration, text(tree, &recovery, listen))?;
    let mut command = Command::new(find()?);
    command.args(["-F", "-L", "STDOUT", "-N", "NIV_EVENT", "-f"]).arg(&configuration).arg("-p").arg(home.join("pid"));
    Guard::start(command, &home.join("log"))
}

fn text(tree: &Path, recovery: &Path, listen: SocketAddr) -> String {
    format!(
        "NFS_Core_Param {{ Protocols = 4; Bind_addr = {}; NFS_Port = {}; Enable_NLM = false; Enable_RQUOTA = false; \
         mount_path_pseudo = true; }}\n\
         NFSv4 {{ Minor_Versions = 1, 2; Graceless = true; Lease_Lifetime = 60; Only_Numeric_Owners = true; \
         RecoveryRoot = \"{}\"; }}\n\
         EXPORT {{ Export_Id = 1; Path = \"{}\"; Pseudo = {EXPORT}; Access_Type = RW; Squash = No_Root_Squash; \
         SecType = sys; Protocols = 4; Transports = TCP; FSAL {{ Name = VFS; }} }}\n",
        listen.ip(),
        listen.port(),
        recovery.display(),
        tree.display(),
    )
}
