//! The grace period after a restart (RFC 8881 §8.4.2): who may reclaim, and until when.

use std::collections::HashSet;

use forebay_proto::nfs4::Status;

use super::{Now, clients::ClientShared};

/// Who is still expected.
#[derive(Debug)]
pub struct Recovery {
    ends: Option<Now>,
    expected: HashSet<Vec<u8>>,
}

impl Recovery {
    /// Grace for `expected` until `ends`; none if nobody is expected.
    pub fn new(expected: impl IntoIterator<Item = Vec<u8>>, ends: Now) -> Self {
        let expected: HashSet<_> = expected.into_iter().collect();
        Self { ends: (!expected.is_empty()).then_some(ends), expected }
    }

    /// Whether ordinary opens and locks must wait.
    pub fn in_grace(&self) -> bool {
        self.ends.is_some()
    }

    /// `owner` has reclaimed all it wants; `true` if that ends the grace period.
    pub fn done(&mut self, owner: &[u8]) -> bool {
        self.expected.remove(owner);
        self.ends.is_some() && self.expected.is_empty() && self.end()
    }

    /// Time passes; `true` if that ends the grace period.
    pub fn tick(&mut self, now: Now) -> bool {
        self.ends.is_some_and(|ends| now >= ends) && self.end()
    }

    /// Owners that are still expected.
    pub fn expected(&self) -> usize {
        self.expected.len()
    }

    /// Milliseconds left.
    pub fn left_ms(&self, now: Now) -> u64 {
        self.ends.map_or(0, |ends| ends.since(now))
    }

    fn end(&mut self) -> bool {
        self.ends = None;
        self.expected.clear();
        true
    }
}

/// Judges an OPEN or LOCK of `client`: reclaims only in grace, others only after.
pub fn judge(client: &ClientShared, reclaim: bool, in_grace: bool) -> Result<(), Status> {
    match (reclaim, in_grace) {
        (true, _) if client.reclaim_complete() => Err(Status::NoGrace),
        (true, false) => Err(Status::NoGrace),
        (true, true) if !client.may_reclaim => Err(Status::ReclaimBad),
        (true, true) => Ok(()),
        (false, true) => Err(Status::Grace),
        // RFC 8881 §18.51.3: a client says that it reclaims nothing (more) before it opens anything new.
        (false, false) if !client.reclaim_complete() => Err(Status::Grace),
        (false, false) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_ends_with_the_last_client_or_in_time() {
        let mut nobody = Recovery::new([], Now(100));
        assert!(!nobody.in_grace() && !nobody.tick(Now(200)));
        let mut two = Recovery::new([vec![1], vec![2]], Now(100));
        assert!(!two.done(&[1]) && !two.done(&[3]) && two.in_grace());
        assert!(two.done(&[2]) && !two.in_grace());
        assert!(!two.tick(Now(200)), "it ends once");
        let mut late = Recovery::new([vec![1]], Now(100));
        assert!(!late.tick(Now(99)) && late.left_ms(Now(99)) == 1 && late.tick(Now(100)) && !late.in_grace());
    }
}
