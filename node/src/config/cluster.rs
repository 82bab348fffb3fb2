//! What makes a node one of several.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use serde::Deserialize;

use super::{ConfigError, ExportConfig, SourceConfig};
use crate::cluster::enter::TOKEN_MIN;

/// Where other nodes ask everything but chunks.
pub const DEFAULT_CONTROL: &str = "[::]:2051";
/// Where other nodes fetch chunks.
pub const DEFAULT_PEER: &str = "[::]:2050";
/// Voters: any one may fail.
const DEFAULT_VOTERS: u32 = 3;
/// Where the token is if no file is given.
const TOKEN_VARIABLE: &str = "FOREBAY_JOIN_TOKEN";

/// A cluster's token. Not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// What a node of a cluster needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The cluster's name.
    pub name: String,
    /// What lets nodes in.
    pub token: Token,
    /// `HOST:PORT`, where other nodes may be.
    pub seeds: Vec<String>,
    /// How many nodes begin the cluster together; `None`: it exists.
    pub expect: Option<u32>,
    /// Where other nodes ask everything but chunks.
    pub control: SocketAddr,
    /// Where they fetch chunks.
    pub peer: SocketAddr,
    /// Under which address they reach this node.
    pub advertise: Option<IpAddr>,
    /// The availability zone.
    pub zone: String,
    /// Whether it may vote.
    pub may_vote: bool,
    /// How many vote at most.
    pub voters: usize,
}

/// What was said of it, in the file or on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ClusterFlags {
    /// The cluster's name.
    pub cluster: Option<String>,
    /// Where other nodes may be.
    #[serde(default)]
    pub join: Vec<String>,
    /// How many nodes begin it.
    pub bootstrap_expect: Option<u32>,
    /// Where the token is.
    pub token_file: Option<PathBuf>,
    /// Where to listen for other nodes.
    pub control: Option<SocketAddr>,
    /// Where to listen for their fetches.
    pub peer: Option<SocketAddr>,
    /// Where they reach this node.
    pub advertise: Option<IpAddr>,
    /// The availability zone.
    pub zone: Option<String>,
    /// Whether it may vote.
    pub vote: Option<bool>,
    /// How many vote at most.
    pub voters: Option<u32>,
}

impl ClusterFlags {
    fn over(self, file: Self) -> Self {
        Self {
            cluster: self.cluster.or(file.cluster),
            join: if self.join.is_empty() { file.join } else { self.join },
            bootstrap_expect: self.bootstrap_expect.or(file.bootstrap_expect),
            token_file: self.token_file.or(file.token_file),
            control: self.control.or(file.control),
            peer: self.peer.or(file.peer),
            advertise: self.advertise.or(file.advertise),
            zone: self.zone.or(file.zone),
            vote: self.vote.or(file.vote),
            voters: self.voters.or(file.voters),
        }
    }
}

impl ClusterConfig {
    /// Flags over file over defaults; `None` for a node on its own.
    pub(super) fn resolve(file: ClusterFlags, flags: ClusterFlags) -> Result<Option<Self>, ConfigError> {
        let said = flags.over(file);
        let Some(name) = said.cluster.clone() else {
            if said != ClusterFlags::default() {
                return Err(ConfigError("settings of a cluster are given, but no cluster: say --cluster NAME".into()));
            }
            return Ok(None);
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
            return Err(ConfigError(format!(
                "cluster is {name:?}; a name has 1 to 64 letters, digits, dots, hyphens and underscores"
            )));
        }
        if said.bootstrap_expect == Some(0) || said.bootstrap_expect.is_some_and(|expect| expect > 64) {
            return Err(ConfigError("bootstrap_expect must be 1 to 64 nodes".into()));
        }
        if said.join.is_empty() && said.bootstrap_expect != Some(1) {
            return Err(ConfigError(
                "a node of a cluster needs --join HOST:PORT[,…] with the control addresses of others, or --bootstrap-expect 1 to begin alone"
                    .into(),
            ));
        }
        if let Some(wrong) = said.join.iter().find(|seed| !is_address(seed)) {
            return Err(ConfigError(format!(
                "join has {wrong:?}; it must be HOST:PORT, as 10.0.0.5:2051 or nodes.example:2051"
            )));
        }
        let voters = said.voters.unwrap_or(DEFAULT_VOTERS);
        if ![1, 3, 5, 7].contains(&voters) {
            return Err(ConfigError(format!("voters is {voters}; it must be 1, 3, 5 or 7")));
        }
        let fixed = |text: &str| text.parse::<SocketAddr>().expect("a default is a valid address");
        Ok(Some(Self {
            name,
            token: token(said.token_file)?,
            seeds: said.join,
            expect: said.bootstrap_expect,
            control: said.control.unwrap_or_else(|| fixed(DEFAULT_CONTROL)),
            peer: said.peer.unwrap_or_else(|| fixed(DEFAULT_PEER)),
            advertise: said.advertise,
            zone: said.zone.unwrap_or_default(),
            may_vote: said.vote.unwrap_or(true),
            voters: voters as usize,
        }))
    }
}

fn is_address(seed: &str) -> bool {
    seed.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

fn token(file: Option<PathBuf>) -> Result<Token, ConfigError> {
    let text = match &file {
        Some(path) => {
            std::fs::read_to_string(path).map_err(|error| ConfigError(format!("{}: {error}", path.display())))?
        }
        None => std::env::var(TOKEN_VARIABLE).map_err(|_| {
            ConfigError(format!(
                "a node of a cluster needs its token: --token-file FILE, or {TOKEN_VARIABLE} in the environment"
            ))
        })?,
    };
    let token = text.trim().to_owned();
    if token.len() < TOKEN_MIN {
        return Err(ConfigError(format!(
            "the token has {} bytes; it must have at least {TOKEN_MIN} that nobody can guess (try: head -c 24 /dev/urandom | base64)",
            token.len()
        )));
    }
    Ok(Token(token))
}

/// A directory of one machine is not that of another.
pub(super) fn refuse_local(exports: &[ExportConfig]) -> Result<(), ConfigError> {
    match exports.iter().find(|export| matches!(export.source, SourceConfig::Local(_))) {
        Some(export) => Err(ConfigError(format!(
            "{} is {}: each node of a cluster would serve another directory under that name. Use nfs:// or nfs3://, or serve the directory with a node of its own and put the cluster in front of it",
            export.name, export.url
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags() -> ClusterFlags {
        let file = std::env::temp_dir().join(format!("forebay-token-{}", std::process::id()));
        std::fs::write(&file, "0123456789abcdef\n").expect("a place for temporary files");
        ClusterFlags {
            cluster: Some("c".into()),
            join: vec!["10.0.0.1:2051".into()],
            token_file: Some(file),
            ..ClusterFlags::default()
        }
    }

    fn refused(flags: ClusterFlags) -> String {
        ClusterConfig::resolve(ClusterFlags::default(), flags).expect_err("it is wrong").0
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        assert_eq!(ClusterConfig::resolve(ClusterFlags::default(), ClusterFlags::default()), Ok(None));
        let config = ClusterConfig::resolve(ClusterFlags::default(), flags()).expect("it is right").expect("a cluster");
        assert_eq!((config.voters, config.may_vote, config.token.0.len()), (3, true, 16));
        assert!(!format!("{config:?}").contains("0123"), "nobody reads a token in a log");
        assert!(refused(ClusterFlags { cluster: None, ..flags() }).contains("--cluster"));
        assert!(refused(ClusterFlags { cluster: Some("a b".into()), ..flags() }).contains("letters"));
        assert!(refused(ClusterFlags { join: vec![], ..flags() }).contains("--join"));
        assert!(refused(ClusterFlags { join: vec!["10.0.0.1".into()], ..flags() }).contains("HOST:PORT"));
        assert!(refused(ClusterFlags { voters: Some(2), ..flags() }).contains("1, 3, 5 or 7"));
        assert!(refused(ClusterFlags { bootstrap_expect: Some(0), ..flags() }).contains("1 to 64"));
        let none = std::path::PathBuf::from("/nonexistent/token");
        assert!(refused(ClusterFlags { token_file: Some(none), ..flags() }).contains("/nonexistent/token"));
        let local = "/d=file:///d".parse().expect("an export");
        assert!(refuse_local(&[local]).expect_err("it is local").0.contains("another directory"));
    }
}
