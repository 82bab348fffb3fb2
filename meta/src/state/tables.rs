//! Plain tables: exports, pins, secrets; and the handles, which only pass through.
//!
//! Never does: understanding an export's options; that is the nodes' affair, who all have the same program.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::changes::{Bytes, Changes, Damaged, Table, decode_row};

/// What is served under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportRecord {
    /// The source's URL.
    pub source: String,
    /// Options, as in a node's configuration.
    pub options: Vec<String>,
}

/// The key of a source's handle: a digest of its file system and its bytes.
pub type HandleKey = [u8; 16];

/// The longest handle a source may have (NFSv4's NFS4_FHSIZE).
pub const SOURCE_HANDLE_MAX: usize = 128;
/// Handles in one command: a listing of 10,000 names takes three.
pub const HANDLES_MAX: usize = 4_096;
/// Exports of one cluster.
pub const EXPORTS_MAX: usize = 1_024;
/// Pinned paths of one cluster.
pub const PINS_MAX: usize = 4_096;
/// Secrets: handle key, authority, tokens.
pub const SECRETS_MAX: usize = 64;
/// A path as Linux allows it, a URL, or a certificate with its key.
const TEXT_MAX: usize = 8_192;

/// Exports by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exports(BTreeMap<String, ExportRecord>);

impl Exports {
    /// All, in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ExportRecord)> {
        self.0.iter().map(|(name, record)| (name.as_str(), record))
    }

    /// One.
    pub fn export(&self, name: &str) -> Option<&ExportRecord> {
        self.0.get(name)
    }

    pub(super) fn put(&mut self, name: &str, record: &ExportRecord, changes: &mut Changes) -> Result<(), &'static str> {
        if !self.0.contains_key(name) && self.0.len() >= EXPORTS_MAX {
            return Err("the cluster has 1024 exports, which is the most");
        }
        let options: usize = record.options.iter().map(String::len).sum();
        if name.len() > TEXT_MAX || record.source.len() > TEXT_MAX || options > TEXT_MAX {
            return Err("an export's name, source or options are longer than 8192 bytes");
        }
        changes.put(Table::Exports, name.as_bytes(), record);
        self.0.insert(name.to_owned(), record.clone());
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str, changes: &mut Changes) -> bool {
        let found = self.0.remove(name).is_some();
        if found {
            changes.remove(Table::Exports, name.as_bytes());
        }
        found
    }

    pub(super) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        self.0.insert(text(Table::Exports, key)?, decode_row(Table::Exports, value)?);
        Ok(())
    }
}

/// Paths that stay in the cache: of an export, below its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins(BTreeSet<(String, Bytes)>);

impl Pins {
    /// All, by export and path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(export, path)| (export.as_str(), path.0.as_slice()))
    }

    pub(super) fn pin(&mut self, export: &str, path: &Bytes, changes: &mut Changes) -> Result<(), &'static str> {
        let pin = (export.to_owned(), path.clone());
        if !self.0.contains(&pin) && self.0.len() >= PINS_MAX {
            return Err("4096 paths are pinned, which is the most; unpin some, or pin a directory above them");
        }
        if export.len() > TEXT_MAX || path.0.len() > TEXT_MAX {
            return Err("a path is longer than 8192 bytes");
        }
        changes.put(Table::Pins, pin_key(&pin), &pin);
        self.0.insert(pin);
        Ok(())
    }

    pub(super) fn unpin(&mut self, export: &str, path: &Bytes, changes: &mut Changes) -> bool {
        let pin = (export.to_owned(), path.clone());
        let found = self.0.remove(&pin);
        if found {
            changes.remove(Table::Pins, pin_key(&pin));
        }
        found
    }

    pub(super) fn load(&mut self, value: &[u8]) -> Result<(), Damaged> {
        self.0.insert(decode_row(Table::Pins, value)?);
        Ok(())
    }
}

/// Export names have no NUL, so this names one pin only.
fn pin_key(pin: &(String, Bytes)) -> Vec<u8> {
    [pin.0.as_bytes(), &[0], &pin.1.0].concat()
}

/// Secrets by name. Not shown by `Debug`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(BTreeMap<String, Bytes>);

impl Secrets {
    /// One.
    pub fn secret(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(|secret| secret.0.as_slice())
    }

    pub(super) fn put(&mut self, name: &str, secret: &Bytes, changes: &mut Changes) -> Result<(), &'static str> {
        if !self.0.contains_key(name) && self.0.len() >= SECRETS_MAX {
            return Err("the cluster keeps 64 secrets, which is the most");
        }
        if name.len() > TEXT_MAX || secret.0.len() > TEXT_MAX {
            return Err("a secret is longer than 8192 bytes");
        }
        changes.put(Table::Secrets, name.as_bytes(), secret);
        self.0.insert(name.to_owned(), secret.clone());
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str, changes: &mut Changes) -> bool {
        let found = self.0.remove(name).is_some();
        if found {
            changes.remove(Table::Secrets, name.as_bytes());
        }
        found
    }

    pub(super) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        self.0.insert(text(Table::Secrets, key)?, decode_row(Table::Secrets, value)?);
        Ok(())
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Puts handles into their table. The same key always has the same handle, so nobody need look whether it is there.
pub(super) fn register(handles: &[(HandleKey, Bytes)], changes: &mut Changes) -> Result<(), &'static str> {
    if handles.len() > HANDLES_MAX {
        return Err("more than 4096 handles in one command");
    }
    if handles.iter().any(|(_, handle)| handle.0.len() > SOURCE_HANDLE_MAX) {
        return Err("a source's handle is longer than 128 bytes");
    }
    for (key, handle) in handles {
        changes.put_bytes(Table::Handles, *key, handle.0.clone());
    }
    Ok(())
}

impl Exports {
    pub(super) fn rows(&self, changes: &mut Changes) {
        self.0.iter().for_each(|(name, record)| changes.put(Table::Exports, name.as_bytes(), record));
    }
}

impl Pins {
    pub(super) fn rows(&self, changes: &mut Changes) {
        self.0.iter().for_each(|pin| changes.put(Table::Pins, pin_key(pin), pin));
    }
}

impl Secrets {
    pub(super) fn rows(&self, changes: &mut Changes) {
        self.0.iter().for_each(|(name, secret)| changes.put(Table::Secrets, name.as_bytes(), secret));
    }
}

fn text(table: Table, key: &[u8]) -> Result<String, Damaged> {
    String::from_utf8(key.to_vec()).map_err(|_| Damaged::Row { table, what: "its key is not UTF-8".into() })
}
