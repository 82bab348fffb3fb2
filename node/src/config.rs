//! Configuration: one table of defaults, from flags and a TOML file; flags win.
//!
//! Invariant: a key or option that is not known is refused, with the nearest one that is and where it stands.

use std::{
    fmt::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use serde::Deserialize;

use crate::files::{ExportOptions, Squash};

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

/// Everything `serve` needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

/// One export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportConfig {
    /// `/name`.
    pub name: String,
    /// `file:///path`.
    pub url: String,
    /// The directory that the URL names.
    pub path: PathBuf,
    /// What is allowed.
    pub options: ExportOptions,
}

/// Why a configuration is refused: a sentence to show.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// The TOML file. Every key is optional.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// `[[export]]` tables.
    #[serde(default)]
    pub export: Vec<FileExport>,
}

/// An `[[export]]` table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileExport {
    /// `/name`.
    pub name: String,
    /// `file:///path`.
    pub source: String,
    /// As after `--export /name=URL,`: `["rw", "root_squash", "10.0.0.0/8"]`.
    #[serde(default)]
    pub options: Vec<String>,
}

const KEYS: &[&str] = &["listen", "admin", "data_dir", "lease_seconds", "grace_seconds", "session_slots", "export"];
const EXPORT_KEYS: &[&str] = &["name", "source", "options"];
const EXPORT_OPTIONS: &[&str] =
    &["rw", "ro", "sync", "async", "root_squash", "no_root_squash", "all_squash", "anonuid=", "anongid=", "clients="];

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
    /// `--export`, each as given; they add to the file's.
    pub exports: Vec<String>,
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
        if exports.is_empty() {
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
        })
    }
}

fn in_range(key: &str, value: u32, least: u32, most: u32) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ConfigError(format!("{key} is {value}; it must be {least} to {most}")))
}

impl std::str::FromStr for ExportConfig {
    type Err = ConfigError;

    /// `/name=URL[,option…]`.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let form =
            || ConfigError(format!("export `{text}`: expected /NAME=URL[,OPTION…], as /data=file:///srv/data,ro"));
        let (name, rest) = text.split_once('=').ok_or_else(form)?;
        let mut parts = rest.split(',');
        let url = parts.next().filter(|url| !url.is_empty()).ok_or_else(form)?;
        Self::new(name, url, parts)
    }
}

impl ExportConfig {
    fn new<'a>(name: &str, url: &str, options: impl Iterator<Item = &'a str>) -> Result<Self, ConfigError> {
        let wrong = |what: &str| ConfigError(format!("export `{name}`: {what}"));
        let parts = || name.split('/').skip(1);
        if !name.starts_with('/') || name != "/" && parts().any(|part| matches!(part, "" | "." | "..")) {
            return Err(wrong("a name is an absolute path without empty parts, `.` or `..`, as /data or /show/assets"));
        }
        if parts().any(|part| part.len() > crate::files::names::NAME_MAX || part.contains('\0')) {
            return Err(wrong("a part of the name is longer than 255 bytes or holds a NUL"));
        }
        let path = url.strip_prefix("file://").filter(|path| path.starts_with('/')).ok_or_else(|| {
            wrong(&format!("source `{url}`: this version serves local directories, as file:///srv/data"))
        })?;
        let path = percent_decode(path).map_err(|what| wrong(&format!("source `{url}`: {what}")))?;
        let options = export_options(options).map_err(|what| wrong(&what))?;
        Ok(Self { name: name.to_owned(), url: url.to_owned(), path, options })
    }
}

fn export_options<'a>(given: impl Iterator<Item = &'a str>) -> Result<ExportOptions, String> {
    let mut options = ExportOptions::default();
    let number = |key: &str, value: &str| {
        value.parse::<u32>().ok().filter(|id| *id != u32::MAX).ok_or(format!("{key}={value}: expected 0 to 4294967294"))
    };
    for option in given {
        match option.split_once('=') {
            Some(("anonuid", value)) => options.anonymous_uid = number("anonuid", value)?,
            Some(("anongid", value)) => options.anonymous_gid = number("anongid", value)?,
            Some(("clients", value)) => options.clients.push(network(value).ok_or(bad_network(value))?),
            None if option == "rw" => options.read_only = false,
            None if option == "ro" => options.read_only = true,
            None if option == "sync" => options.sync = true,
            None if option == "async" => options.sync = false,
            None if option == "root_squash" => options.squash = Squash::Root,
            None if option == "no_root_squash" => options.squash = Squash::None,
            None if option == "all_squash" => options.squash = Squash::All,
            _ => match network(option) {
                Some(network) => options.clients.push(network),
                None => {
                    let mut message = format!("unknown option `{option}`");
                    suggest(&mut message, option.split('=').next().unwrap_or(option), EXPORT_OPTIONS);
                    message.push_str(", or a client network as 10.0.0.0/8");
                    return Err(message);
                }
            },
        }
    }
    Ok(options)
}

fn bad_network(value: &str) -> String {
    format!("clients={value}: expected an address or a network, as 10.1.2.3 or 10.0.0.0/8 or fd00::/8")
}

fn network(text: &str) -> Option<IpNet> {
    text.parse::<IpNet>().ok().or_else(|| text.parse::<std::net::IpAddr>().ok().map(IpNet::from))
}

/// `%2C` and the like, so that a path may hold a comma.
fn percent_decode(text: &str) -> Result<PathBuf, String> {
    use std::os::unix::ffi::OsStringExt;
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|byte| *byte != 0);
        bytes.push(byte.ok_or("after `%` two hexadecimal digits must stand, and not 00")?);
        rest = &tail[2..];
    }
    Ok(std::ffi::OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(text: &str) -> Result<ExportConfig, String> {
        text.parse().map_err(|error: ConfigError| error.0)
    }

    #[test]
    fn exports_as_given() {
        let one = export("/data=file:///srv/a%2Cb,ro,async,all_squash,anonuid=7,anongid=8,10.0.0.0/8,clients=fd00::1")
            .unwrap();
        assert_eq!((one.name.as_str(), one.path.to_str()), ("/data", Some("/srv/a,b")));
        let options = ExportOptions {
            read_only: true,
            sync: false,
            squash: Squash::All,
            anonymous_uid: 7,
            anonymous_gid: 8,
            clients: vec!["10.0.0.0/8".parse().unwrap(), "fd00::1/128".parse().unwrap()],
        };
        assert_eq!(one.options, options);
        assert_eq!(export("/=file:///x").unwrap().name, "/");
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_do() {
        for (text, part) in [
            ("data=file:///x", "absolute path"),
            ("/data", "expected /NAME=URL"),
            ("/a//b=file:///x", "without empty parts"),
            ("/a/../b=file:///x", "`..`"),
            ("/a=nfs://host/x", "file:///srv/data"),
            ("/a=file://x", "file:///srv/data"),
            ("/a=file:///x%0", "hexadecimal"),
            ("/a=file:///x%00", "not 00"),
            ("/a=file:///x,readonly", "Known are: rw, ro"),
            ("/a=file:///x,no_rootsquash", "did you mean `no_root_squash`?"),
            ("/a=file:///x,anonuid=-1", "0 to 4294967294"),
            ("/a=file:///x,10.0.0.0/33", "10.0.0.0/8"),
        ] {
            let error = export(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

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
