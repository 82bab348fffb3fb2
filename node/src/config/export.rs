//! One export as it was asked for: `/name=URL[,option…]`.

use std::{fmt::Write as _, path::PathBuf, time::Duration};

use ipnet::IpNet;

use super::{ConfigError, suggest, units};
use crate::{
    files::{ExportOptions, Squash},
    source::{
        budget::BudgetMode,
        cached::{CachedOptions, Consistency, LookupCache, OnPartition, Policy},
    },
};

/// One export.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportConfig {
    /// `/name`.
    pub name: String,
    /// As given.
    pub url: String,
    /// Its options, as given.
    pub given: Vec<String>,
    /// Where the files are.
    pub source: SourceConfig,
    /// What is allowed.
    pub options: ExportOptions,
    /// How a source on the network is used.
    pub network: NetworkOptions,
}

/// What a source's URL says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceConfig {
    /// `file:///path`.
    Local(PathBuf),
    /// `nfs://host[:port]/path`: NFSv4.1 or 4.2.
    Nfs4(Server),
    /// `nfs3://host[:port]/path`.
    Nfs3(Server),
}

/// A file server and what it exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Name or address.
    pub host: String,
    /// `None`: the usual one.
    pub port: Option<u16>,
    /// `/path`.
    pub path: String,
}

/// How a source on the network is used.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkOptions {
    /// What may be believed, and how far it is read ahead.
    pub cached: CachedOptions,
    /// Memory for what is known of files without their data; `None`: a share of the memory for data.
    pub metadata: Option<u64>,
    /// Bytes of the cache's store that the export may fill.
    pub quota: Option<u64>,
    /// TCP connections to the source.
    pub connections: u32,
    /// Calls under way at the source.
    pub slots: u32,
    /// Where an NFSv3 source answers MOUNT; `None`: its portmapper tells.
    pub mount_port: Option<u16>,
    /// How long a question may take before the client is told to try again.
    pub timeout: Duration,
    /// How the source counts what it is asked.
    pub budget: BudgetMode,
    /// Bytes already paid for, where the mode has a balance.
    pub budget_balance: Option<u64>,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        Self {
            cached: CachedOptions::default(),
            metadata: None,
            quota: None,
            connections: 4,
            slots: 128,
            mount_port: None,
            timeout: Duration::from_secs(10),
            budget: BudgetMode::None,
            budget_balance: None,
        }
    }
}

const EXPORT_OPTIONS: &[&str] = &[
    "rw",
    "ro",
    "sync",
    "async",
    "root_squash",
    "no_root_squash",
    "all_squash",
    "anonuid=",
    "anongid=",
    "clients=",
    "filehandles=",
];

const NETWORK_OPTIONS: &[&str] = &[
    "policy=",
    "acregmin=",
    "acregmax=",
    "acdirmin=",
    "acdirmax=",
    "actimeo=",
    "lookupcache=",
    "serve_stale=",
    "on_partition=",
    "readahead=",
    "quota=",
    "ttl=",
    "metadata=",
    "connections=",
    "slots=",
    "mountport=",
    "timeout=",
    "budget=",
    "budget_balance=",
];

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
    /// An export as the plane keeps it.
    ///
    /// # Errors
    /// It is none.
    pub fn of_record(name: &str, record: &forebay_meta::state::ExportRecord) -> Result<Self, ConfigError> {
        Self::new(name, &record.source, record.options.iter().map(String::as_str))
    }

    /// As the plane keeps it.
    pub fn to_record(&self) -> forebay_meta::state::ExportRecord {
        forebay_meta::state::ExportRecord { source: self.url.clone(), options: self.given.clone() }
    }

    pub(super) fn new<'a>(name: &str, url: &str, options: impl Iterator<Item = &'a str>) -> Result<Self, ConfigError> {
        let wrong = |what: &str| ConfigError(format!("export `{name}`: {what}"));
        let parts = || name.split('/').skip(1);
        if !name.starts_with('/') || name != "/" && parts().any(|part| matches!(part, "" | "." | "..")) {
            return Err(wrong("a name is an absolute path without empty parts, `.` or `..`, as /data or /show/assets"));
        }
        if parts().any(|part| part.len() > crate::files::names::NAME_MAX || part.contains('\0')) {
            return Err(wrong("a part of the name is longer than 255 bytes or holds a NUL"));
        }
        let source = SourceConfig::parse(url).map_err(|what| wrong(&format!("source `{url}`: {what}")))?;
        let given: Vec<&str> = options.collect();
        let mut export = Self {
            name: name.to_owned(),
            url: url.to_owned(),
            given: given.iter().map(|option| (*option).to_owned()).collect(),
            source,
            options: ExportOptions::default(),
            network: NetworkOptions::default(),
        };
        export.apply(&given).map_err(|what| wrong(&what))?;
        Ok(export)
    }
}

impl SourceConfig {
    fn parse(url: &str) -> Result<Self, String> {
        let known = "sources are file:///path, nfs://host[:port]/path (NFSv4.1 or 4.2) and nfs3://host[:port]/path";
        let (scheme, rest) = url.split_once("://").ok_or_else(|| known.to_owned())?;
        match scheme {
            "file" if rest.starts_with('/') => percent_decode(rest).map(Self::Local),
            "nfs" => Server::parse(rest).map(Self::Nfs4),
            "nfs3" => Server::parse(rest).map(Self::Nfs3),
            _ => Err(known.to_owned()),
        }
    }
}

impl Server {
    /// `host[:port]/path`, `[v6]:port/path`.
    fn parse(text: &str) -> Result<Self, String> {
        let slash = text.find('/').ok_or("after the host its export must be named, as nfs://filer/export")?;
        let (authority, path) = text.split_at(slash);
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, port) = v6.split_once(']').ok_or("`[` without `]`")?;
                let port = match port {
                    "" => None,
                    port => Some(port.strip_prefix(':').ok_or("after `]` only :PORT may stand")?),
                };
                (host, port)
            }
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map(|port| port.parse::<u16>().ok().filter(|port| *port != 0).ok_or("the port is 1 to 65535"));
        if host.is_empty() {
            return Err("the host is missing, as in nfs://filer/export".into());
        }
        let path = percent_decode(path)?;
        let path = path.to_str().ok_or("the path must be UTF-8")?.to_owned();
        if path.split('/').any(|part| matches!(part, "." | "..")) {
            return Err("the path may not hold `.` or `..`".into());
        }
        Ok(Self { host: host.to_owned(), port: port.transpose()?, path })
    }
}

impl ExportConfig {
    /// Options in any order: a policy is the ground that its knobs change.
    fn apply(&mut self, given: &[&str]) -> Result<(), String> {
        let is_network = !matches!(self.source, SourceConfig::Local(_));
        for option in given {
            if let Some(("policy", value)) = option.split_once('=')
                && is_network
            {
                self.network.cached.policy = Policy::preset(preset(value)?);
            }
        }
        for option in given {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            let is_of_network = NETWORK_OPTIONS.contains(&format!("{key}=").as_str());
            if is_of_network && !is_network {
                return Err(format!("`{option}` is for sources on the network; a local directory needs no cache"));
            }
            if is_of_network {
                self.network.apply(key, value).map_err(|what| format!("{key}={what}"))?;
            } else if !plain_option(&mut self.options, option)? {
                return Err(unknown(option, is_network));
            }
        }
        let policy = &self.network.cached.policy;
        if policy.acregmin > policy.acregmax || policy.acdirmin > policy.acdirmax {
            return Err("acregmin and acdirmin may not be longer than acregmax and acdirmax".into());
        }
        Ok(())
    }
}

impl NetworkOptions {
    fn apply(&mut self, key: &str, value: &str) -> Result<(), String> {
        let policy = &mut self.cached.policy;
        match key {
            "policy" => {}
            "acregmin" => policy.acregmin = units::duration(value)?,
            "acregmax" => policy.acregmax = units::duration(value)?,
            "acdirmin" => policy.acdirmin = units::duration(value)?,
            "acdirmax" => policy.acdirmax = units::duration(value)?,
            "actimeo" => {
                let window = units::duration(value)?;
                (policy.acregmin, policy.acregmax) = (window, window);
                (policy.acdirmin, policy.acdirmax) = (window, window);
            }
            "lookupcache" => {
                policy.lookupcache = match value {
                    "all" => LookupCache::All,
                    "positive" | "pos" => LookupCache::Positive,
                    "none" => LookupCache::None,
                    _ => return Err(format!("`{value}`: expected all, positive or none")),
                }
            }
            "serve_stale" => policy.serve_stale = units::duration(value)?,
            "on_partition" => {
                policy.on_partition = match value {
                    "serve" => OnPartition::Serve,
                    "refuse" => OnPartition::Refuse,
                    _ => return Err(format!("on_partition={value}: it is serve or refuse")),
                }
            }
            "readahead" => self.cached.readahead = bounded(units::size(value)?, 0, 1 << 30)?,
            "metadata" => self.metadata = Some(bounded(units::size(value)?, 1 << 20, 1 << 42)?),
            "quota" => self.quota = Some(units::size(value)?),
            "ttl" => self.cached.ttl = Some(units::duration(value)?),
            "connections" => self.connections = number(value, 1, 16)?,
            "slots" => self.slots = number(value, 1, 128)?,
            "mountport" => self.mount_port = u16::try_from(number(value, 1, 65_535)?).ok(),
            "timeout" => {
                let limits = Duration::from_secs(1)..=Duration::from_secs(600);
                let timeout = units::duration(value)?;
                self.timeout = Some(timeout).filter(|time| limits.contains(time)).ok_or("1s to 600s")?;
            }
            "budget" => self.budget = BudgetMode::parse(value)?,
            "budget_balance" => self.budget_balance = Some(units::size(value)?),
            _ => return Err(format!("{value}: not known")),
        }
        Ok(())
    }
}

fn preset(value: &str) -> Result<Consistency, String> {
    match value {
        "scratch" => Ok(Consistency::Scratch),
        "close-to-open" => Ok(Consistency::CloseToOpen),
        "strict" => Ok(Consistency::Strict),
        _ => Err(format!("policy=`{value}`: expected scratch, close-to-open or strict")),
    }
}

fn number(value: &str, least: u32, most: u32) -> Result<u32, String> {
    let number = value.parse::<u32>().ok().filter(|number| (least..=most).contains(number));
    number.ok_or(format!("`{value}`: expected {least} to {most}"))
}

fn bounded(value: u64, least: u64, most: u64) -> Result<u64, String> {
    let (low, high) = (units::show_size(least), units::show_size(most));
    if (least..=most).contains(&value) { Ok(value) } else { Err(format!("{value}: expected {low} to {high}")) }
}

fn unknown(option: &str, is_network: bool) -> String {
    let known: Vec<&str> = match is_network {
        true => EXPORT_OPTIONS.iter().chain(NETWORK_OPTIONS).copied().collect(),
        false => EXPORT_OPTIONS.to_vec(),
    };
    let mut message = format!("unknown option `{option}`");
    suggest(&mut message, option.split('=').next().unwrap_or(option), &known);
    let _ = write!(message, ", or a client network as 10.0.0.0/8");
    message
}

/// An option that every export has; `false` if it is none.
fn plain_option(options: &mut ExportOptions, option: &str) -> Result<bool, String> {
    let id = |key: &str, value: &str| {
        value.parse::<u32>().ok().filter(|id| *id != u32::MAX).ok_or(format!("{key}={value}: expected 0 to 4294967294"))
    };
    match option.split_once('=') {
        Some(("anonuid", value)) => options.anonymous_uid = id("anonuid", value)?,
        Some(("anongid", value)) => options.anonymous_gid = id("anongid", value)?,
        Some(("clients", value)) => options.clients.push(network(value).ok_or(bad_network(value))?),
        Some(("filehandles", value)) => {
            options.table_handles = match value {
                "auto" => false,
                "table" => true,
                _ => return Err(format!("filehandles={value}: expected auto or table")),
            }
        }
        None if option == "rw" => options.read_only = false,
        None if option == "ro" => options.read_only = true,
        None if option == "sync" => options.sync = true,
        None if option == "async" => options.sync = false,
        None if option == "root_squash" => options.squash = Squash::Root,
        None if option == "no_root_squash" => options.squash = Squash::None,
        None if option == "all_squash" => options.squash = Squash::All,
        _ => match network(option) {
            Some(network) => options.clients.push(network),
            None => return Ok(false),
        },
    }
    Ok(true)
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
        let one = export("/data=file:///srv/a%2Cb,ro,async,all_squash,anonuid=7,anongid=8,filehandles=table,10.0.0.0/8,clients=fd00::1")
            .unwrap();
        assert_eq!((one.name.as_str(), one.source), ("/data", SourceConfig::Local("/srv/a,b".into())));
        let options = ExportOptions {
            read_only: true,
            sync: false,
            squash: Squash::All,
            anonymous_uid: 7,
            anonymous_gid: 8,
            table_handles: true,
            clients: vec!["10.0.0.0/8".parse().unwrap(), "fd00::1/128".parse().unwrap()],
        };
        assert_eq!(one.options, options);
        let far = "/f=nfs://[fd00::2]:2050/vol/a,acregmin=1,policy=scratch,quota=1TiB,budget=elastic,slots=16";
        let far = export(far).unwrap();
        let server = Server { host: "fd00::2".into(), port: Some(2050), path: "/vol/a".into() };
        assert_eq!(far.source, SourceConfig::Nfs4(server));
        assert_eq!(far.network.cached.policy.acregmin, Duration::from_secs(1), "a policy does not undo a knob");
        assert_eq!(far.network.cached.policy.acregmax, Duration::from_secs(3600));
        assert_eq!((far.network.quota, far.network.slots), (Some(1 << 40), 16));
        assert_eq!(export("/=file:///x").unwrap().name, "/");
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_do() {
        for (text, part) in [
            ("data=file:///x", "absolute path"),
            ("/data", "expected /NAME=URL"),
            ("/a//b=file:///x", "without empty parts"),
            ("/a/../b=file:///x", "`..`"),
            ("/a=ftp://host/x", "nfs://host"),
            ("/a=file://x", "file:///path"),
            ("/a=nfs://host", "must be named"),
            ("/a=nfs://host:0/x", "1 to 65535"),
            ("/a=nfs:///x", "host is missing"),
            ("/a=nfs://[fd00::2]2050/x", "only :PORT"),
            ("/a=nfs://h/a/../b", "`..`"),
            ("/a=file:///x,policy=strict", "sources on the network"),
            ("/a=nfs://h/x,policy=lax", "scratch, close-to-open or strict"),
            ("/a=nfs://h/x,acregmin=90", "may not be longer"),
            ("/a=nfs://h/x,acregmim=3", "did you mean `acregmin`?"),
            ("/a=nfs://h/x,lookupcache=some", "all, positive or none"),
            ("/a=nfs://h/x,connections=17", "1 to 16"),
            ("/a=nfs://h/x,readahead=lots", "expected a size"),
            ("/a=nfs://h/x,budget=free", "elastic"),
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
}
