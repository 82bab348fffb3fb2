//! Which rows a command changed, for whoever keeps them on disk.
//!
//! Owns: the tables' numbers, which are on disk for ever, and the list of changes. Never does: I/O.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// A table of rows. Numbers are never given to another table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Table {
    /// What there is one of: identity, counters, time, settings.
    Facts = 0,
    /// Nodes by id.
    Nodes = 1,
    /// The two latest rings.
    Rings = 2,
    /// Exports by name.
    Exports = 3,
    /// File systems by index.
    Fsids = 4,
    /// Source handles by key; on disk only.
    Handles = 5,
    /// Clients by clientid.
    Clients = 6,
    /// Locks and share reservations by file.
    Locks = 7,
    /// Pinned paths.
    Pins = 8,
    /// Secrets by name.
    Secrets = 9,
    /// Ids of nodes by their public keys.
    NodeKeys = 10,
}

impl Table {
    /// All tables.
    pub const ALL: [Table; 11] = [
        Table::Facts,
        Table::Nodes,
        Table::Rings,
        Table::Exports,
        Table::Fsids,
        Table::Handles,
        Table::Clients,
        Table::Locks,
        Table::Pins,
        Table::Secrets,
        Table::NodeKeys,
    ];

    /// The table with this number.
    pub fn from_number(number: u8) -> Option<Table> {
        Table::ALL.get(usize::from(number)).copied()
    }

    /// Whether its rows are kept in memory as well. Handles are not: there may be ten million.
    pub const fn is_resident(self) -> bool {
        !matches!(self, Table::Handles)
    }
}

/// A row that is new, changed, or gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its table.
    pub table: Table,
    /// Its key; keys of one table sort as their numbers do.
    pub key: Vec<u8>,
    /// What it holds now; `None` if it is gone.
    pub value: Option<Vec<u8>>,
}

/// The changes of one or more commands, in order; a later one of the same row stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    rows: Vec<Change>,
}

impl Changes {
    /// The rows, oldest first.
    pub fn rows(&self) -> &[Change] {
        &self.rows
    }

    /// Hands the rows over and begins anew.
    pub fn take(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.rows)
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn put(&mut self, table: Table, key: impl Into<Vec<u8>>, row: &impl Serialize) {
        self.rows.push(Change { table, key: key.into(), value: Some(encode_row(row)) });
    }

    pub(super) fn put_bytes(&mut self, table: Table, key: impl Into<Vec<u8>>, value: Vec<u8>) {
        self.rows.push(Change { table, key: key.into(), value: Some(value) });
    }

    pub(super) fn remove(&mut self, table: Table, key: impl Into<Vec<u8>>) {
        self.rows.push(Change { table, key: key.into(), value: None });
    }
}

/// The first byte of each row. A program that meets another number stops rather than guess.
const ROW_VERSION: u8 = 1;

/// Why a row cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damaged {
    /// It is of a version that this program does not know.
    #[error("a row of version {0}; this program reads {ROW_VERSION}: was it written by a newer one?")]
    Version(u8),
    /// Its bytes make no sense.
    #[error("a row of {table:?} does not decode: {what}")]
    Row {
        /// The table.
        table: Table,
        /// What is wrong.
        what: String,
    },
    /// There is no such table.
    #[error("a row of table {0}, which this program does not know: was it written by a newer one?")]
    Table(u8),
}

fn encode_row(row: &impl Serialize) -> Vec<u8> {
    let bytes = vec![ROW_VERSION];
    postcard::to_extend(row, bytes).expect("our own types have a binary form, and memory grows")
}

pub(super) fn decode_row<T: DeserializeOwned>(table: Table, value: &[u8]) -> Result<T, Damaged> {
    let (&version, row) = value.split_first().ok_or(Damaged::Row { table, what: "empty".into() })?;
    if version != ROW_VERSION {
        return Err(Damaged::Version(version));
    }
    match postcard::take_from_bytes(row) {
        Ok((row, [])) => Ok(row),
        Ok((_, rest)) => Err(Damaged::Row { table, what: format!("{} bytes are left over", rest.len()) }),
        Err(error) => Err(Damaged::Row { table, what: error.to_string() }),
    }
}

/// A number as a key, so that keys sort as numbers do.
pub(super) fn number_key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// A key as the number that it was made of.
pub(super) fn key_number(table: Table, key: &[u8]) -> Result<u64, Damaged> {
    let bytes = key.try_into().map_err(|_| Damaged::Row { table, what: format!("a key of {} bytes", key.len()) })?;
    Ok(u64::from_be_bytes(bytes))
}

/// Serializes as bytes, not as a list of numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Bytes(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Bytes(bytes.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_their_numbers() {
        for table in Table::ALL {
            assert_eq!(Table::from_number(table as u8), Some(table));
        }
        assert_eq!(Table::from_number(Table::ALL.len() as u8), None);
    }

    #[test]
    fn rows_decode_exactly() {
        let row = encode_row(&(7_u32, "x"));
        assert_eq!(decode_row::<(u32, String)>(Table::Facts, &row), Ok((7, "x".to_owned())));
        assert!(decode_row::<u32>(Table::Facts, &row).is_err(), "left over");
        assert!(decode_row::<(u32, String)>(Table::Facts, &row[..2]).is_err(), "too short");
        assert_eq!(decode_row::<u32>(Table::Facts, &[9, 0]), Err(Damaged::Version(9)));
        assert!(decode_row::<u32>(Table::Facts, &[]).is_err());
    }
}
