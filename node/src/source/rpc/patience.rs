//! How long a question waits for its answer.
//!
//! Owns: giving up. Never does: knowing what is asked, judging whether a source is down.

use std::{future::Future, time::Duration};

use tokio::{sync::watch, time::sleep};

use crate::source::SourceError;

/// How long a call that only asks waits for a source that is known to be down.
const DOWN_PATIENCE: Duration = Duration::from_millis(800);

/// Something that only asks: it is given up after `limit`, and then `silent` is called; or soon, if the source is `down`.
pub(in crate::source) async fn asking<T>(
    work: impl Future<Output = Result<T, SourceError>>,
    down: &watch::Sender<bool>,
    limit: Duration,
    silent: impl FnOnce(),
) -> Result<T, SourceError> {
    let stays_down = async {
        let mut watching = down.subscribe();
        loop {
            if watching.wait_for(|down| *down).await.is_err() {
                std::future::pending::<()>().await;
            }
            sleep(DOWN_PATIENCE.min(limit)).await;
            if *watching.borrow() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        done = work => done,
        () = stays_down => Err(SourceError::Unavailable),
        () = sleep(limit) => {
            silent();
            Err(SourceError::Unavailable)
        }
    }
}
