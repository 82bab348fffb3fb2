//! Configuration: one table of defaults, from flags and a TOML file; flags win.
//!
//! Invariant: a key or option that is not known is refused, with the nearest one that is and where it stands.

use std::{
    fmt::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;

mod cluster;
mod export;
pub mod units;

pub use cluster::{ClusterConfig, ClusterFlags, DEFAULT_CONTROL, DEFAULT_PEER, Token};
pub use export::{ExportConfig, NetworkOptions, Server, SourceConfig};

/// NFS on every address of both families.
pub const DEFAULT_LISTEN: &str = "[::]:2049";
/// Only this machine.
pub const DEFAULT_ADMIN: &str = "127.0.0.1:9049";
/// Where packages keep state.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/forebay";
/// RFC 8881 leaves it to the server; Linux renews after two thirds.
pub const DEFAULT_LEASE_SECONDS: u32 = 60;
/// Slots of a session at most.
pub const DEFAULT_SLOTS: u32 = 128;

/// Least memory for data: less holds too few chunks to read ahead.
const RAM_MIN: u64 = 64 << 20;

/// Everything `serve` needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where NFS is served.
    pub listen: SocketAddr,
    /// Where health and metrics are served.
    pub admin: SocketAddr,
    /// What outlives the process.
    pub data_dir: PathBuf,
    /// Lease.
    pub lease: Duration,
    /// Grace period after a restart.
    pub grace: Duration,
    /// Slots of a session at most.
    pub slots: u32,
    /// What is served.
    pub exports: Vec<ExportConfig>,
    /// Where data of network sources is kept.
    pub cache: CacheConfig,
    /// The cluster that this node is of; `None`: it is on its own.
    pub cluster: Option<ClusterConfig>,
}

/// The cache of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Bytes of memory for data.
    pub ram: u64,
    /// A directory or a block device for data; `None`: memory alone.
    pub store: Option<PathBuf>,
    /// Bytes of it; `None`: nine tenths of what is free.
    pub store_bytes: Option<u64>,
}

/// Why a configuration is refused: a sentence to show.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// The TOML file. Every key is optional; unknown ones are refused by name before it is read.
#[derive(Debug, Default, Deserialize)]
pub struct FileConfig {
    /// `ADDR:PORT`.
    pub listen: Option<SocketAddr>,
    /// `ADDR:PORT`.
    pub admin: Option<SocketAddr>,
    /// A directory.
    pub data_dir: Option<PathBuf>,
    /// Seconds.
    pub lease_seconds: Option<u32>,
    /// Seconds.
    pub grace_seconds: Option<u32>,
    /// A number.
    pub session_slots: Option<u32>,
    /// A size.
    pub ram_cache: Option<String>,
    /// A directory or a block device.
    pub cache: Option<PathBuf>,
    /// A size.
    pub cache_size: Option<String>,
    /// `[[export]]` tables.
    #[serde(default)]
    pub export: Vec<FileExport>,
    /// Keys of a cluster's node.
    #[serde(flatten)]
    pub cluster: ClusterFlags,
}

/// An `[[export]]` table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileExport {
    /// `/name`.
    pub name: String,
    /// `file:///path`, `nfs://host/path` or `nfs3://host/path`.
    pub source: String,
    /// As after `--export /name=URL,`: `["rw", "root_squash", "10.0.0.0/8"]`.
    #[serde(default)]
    pub options: Vec<String>,
}

const KEYS: &[&str] = &[
    "listen",
    "admin",
    "data_dir",
    "lease_seconds",
    "grace_seconds",
    "session_slots",
    "ram_cache",
    "cache",
    "cache_size",
    "export",
    "cluster",
    "join",
    "bootstrap_expect",
    "token_file",
    "control",
    "peer",
    "advertise",
    "zone",
    "vote",
    "voters",
];
const EXPORT_KEYS: &[&str] = &["name", "source", "options"];

impl FileConfig {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|e| ConfigError(format!("{}: {e}", path.display())))?;
        Self::parse(&text).map_err(|error| ConfigError(format!("{}: {error}", path.display())))
    }

    /// Reads a text.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let table = toml::de::DeTable::parse(text).map_err(|error| ConfigError(error.to_string()))?;
        known_keys(text, table.get_ref(), KEYS)?;
        let exports = table.get_ref().iter().filter(|(key, _)| key.get_ref() == "export");
        for (_, value) in exports {
            for export in value.get_ref().as_array().into_iter().flatten() {
                if let Some(table) = export.get_ref().as_table() {
                    known_keys(text, table, EXPORT_KEYS)?;
                }
            }
        }
        toml::from_str(text).map_err(|error| ConfigError(error.to_string().trim_end().to_owned()))
    }
}

fn known_keys(text: &str, table: &toml::de::DeTable<'_>, known: &[&str]) -> Result<(), ConfigError> {
    let unknown = table.iter().map(|(key, _)| key).find(|key| !known.contains(&key.get_ref().as_ref()));
    let Some(key) = unknown else { return Ok(()) };
    let line = 1 + text.get(..key.span().start).map_or(0, |before| before.matches('\n').count());
    let mut message = format!("line {line}: unknown key `{}`", key.get_ref());
    suggest(&mut message, key.get_ref(), known);
    Err(ConfigError(message))
}

/// Adds "did you mean" and the list of what would do.
fn suggest(message: &mut String, given: &str, known: &[&str]) {
    let near = |candidate: &&&str| strsim::damerau_levenshtein(given, candidate.trim_end_matches('='));
    let nearest = known.iter().min_by_key(near).filter(|best| near(best) <= 1 + given.len() / 3);
    match nearest {
        Some(nearest) => {
            let _ = write!(message, "; did you mean `{}`?", nearest.trim_end_matches('='));
        }
        None => message.push('.'),
    }
    let _ = write!(message, " Known are: {}", known.join(", "));
}

/// What the command line said; `None` where it said nothing.
#[derive(Debug, Default)]
pub struct Overrides {
    /// `--listen`.
    pub listen: Option<SocketAddr>,
    /// `--admin`.
    pub admin: Option<SocketAddr>,
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// `--lease-seconds`.
    pub lease_seconds: Option<u32>,
    /// `--grace-seconds`.
    pub grace_seconds: Option<u32>,
    /// `--ram-cache`.
    pub ram_cache: Option<String>,
    /// `--cache`.
    pub cache: Option<PathBuf>,
    /// `--cache-size`.
    pub cache_size: Option<String>,
    /// `--export`, each as given; they add to the file's.
    pub exports: Vec<String>,
    /// Those of a cluster's node.
    pub cluster: ClusterFlags,
}

impl Config {
    /// Flags over file over defaults.
    pub fn resolve(file: FileConfig, flags: Overrides) -> Result<Self, ConfigError> {
        let fixed = |text: &str| text.parse::<SocketAddr>().expect("a default is a valid address");
        let lease = flags.lease_seconds.or(file.lease_seconds).unwrap_or(DEFAULT_LEASE_SECONDS);
        let grace = flags.grace_seconds.or(file.grace_seconds).unwrap_or(lease);
        let slots = file.session_slots.unwrap_or(DEFAULT_SLOTS);
        in_range("lease_seconds", lease, 5, 3600)?;
        in_range("grace_seconds", grace, 1, 3600)?;
        in_range("session_slots", slots, 1, 1024)?;
        let mut exports = Vec::new();
        for export in file.export {
            exports.push(ExportConfig::new(&export.name, &export.source, export.options.iter().map(String::as_str))?);
        }
        for export in &flags.exports {
            exports.push(export.parse()?);
        }
        let cluster = ClusterConfig::resolve(file.cluster, flags.cluster)?;
        if cluster.is_some() {
            cluster::refuse_local(&exports)?;
        } else if exports.is_empty() {
            let example = "--export /data=file:///srv/data";
            return Err(ConfigError(format!("nothing to serve: give an export, for example {example}")));
        }
        Ok(Self {
            listen: flags.listen.or(file.listen).unwrap_or_else(|| fixed(DEFAULT_LISTEN)),
            admin: flags.admin.or(file.admin).unwrap_or_else(|| fixed(DEFAULT_ADMIN)),
            data_dir: flags.data_dir.or(file.data_dir).unwrap_or_else(|| DEFAULT_DATA_DIR.into()),
            lease: Duration::from_secs(lease.into()),
            grace: Duration::from_secs(grace.into()),
            slots,
            exports,
            cluster,
            cache: cache_config(
                flags.ram_cache.or(file.ram_cache),
                flags.cache.or(file.cache),
                flags.cache_size.or(file.cache_size),
            )?,
        })
    }
}

fn cache_config(ram: Option<String>, store: Option<PathBuf>, size: Option<String>) -> Result<CacheConfig, ConfigError> {
    let bytes = |key: &str, text: Option<String>| {
        let parsed = text.map(|text| units::size(&text)).transpose();
        parsed.map_err(|what| ConfigError(format!("{key}: {what}")))
    };
    let ram = bytes("ram_cache", ram)?.unwrap_or_else(default_ram);
    if ram < RAM_MIN {
        let (given, least) = (units::show_size(ram), units::show_size(RAM_MIN));
        return Err(ConfigError(format!("ram_cache is {given}; it must be at least {least}")));
    }
    let store_bytes = bytes("cache_size", size)?;
    if store_bytes.is_some() && store.is_none() {
        return Err(ConfigError("cache_size is given, but no cache: say which directory or device it is of".into()));
    }
    Ok(CacheConfig { ram, store, store_bytes })
}

/// A quarter of the machine's memory.
fn default_ram() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total =
        info.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    (total.unwrap_or(1 << 20) * 1024 / 4).max(RAM_MIN)
}

fn in_range(key: &str, value: u32, least: u32, most: u32) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ConfigError(format!("{key} is {value}; it must be {least} to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_and_an_unknown_key_is_named_with_its_line() {
        let text = "listen = \"127.0.0.1:2050\"\nlease_seconds = 30\n\n[[export]]\nname = \"/d\"\nsource = \"file:///d\"\n\
                    options = [\"ro\"]\n";
        let config = Config::resolve(FileConfig::parse(text).unwrap(), Overrides::default()).unwrap();
        assert_eq!((config.lease.as_secs(), config.grace.as_secs(), config.exports.len()), (30, 30, 1));
        assert!(config.exports[0].options.read_only);
        let error = FileConfig::parse(&text.replace("lease_seconds", "lease_second")).unwrap_err().0;
        assert!(error.contains("line 2") && error.contains("did you mean `lease_seconds`?"), "{error}");
        let error = FileConfig::parse(&text.replace("source", "sauce")).unwrap_err().0;
        assert!(error.contains("line 6") && error.contains("did you mean `source`?"), "{error}");
        let error = FileConfig::parse("lease_seconds = \"x\"").unwrap_err().0;
        assert!(error.contains("line 1"), "{error}");
        let flags = Overrides { lease_seconds: Some(0), exports: vec!["/d=file:///d".into()], ..Overrides::default() };
        let error = Config::resolve(FileConfig::default(), flags).unwrap_err().0;
        assert!(error.contains("5 to 3600"), "{error}");
        assert!(Config::resolve(FileConfig::default(), Overrides::default()).unwrap_err().0.contains("--export"));
    }
}
