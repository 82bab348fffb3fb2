//! Pauses between tries.
//!
//! Owns: how long they are. Never does: deciding whether to try again.

use std::time::Duration;

use tokio::time::sleep;

/// Between tries, at first and at most.
pub(in crate::source) const PAUSE_MIN: Duration = Duration::from_millis(100);
pub(in crate::source) const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Half to all of `pause`: many nodes must not come back at once.
pub(in crate::source) fn jittered(pause: Duration) -> Duration {
    let share = (uuid::Uuid::new_v4().as_u128() % 512) as u32;
    pause / 2 + pause * share / 1024
}

/// Longer and longer pauses, 20 ms to 2 s.
#[derive(Debug, Default)]
pub(in crate::source) struct Backoff(u32);

impl Backoff {
    /// Waits a little longer than the last time.
    pub async fn wait(&mut self) {
        let pause = Duration::from_millis(20 << self.0.min(7)).min(Duration::from_secs(2));
        self.0 += 1;
        sleep(pause).await;
    }
}
