//! Owners and groups that a source tells by name.
//!
//! Owns: the way from `name@domain` to a number, through this system's own tables, and what was found. Never does: asking
//! twice while it remembers; blocking a worker.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_proto::nfs4::attr::Principal;
use parking_lot::Mutex;

/// Whoever has no number here.
const NOBODY: u32 = 65_534;
/// Names remembered; beyond that all are forgotten, and asked for again as they come.
const NAMES_MAX: usize = 4096;

/// Which table a name is looked for in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Table {
    Users,
    Groups,
}

/// A name in a table, and its number.
type Known = HashMap<(Table, Vec<u8>), Number>;

/// A name that is not known may become so.
const UNKNOWN_FOR: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
enum Number {
    Found(u32),
    NotFound { asked: Instant },
}

/// Names that were found, or not.
#[derive(Debug, Default, Clone)]
pub(super) struct Identities {
    known: Arc<Mutex<Known>>,
}

impl Identities {
    /// The number of an owner or group; nobody if none was told.
    pub async fn number(&self, table: Table, principal: Option<&Principal>) -> u32 {
        let name = match principal {
            None => return NOBODY,
            Some(Principal::Id(id)) => return *id,
            Some(Principal::Name(name)) => name.to_vec(),
        };
        let key = (table, name);
        match self.known.lock().get(&key) {
            Some(Number::Found(id)) => return *id,
            Some(Number::NotFound { asked }) if asked.elapsed() < UNKNOWN_FOR => return NOBODY,
            _ => {}
        }
        let (name, asked) = (key.1.clone(), key.0);
        // The table may be a directory service's, and slow.
        let found = tokio::task::spawn_blocking(move || ask(asked, &name)).await.unwrap_or_default();
        let number = found.map_or_else(|| Number::NotFound { asked: Instant::now() }, Number::Found);
        let mut known = self.known.lock();
        if known.len() >= NAMES_MAX {
            known.clear();
        }
        known.insert(key, number);
        found.unwrap_or(NOBODY)
    }
}

fn ask(table: Table, name: &[u8]) -> Option<u32> {
    let text = String::from_utf8_lossy(name);
    let local = text.split('@').next().unwrap_or_default();
    let found = match table {
        Table::Users => uzers::get_user_by_name(local).map(|user| user.uid()),
        Table::Groups => uzers::get_group_by_name(local).map(|group| group.gid()),
    };
    if found.is_none() {
        tracing::warn!(name = %text, ?table, "the source names somebody this system does not know: nobody, {NOBODY}");
    }
    found
}

#[cfg(test)]
mod tests {
    use forebay_proto::xdr::Opaque;

    use super::*;

    #[tokio::test]
    async fn numbers_are_as_told_and_names_are_this_systems() {
        let identities = Identities::default();
        let name = |name: &'static str| Principal::Name(Opaque::new(name).unwrap());
        assert_eq!(identities.number(Table::Users, Some(&Principal::Id(7))).await, 7);
        for _ in 0..2 {
            assert_eq!(identities.number(Table::Users, Some(&name("root@example.org"))).await, 0);
            assert_eq!(identities.number(Table::Groups, Some(&name("root"))).await, 0);
            assert_eq!(identities.number(Table::Users, Some(&name("no such user@x"))).await, NOBODY);
        }
        assert_eq!(identities.number(Table::Users, None).await, NOBODY);
        assert_eq!(identities.known.lock().len(), 3);
    }
}
